"""The static buffers of SGLang's graph runners, and their replays, told to the memory checker.

A runner's own buffers are those of its ``buffers``; its attention backends have the integers and masks that they keep.
A replay begins with its preparation, which some runners do apart, and ends when the captured call has returned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from specdebug.kernel_memory.watch import Watch
from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.inside.wrapping import wrap_method
from specdebug.targets.sglang.inside.batches import RUN
from specdebug.targets.sglang.inside.graphs import backends_of, on_capture
from specdebug.targets.sglang.inside.kernel_reads import Read, on_kernel
from specdebug.targets.sglang.inside.seats import Seat

KERNEL_MEMORY = "the memory of kernels"
_TARGET, _OLD_TARGET = (
    "srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner",
    "srt.model_executor.cuda_graph_runner:CudaGraphRunner",
)
_DRAFT, _EXTEND = (
    "srt.speculative.eagle_draft_cuda_graph_runner:EAGLEDraftCudaGraphRunner",
    "srt.speculative.eagle_draft_extend_cuda_graph_runner:EAGLEDraftExtendCudaGraphRunner",
)
EXTEND_REPLAY = Seat(KERNEL_MEMORY, (f"{_EXTEND}.execute", f"{_EXTEND}.replay"))
REPLAYS: Mapping[str, tuple[Seat | None, Seat]] = {
    "target": (
        Seat(KERNEL_MEMORY, (f"{_TARGET}.load_batch", f"{_OLD_TARGET}.replay_prepare", f"{_TARGET}.replay_prepare")),
        Seat(KERNEL_MEMORY, (f"{_TARGET}.execute", f"{_OLD_TARGET}.replay", f"{_TARGET}.replay")),
    ),
    "draft": (None, Seat(KERNEL_MEMORY, (f"{_DRAFT}.execute", f"{_DRAFT}.replay"))),
    "draft_extend": (None, EXTEND_REPLAY),
}
"""By the name of a runner in findings, its method that others call to prepare a replay, if there is one, and that which
replays."""


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

    def run_batch(call: Callable[..., Any], _: Any, *args: Any, **named: Any) -> Any:
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
_WORKSPACE = "workspace"
"""Part of the names of buffers that kernels use as they like."""


def static_buffers(runner: Any) -> Iterator[tuple[str, Tensor, bool]]:
    """The static buffers of a graph runner by name, and which are filled ahead of a replay's preparation."""
    for name, tensor in _inputs(runner.buffers):
        yield name, tensor, False
    pool = runner.model_runner.req_to_token_pool.req_to_token.untyped_storage().data_ptr()
    for backend in backends_of(runner):
        for name, value in vars(backend).items():
            if _WORKSPACE in name:
                continue
            for part, tensor in _tensors(name, value):
                if not tensor.is_floating_point() and tensor.untyped_storage().data_ptr() != pool:
                    yield part, tensor, name in AHEAD


def _inputs(buffers: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a dataclass or a namespace of buffers, and of those within."""
    for name, value in vars(buffers).items():
        yield from _tensors(name, vars(value) if dataclasses.is_dataclass(value) else value)


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


class Leftovers:
    """Where a replay for ``size`` requests may find what an earlier one left: in rows of padding of ``LEFT``."""

    def __init__(self, name: str, runner: Any, size: int) -> None:
        self._left = LEFT.get(name, ())
        self._runner = runner
        self._size = size

    def __call__(self, buffer: str) -> int | None:
        """The first element of the rows of padding; None: nothing may be left over in this buffer."""
        if buffer not in self._left:
            return None
        elements: int = getattr(self._runner.buffers, buffer).numel()
        return elements // int(self._runner.max_bs) * self._size


class ReplayPhases:
    """Tells when a runner's replay begins and ends."""

    def __init__(self, watch: Watch, look: EngineLook) -> None:
        self._watch = watch
        self._look = look
        self._prepared: Any = None  # the runner whose replay was prepared apart
        self._running = False

    def follow(self, name: str, prepare: Seat | None, replay: Seat) -> None:
        """Wrap the methods of a class of runners. ``name``: in findings; ``prepare``: the method that others call
        before ``replay``, if there is one. Raises NoSeat."""

        def replayed(call: Callable[..., Any], runner: Any, batch: Any, *args: Any, **named: Any) -> Any:
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

        def ahead(call: Callable[..., Any], runner: Any, batch: Any, *args: Any, **named: Any) -> Any:
            if not self._running:
                self._begin(name, runner, batch)
                self._prepared = runner
            return call(batch, *args, **named)

        wrap_method(*replay.find(), replayed, self._look)
        if prepare is not None:
            wrap_method(*prepare.find(), ahead, self._look)

    def _begin(self, name: str, runner: Any, batch: Any) -> None:
        self._watch.static.begin(name, Leftovers(name, runner, batch.batch_size))
