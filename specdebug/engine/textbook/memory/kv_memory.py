"""The engine's KV memory: one allocator over the slots that target and draft pools share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from specdebug.engine.errors import EngineError
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.textbook.memory.allocator import SlotAllocator


class KVMemory:
    """Slots and what they hold. Released slots are poisoned in both pools, so a late read is noticed."""

    def __init__(self, allocator: SlotAllocator, target: KVPool, draft: KVPool | None) -> None:
        self.allocator = allocator
        self.target = target
        self.draft = draft

    def alloc(self, num_slots: int) -> Tensor | None:
        """int64 [num_slots] in whole pages, or None when there are not enough."""
        return self.allocator.alloc(num_slots)

    def free(self, slots: Tensor) -> None:
        """Release whole pages."""
        if slots.numel() == 0:
            return
        self.allocator.free(slots)
        slots = slots.to(torch.int64)
        self.target.poison(slots)
        if self.draft is not None:
            self.draft.poison(slots)

    @contextmanager
    def borrow_to_draft(self, num_slots: int) -> Iterator[Tensor]:
        """int64 [num_slots] in whole pages, for draft KV that is never read later. Afterwards the books are as they
        were, to the order of ids; nothing else may be allocated or freed meanwhile.

        Raises EngineError when there are not enough.
        """
        books = self.allocator.backup()
        slots = self.allocator.alloc(num_slots)
        if slots is None:
            raise EngineError(f"a step needs {num_slots} KV slots and {self.allocator.num_free} are free")
        try:
            yield slots
        finally:
            self.allocator.restore(books)
            if self.draft is not None:
                self.draft.poison(slots)
