"""SGLang's parts under the names of our engine's, on which our injector acts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specdebug.faults.model import NotHere
from specdebug.targets.sglang.inside.scheduler import free_pages, held, nodes_below, root_of


class SeenRequest:
    """A request, as ``engine.textbook.request.Request`` is seen by faults."""

    speculative = True

    def __init__(self, request: Any) -> None:
        holds = held(request)
        self.rid = request.rid
        self.row = holds.row
        self.kv_len, self.kv_allocated = holds.committed, holds.allocated
        self.protected_len = holds.protected
        self.prompt_ids, self.output_ids = request.origin_input_ids, request.output_ids


class SeenPool:
    """A pool of keys and values, as ``engine.memory.kv_pool.KVPool``."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @property
    def size(self) -> int:
        """Slots, those of padding included."""
        return int(self._pool.k_buffer[0].shape[0])

    @property
    def num_layers(self) -> int:
        return len(self._pool.k_buffer)

    def kv_buffer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [slots, heads, head_dim]."""
        return self._pool.k_buffer[layer], self._pool.v_buffer[layer]


class SeenAllocator:
    """The free list, as ``engine.memory.allocator.SlotAllocator``."""

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator

    @property
    def num_free(self) -> int:
        return int(self._allocator.available_size())

    def free_slots(self) -> Tensor:
        """int64 [free slots]."""
        page, pages = self._allocator.page_size, free_pages(self._allocator)
        slots: Tensor = pages.unsqueeze(1) * page + torch.arange(page, device=pages.device)
        return slots.flatten()

    def owns(self, page: int) -> bool:
        """True if a request holds the page."""
        return not bool((free_pages(self._allocator) == page).any())


class SeenMemory:
    """Pools and allocator, as ``engine.textbook.memory.allocator.KVMemory``."""

    def __init__(self, allocator: Any, draft: Any) -> None:
        self._allocator = allocator
        self.allocator = SeenAllocator(allocator)
        self.target = SeenPool(allocator.get_kvcache())
        self.draft = None if draft is None else SeenPool(draft)

    def free(self, slots: Tensor) -> None:
        self._allocator.free(slots.to(self._allocator.free_pages.device))

    def alloc(self, count: int) -> Any:
        return self._allocator.alloc(count)


@dataclass
class SeenRadix:
    """The radix tree, as ``engine.memory.radix_cache.RadixCache``."""

    tree: Any

    def nodes(self) -> Iterator[Any]:
        """Raises NotHere for a tree of another kind."""
        if (root := root_of(self.tree)) is None:
            raise NotHere("this release's radix tree is not one of nodes")
        return nodes_below(root)

    @property
    def evictable_size(self) -> int:
        return int(self.tree.evictable_size_)

    @evictable_size.setter
    def evictable_size(self, size: int) -> None:
        self.tree.evictable_size_ = size


class SeenEngine:
    """A scheduler and its workers, as ``engine.inspect.EngineView``. ``running``: the batch that is computed next."""

    def __init__(self, scheduler: Any) -> None:
        drafts = getattr(getattr(scheduler.draft_worker, "_draft_worker", None), "draft_runner", None)
        args = scheduler.server_args
        self._draft_runner: Any = drafts
        self.vocab_size = int(scheduler.model_config.vocab_size)
        self.table: Tensor = scheduler.req_to_token_pool.req_to_token
        allocator = scheduler.token_to_kv_pool_allocator
        self.memory = SeenMemory(allocator, None if drafts is None else drafts.token_to_kv_pool)
        self.cache = SimpleNamespace(radix=SeenRadix(scheduler.tree_cache), beyond=1)  # keys are bigrams
        self.spec = SimpleNamespace(
            num_steps=args.speculative_num_steps,
            eagle_topk=args.speculative_eagle_topk,
            tree_size=args.speculative_num_draft_tokens,
        )
        self.config = SimpleNamespace(page_size=allocator.page_size, speculative=None if drafts is None else self.spec)
        self.running: Sequence[SeenRequest] = ()

    def see_running(self, scheduler: Any) -> None:
        """Take in which requests the scheduler runs now."""
        running = scheduler.running_batch.reqs if scheduler.running_batch is not None else ()
        self.running = [SeenRequest(each) for each in running if held(each).row is not None]

    @property
    def draft_pool(self) -> SeenPool:
        """Draft KV. Raises NotHere if there is none."""
        if self.memory.draft is None:
            raise NotHere("this engine has no draft model")
        return self.memory.draft

    @property
    def draft_vocab_size(self) -> int:
        """The number of tokens that the draft head knows."""
        config = self._draft_runner.model_config.hf_config
        return int(getattr(config, "draft_vocab_size", None) or config.vocab_size)

    def pools(self) -> list[tuple[str, SeenPool]]:
        """Every KV pool with its name."""
        named = [("target_kv", self.memory.target), ("draft_kv", self.memory.draft)]
        return [(name, pool) for name, pool in named if pool is not None]

    def slot(self, request: SeenRequest, position: int) -> int:
        """The KV slot of a position."""
        return int(self.table[request.row, position])
