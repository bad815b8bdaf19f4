"""Which slots of SGLang's KV pools are written, and when they are given back, told to the memory checker.

The pools of target and draft share one numbering, that of their allocator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from specdebug.kernel_memory.watch import Watch
from specdebug.targets.sglang.inside.attention import on_read

FREES = {"free": False, "free_page_ids": True}
"""The allocators' methods that give slots back, and whether they are told pages; not all releases have all."""


def shadow_pools(watch: Watch) -> None:
    """Follow pools whose rows are slots, of which attention reads with our stand-ins."""
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    pools: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
    set_kv_buffer, move_kv_cache = MHATokenToKVPool.set_kv_buffer, MHATokenToKVPool.move_kv_cache

    def known(pool: Any) -> bool:
        if type(pool) is not MHATokenToKVPool or pool.k_buffer[0].shape[0] != pool.size + pool.page_size:
            return False  # another layout: what is not followed is never told
        if pool not in pools:
            pools[pool] = f"KV pool {len(pools)}"
            for name in ("k_buffer", "v_buffer"):
                for layer, buffer in enumerate(getattr(pool, name)):
                    watch.written.add(f"{pools[pool]}'s {name}[{layer}]", buffer, pool.page_size)
        return True

    def wrote(pool: Any, layer: Any, loc: Any, *args: Any, **named: Any) -> Any:
        answer = set_kv_buffer(pool, layer, loc, *args, **named)
        if known(pool):
            chosen = named.get("layer_id_override")
            number = (layer.layer_id if chosen is None else chosen) - pool.start_layer
            for buffers in (pool.k_buffer, pool.v_buffer):
                watch.written.wrote(buffers[number], loc if isinstance(loc, Tensor) else loc.loc)
        return answer

    def moved(pool: Any, tgt_loc: Tensor, src_loc: Tensor) -> Any:
        done = watch.written.moved(tgt_loc, src_loc) if known(pool) else None
        answer = move_kv_cache(pool, tgt_loc, src_loc)
        if done is not None:
            done()
        return answer

    MHATokenToKVPool.set_kv_buffer, MHATokenToKVPool.move_kv_cache = wrote, moved
    for allocator in (TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator):
        for name, pages in FREES.items():
            if name in vars(allocator):
                setattr(allocator, name, _forgetting(watch, getattr(allocator, name), pages))
        allocator.clear = _forgetting_all(watch, allocator.clear)
    on_read(watch.read)


def _forgetting(watch: Watch, free: Callable[..., Any], pages: bool) -> Callable[..., Any]:
    """A method that gives back slots, or pages; a slot's page goes with it."""

    def call(self: Any, given: Tensor, *args: Any, **named: Any) -> Any:
        size = self.page_size
        first = (given if pages else torch.unique(given // size)).reshape(-1, 1) * size
        watch.written.forget(first + torch.arange(size))
        return free(self, given, *args, **named)

    return call


def _forgetting_all(watch: Watch, clear: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **named: Any) -> Any:
        watch.written.forget()
        return clear(self, *args, **named)

    return call
