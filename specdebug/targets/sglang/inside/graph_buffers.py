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
from specdebug.targets.sglang.inside.graphs import backends_of, on_capture
from specdebug.targets.sglang.inside.kernel_reads import Read, on_kernel
from specdebug.targets.sglang.inside.releases import installed, of_release


def shadow_graph_buffers(watch: Watch) -> None:
    """Follow every graph runner from its first capture on, through the batches of this process's scheduler."""
    from sglang.srt.managers.scheduler import Scheduler

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

    launch, batches = Scheduler.run_batch, 0

    def run_batch(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal batches
        batches += 1
        watch.static.batch(batches)
        with watch.operations:
            return launch(self, *args, **named)

    on_capture(captured)
    on_kernel(kernel)
    Scheduler.run_batch = run_batch
    replays = ReplayPhases(watch)
    for followed in of_release({"0.5.13": _of_0_5_13, "0.5.18": _of_0_5_18}, installed())():
        replays.follow(*followed)


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

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._prepared: Any = None  # the runner whose replay was prepared apart
        self._running = False

    def follow(self, name: str, runner: Any, prepare: str | None, replay: str) -> None:
        """Wrap the methods of a class of runners. ``name``: in findings; ``prepare``: the method that others call
        before ``replay``, if there is one."""
        replayed = getattr(runner, replay)

        def call(this: Any, batch: Any, *args: Any, **named: Any) -> Any:
            if self._running:
                return replayed(this, batch, *args, **named)
            if self._prepared is not this:
                self._begin(name, this, batch)
            self._running = True
            try:
                return replayed(this, batch, *args, **named)
            finally:
                self._running, self._prepared = False, None
                self._watch.static.end()

        setattr(runner, replay, call)
        if prepare is None:
            return
        prepared = getattr(runner, prepare)

        def ahead(this: Any, batch: Any, *args: Any, **named: Any) -> Any:
            if not self._running:
                self._begin(name, this, batch)
                self._prepared = this
            return prepared(this, batch, *args, **named)

        setattr(runner, prepare, ahead)

    def _begin(self, name: str, runner: Any, batch: Any) -> None:
        self._watch.static.begin(name, Leftovers(name, runner, batch.batch_size))


Followed = tuple[str, Any, "str | None", str]
"""The name of a runner in findings, its class, and its methods that prepare and replay."""


def _of_0_5_13() -> tuple[Followed, ...]:
    from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner
    from sglang.srt.speculative.eagle_draft_cuda_graph_runner import EAGLEDraftCudaGraphRunner
    from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner

    return (
        ("target", CudaGraphRunner, "replay_prepare", "replay"),
        ("draft", EAGLEDraftCudaGraphRunner, None, "replay"),
        ("draft_extend", EAGLEDraftExtendCudaGraphRunner, None, "replay"),
    )


def _of_0_5_18() -> tuple[Followed, ...]:
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
    from sglang.srt.speculative.eagle_draft_cuda_graph_runner import EAGLEDraftCudaGraphRunner
    from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner

    return (
        ("draft", EAGLEDraftCudaGraphRunner, None, "execute"),
        ("draft_extend", EAGLEDraftExtendCudaGraphRunner, None, "execute"),
        ("target", DecodeCudaGraphRunner, "load_batch", "execute"),
    )
