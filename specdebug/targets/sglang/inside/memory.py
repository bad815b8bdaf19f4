"""SGLang's interpreted Triton kernels under the memory checker, told of KV slots that are written and given back, and
of graph runners' static buffers and replays. What it finds is told after every batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from specdebug import kernel_memory
from specdebug.kernel_memory.finding import KernelRule
from specdebug.kernel_memory.watch import Watch
from specdebug.targets.inside.guard import Call, EngineLook, Tap, wrap_method
from specdebug.targets.sglang.inside.attention import on_read
from specdebug.targets.sglang.inside.graphs import backends_of, on_capture
from specdebug.targets.sglang.inside.launches import Read, on_kernel
from specdebug.targets.sglang.inside.scheduler import RUN
from specdebug.targets.sglang.inside.seats import Seat

KERNEL_MEMORY = "the memory of kernels"
_RUNNER = "srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner"
_OLD_RUNNER = "srt.model_executor.cuda_graph_runner:CudaGraphRunner"
_DRAFT = "srt.speculative.eagle_draft_cuda_graph_runner:EAGLEDraftCudaGraphRunner"
_EXTEND = "srt.speculative.eagle_draft_extend_cuda_graph_runner:EAGLEDraftExtendCudaGraphRunner"


def _seat(*places: str) -> Seat:
    return Seat(KERNEL_MEMORY, places)


EXTEND_REPLAY = _seat(f"{_EXTEND}.execute", f"{_EXTEND}.replay")
REPLAYS: Mapping[str, tuple[Seat | None, Seat]] = {
    "target": (
        _seat(f"{_RUNNER}.load_batch", f"{_OLD_RUNNER}.replay_prepare", f"{_RUNNER}.replay_prepare"),
        _seat(f"{_RUNNER}.execute", f"{_OLD_RUNNER}.replay", f"{_RUNNER}.replay"),
    ),
    "draft": (None, _seat(f"{_DRAFT}.execute", f"{_DRAFT}.replay")),
    "draft_extend": (None, EXTEND_REPLAY),
}
"""By the name of a runner in findings, its method that others call to prepare a replay, if there is one, and that which
replays."""
POOL = _seat("srt.mem_cache.memory_pool:MHATokenToKVPool")
ALLOCATORS = (
    _seat("srt.mem_cache.allocator.token:TokenToKVPoolAllocator"),
    _seat("srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator"),
)
FREES = {"free": False, "free_page_ids": True}
"""The allocators' methods that give slots back, and whether they are told pages; not all releases have all."""


def watch_kernels(rules: Sequence[KernelRule]) -> None:
    """Hold every launch to the memory that it was given, by some rules."""
    watch = kernel_memory.begin(rules)
    asked = {kind for each in rules if each.mode != "off" for kind in each.kinds}
    look = EngineLook(KERNEL_MEMORY)
    if "unwritten" in asked:
        shadow_pools(watch, look)
    if "stale" in asked:
        shadow_graph_buffers(watch, look)


def shadow_graph_buffers(watch: Watch, look: EngineLook) -> None:
    """Follow every graph runner from its first capture on, through the batches of this process's scheduler. Raises
    NoSeat."""

    def captured(runner: Any) -> None:
        for name, tensor, ahead in static_buffers(runner):
            watch.static.add(name, tensor, ahead=ahead)

    def kernel(name: str, reads: Iterator[Read], run: Callable[[], Any]) -> Any:
        watch.operations.pause()
        try:
            if watch.static.replaying:
                for argument, tensor, row in reads:
                    watch.read_static(name, argument, tensor, row)
            return run()
        finally:
            watch.operations.go_on()

    batches = 0

    def run_batch(call: Call, _: Any, *args: Any, **named: Any) -> Any:
        nonlocal batches
        batches += 1
        watch.static.batch(batches)
        with watch.operations:
            return call(*args, **named)

    on_capture(lambda runner: look.attempt(lambda: captured(runner), None))
    on_kernel(kernel)
    wrap_method(*RUN.find(), run_batch, look)
    replays = ReplayPhases(watch, look)
    for name, (prepare, replay) in REPLAYS.items():
        replays.follow(name, prepare, replay)


AHEAD = ("cuda_graph_custom_mask",)
"""Buffers of attention backends that are filled between a draft's replay and its verify's preparation."""
LEFT: Mapping[str, tuple[str, ...]] = {
    "target": ("input_ids", "positions"),
    "draft_extend": ("input_ids", "hidden_states", "select_index"),
}
"""By runner, the buffers in whose rows of padding SGLang leaves what an earlier replay wrote, which comes to nothing:
docs/kernel-memory.md has why and how that was seen."""


def static_buffers(runner: Any) -> Iterator[tuple[str, Tensor, bool]]:
    """The static buffers of a graph runner by name, and which are filled ahead of a replay's preparation: its own, of
    its ``buffers``, and the integers and masks that its attention backends keep, but for workspaces of kernels."""
    for name, value in vars(runner.buffers).items():
        for part, tensor in _tensors(name, vars(value) if dataclasses.is_dataclass(value) else value):
            yield part, tensor, False
    pool = runner.model_runner.req_to_token_pool.req_to_token.untyped_storage().data_ptr()
    for backend in backends_of(runner):
        for name, value in vars(backend).items():
            for part, tensor in () if "workspace" in name else _tensors(name, value):
                if not tensor.is_floating_point() and tensor.untyped_storage().data_ptr() != pool:
                    yield part, tensor, name in AHEAD


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """A tensor, or those in a list or in a dict of names."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _tensors(name if len(value) == 1 else f"{name}[{number}]", each)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if isinstance(key, str):
                yield from _tensors(f"{name}.{key}", each)


class ReplayPhases:
    """Tells when a runner's replay begins, with its preparation, which some runners do apart, and when it ends."""

    def __init__(self, watch: Watch, look: EngineLook) -> None:
        self._watch = watch
        self._look = look
        self._prepared: Any = None  # the runner whose replay was prepared apart
        self._running = False

    def follow(self, name: str, prepare: Seat | None, replay: Seat) -> None:
        """Wrap the methods of a class of runners. ``name``: in findings; ``prepare``: the method that others call
        before ``replay``, if there is one. Raises NoSeat."""

        def replayed(call: Call, runner: Any, batch: Any, *args: Any, **named: Any) -> Any:
            if self._running:
                return call(batch, *args, **named)
            if self._prepared is not runner:
                self._begin(name, runner, batch)
            self._running = True
            try:
                return call(batch, *args, **named)
            finally:
                self._running, self._prepared = False, None
                self._watch.static.end()

        def ahead(call: Call, runner: Any, batch: Any, *args: Any, **named: Any) -> Any:
            if not self._running:
                self._begin(name, runner, batch)
                self._prepared = runner
            return call(batch, *args, **named)

        wrap_method(*replay.find(), replayed, self._look)
        if prepare is not None:
            wrap_method(*prepare.find(), ahead, self._look)

    def _begin(self, name: str, runner: Any, batch: Any) -> None:
        def leftovers(buffer: str) -> int | None:
            """The first element of the rows of padding; None: nothing may be left over in this buffer."""
            if buffer not in LEFT.get(name, ()):
                return None
            elements: int = getattr(runner.buffers, buffer).numel()
            return elements // int(runner.max_bs) * int(batch.batch_size)

        self._watch.static.begin(name, leftovers)


def shadow_pools(watch: Watch, look: EngineLook) -> None:
    """Follow pools whose rows are slots, of which attention reads with our stand-ins; those of target and draft share
    the numbering of their allocator. Raises NoSeat."""
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

    def wrote(call: Call, pool: Any, layer: Any, loc: Any, *args: Any, **named: Any) -> Any:
        answer = call(layer, loc, *args, **named)
        if known(pool):
            chosen = named.get("layer_id_override")
            number = (layer.layer_id if chosen is None else chosen) - pool.start_layer
            for buffers in (pool.k_buffer, pool.v_buffer):
                watch.written.wrote(buffers[number], loc if isinstance(loc, Tensor) else loc.loc)
        return answer

    def moved(call: Call, pool: Any, tgt_loc: Tensor, src_loc: Tensor) -> Any:
        done = watch.written.moved(tgt_loc, src_loc) if known(pool) else None
        answer = call(tgt_loc, src_loc)
        if done is not None:
            done()
        return answer

    def forgets(pages: bool) -> Tap:
        def free(call: Call, allocator: Any, given: Tensor, *args: Any, **named: Any) -> Any:
            size = allocator.page_size  # a slot's page goes with it
            first = (given if pages else torch.unique(given // size)).reshape(-1, 1) * size
            watch.written.forget(first + torch.arange(size))
            return call(given, *args, **named)

        return free

    def forgets_all(call: Call, _: Any, *args: Any, **named: Any) -> Any:
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
