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
from specdebug.targets.inside.guard import EngineLook, Tap
from specdebug.targets.inside.wrapping import wrap_method
from specdebug.targets.sglang.inside.attention import on_read
from specdebug.targets.sglang.inside.graph_buffers import KERNEL_MEMORY
from specdebug.targets.sglang.inside.seats import Seat

POOL = Seat(KERNEL_MEMORY, ("srt.mem_cache.memory_pool:MHATokenToKVPool",))
ALLOCATORS = (
    Seat(KERNEL_MEMORY, ("srt.mem_cache.allocator.token:TokenToKVPoolAllocator",)),
    Seat(KERNEL_MEMORY, ("srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator",)),
)
FREES = {"free": False, "free_page_ids": True}
"""The allocators' methods that give slots back, and whether they are told pages; not all releases have all."""


def shadow_pools(watch: Watch, look: EngineLook) -> None:
    """Follow pools whose rows are slots, of which attention reads with our stand-ins. Raises NoSeat."""
    pools: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
    pool_class = getattr(*POOL.find())

    def known(pool: Any) -> bool:
        if type(pool) is not pool_class or pool.k_buffer[0].shape[0] != pool.size + pool.page_size:
            return False  # another layout: what is not followed is never told
        if pool not in pools:
            pools[pool] = f"KV pool {len(pools)}"
            for name in ("k_buffer", "v_buffer"):
                for layer, buffer in enumerate(getattr(pool, name)):
                    watch.written.add(f"{pools[pool]}'s {name}[{layer}]", buffer, pool.page_size)
        return True

    def wrote(call: Callable[..., Any], pool: Any, layer: Any, loc: Any, *args: Any, **named: Any) -> Any:
        answer = call(layer, loc, *args, **named)
        if known(pool):
            chosen = named.get("layer_id_override")
            number = (layer.layer_id if chosen is None else chosen) - pool.start_layer
            for buffers in (pool.k_buffer, pool.v_buffer):
                watch.written.wrote(buffers[number], loc if isinstance(loc, Tensor) else loc.loc)
        return answer

    def moved(call: Callable[..., Any], pool: Any, tgt_loc: Tensor, src_loc: Tensor) -> Any:
        done = watch.written.moved(tgt_loc, src_loc) if known(pool) else None
        answer = call(tgt_loc, src_loc)
        if done is not None:
            done()
        return answer

    def forgets(pages: bool) -> Tap:
        """Of a method that gives back slots, or pages; a slot's page goes with it."""

        def free(call: Callable[..., Any], allocator: Any, given: Tensor, *args: Any, **named: Any) -> Any:
            size = allocator.page_size
            first = (given if pages else torch.unique(given // size)).reshape(-1, 1) * size
            watch.written.forget(first + torch.arange(size))
            return call(given, *args, **named)

        return free

    def forgets_all(call: Callable[..., Any], _: Any, *args: Any, **named: Any) -> Any:
        watch.written.forget()
        return call(*args, **named)

    wrap_method(pool_class, "set_kv_buffer", wrote, look)
    wrap_method(pool_class, "move_kv_cache", moved, look)
    for allocator in (getattr(*each.find()) for each in ALLOCATORS):
        for name, pages in FREES.items():
            if name in vars(allocator):
                wrap_method(allocator, name, forgets(pages), look)
        wrap_method(allocator, "clear", forgets_all, look)
    on_read(lambda *told: look.attempt(lambda: watch.read(*told), None))
