"""The allocator hands out ids of the KV slots that target and draft share, as of one memory.

Of P = ``page_size`` and N = ``num_slots``, slots 0..P-1 (page 0) are padding, P..N+P-1 usable. Books and ids are kept
on the host (numpy), because the scheduler decides there. ``alloc`` takes from the head of an ascending list, so ids are
contiguous as long as the pool is not fragmented, which makes KV gathers plain copies; freed pages wait in a side list
and are sorted in when the head runs short. The same calls give the same ids.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdebug.engine.errors import EngineError
from specdebug.engine.memory.kv_pool import KVPool

_Ids = npt.NDArray[np.int64]


class InvalidFree(EngineError):
    """A slot was freed that the allocator never hands out: page 0, or outside the pool."""


class DoubleFree(InvalidFree):
    """A slot was freed that no request and no cache owns."""


Books = tuple[_Ids, tuple[_Ids, ...], int, npt.NDArray[np.bool_]]
"""A copy of an allocator's books: pages listed as free, and released; how many are free; owned, by page."""


class SlotAllocator:
    """Books of whole pages. Raises ValueError if ``num_slots`` is not a positive multiple of ``page_size``."""

    def __init__(self, num_slots: int, page_size: int) -> None:
        if page_size < 1 or num_slots < 1 or num_slots % page_size:
            raise ValueError(f"num_slots {num_slots} must be a positive multiple of page_size {page_size}")
        self.num_slots = num_slots
        self.page_size = page_size
        self._num_pages = num_slots // page_size
        self._within = np.arange(page_size, dtype=np.int64)
        self._free: _Ids = np.arange(1, self._num_pages + 1, dtype=np.int64)
        self._head = 0
        self._released: list[_Ids] = []
        self._num_free_pages = self._num_pages
        self._owned = np.zeros(self._num_pages + 1, dtype=np.bool_)

    @property
    def num_free(self) -> int:
        """Slots that can be allocated now."""
        return self._num_free_pages * self.page_size

    def alloc(self, n: int) -> torch.Tensor | None:
        """Take ``n`` slots: int64 [n] in whole pages, ascending within a page; None, and nothing changed, when fewer
        are free. Raises ``ValueError`` if ``n`` is no multiple of the page size."""
        num_pages, rest = divmod(n, self.page_size)
        if rest or n < 0:
            raise ValueError(f"cannot allocate {n} slots: not a multiple of page_size {self.page_size}")
        if num_pages > self._num_free_pages:
            return None
        stop = self._head + num_pages
        if stop > self._free.size:
            self._free = np.sort(np.concatenate([self._free[self._head :], *self._released]))
            self._head, self._released, stop = 0, [], num_pages
        pages = self._free[self._head : stop]
        self._head = stop
        self._num_free_pages -= num_pages
        self._owned[pages] = True
        return torch.from_numpy(self._slots_of(pages))

    def free(self, slots: torch.Tensor) -> None:
        """Give back every page that holds one of ``slots`` (any integer dtype and shape; of a GPU, the host waits).
        Raises :class:`InvalidFree` or :class:`DoubleFree` naming a slot; nothing is freed then."""
        if slots.numel() == 0:
            return
        ids = slots.detach().to("cpu", torch.int64).numpy().reshape(-1)
        last = self.num_slots + self.page_size - 1
        if ids.min() < self.page_size or ids.max() > last:
            bad = ids[(ids < self.page_size) | (ids > last)][0]
            raise InvalidFree(f"slot {bad} cannot be freed: usable slots are {self.page_size}..{last}")
        if self.page_size > 1:
            pages = np.unique(ids // self.page_size)
        else:
            pages = np.sort(ids)
            repeated = pages[1:] == pages[:-1]
            if repeated.any():
                raise DoubleFree(f"slot {pages[1:][repeated][0]} is freed twice in one call")
        owned = self._owned[pages]
        if not owned.all():
            page = pages[~owned][0]
            slot = ids[ids // self.page_size == page][0]
            raise DoubleFree(f"slot {slot} is freed but not allocated")
        self._owned[pages] = False
        self._released.append(pages)
        self._num_free_pages += pages.size

    def backup(self) -> Books:
        """What :meth:`restore` needs."""
        return self._free[self._head :], tuple(self._released), self._num_free_pages, self._owned.copy()

    def restore(self, books: Books) -> None:
        """Forget all that was allocated and freed since these were copied: the next calls give the ids that they would
        have given then."""
        self._free, released, self._num_free_pages, owned = books
        self._head, self._released, self._owned = 0, list(released), owned.copy()

    def free_slots(self) -> torch.Tensor:
        """All free slots, ascending, int64 [num_free]; for accounting, O(N)."""
        return torch.from_numpy(self._slots_of(np.flatnonzero(~self._owned[1:]) + 1))

    def listed(self) -> _Ids:
        """Every page that is listed as free, in no order, as :meth:`alloc` would find it; for accounting."""
        return np.concatenate([self._free[self._head :], *self._released])

    def owns(self, page: int) -> bool:
        """True if a page is allocated."""
        return bool(self._owned[page])

    def _slots_of(self, pages: _Ids) -> _Ids:
        return (pages[:, None] * self.page_size + self._within).reshape(-1)


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
        """int64 [num_slots] in whole pages, for draft KV that is never read later; afterwards the books are as they
        were, to the order of ids. Nothing else may be allocated or freed meanwhile. Raises EngineError without enough.
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
