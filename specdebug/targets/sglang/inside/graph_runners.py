"""SGLang's graph runners (target, draft, draft extend) on a CPU.

Which graphs there are, their warm-ups, buffers and replays are decided and done by SGLang's own code, which is told
that this is a GPU while it decides; a capture keeps the function that it runs.
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch

from specdebug.targets.sglang.inside.graphs import ReplayedCall, captured, capturing
from specdebug.targets.sglang.inside.seats import Seat, installed

GRAPHS = "graphs"
_RUNNER = "srt.model_executor.runner.decode_cuda_graph_runner"
_OLD_RUNNER = "srt.model_executor.cuda_graph_runner"
_DRAFT, _EXTEND = (
    "srt.speculative.eagle_draft_cuda_graph_runner:EAGLEDraftCudaGraphRunner",
    "srt.speculative.eagle_draft_extend_cuda_graph_runner:EAGLEDraftExtendCudaGraphRunner",
)
_SETUP = "srt.model_executor.model_runner_components.cuda_graph_setup"
_MODEL_RUNNER = "srt.model_executor.model_runner"
_WORKER = "srt.speculative.eagle_worker_v2"
TARGET_RUNNER = Seat(GRAPHS, (f"{_RUNNER}:DecodeCudaGraphRunner", f"{_OLD_RUNNER}:CudaGraphRunner"))
DRAFT_RUNNERS = (Seat(GRAPHS, (_DRAFT,)), Seat(GRAPHS, (_EXTEND,)))
STREAMS = Seat(GRAPHS, (f"{_RUNNER}:graph_capture", f"{_OLD_RUNNER}:graph_capture"))
TARGET_CAPTURE = Seat(
    GRAPHS,
    (
        f"{_SETUP}:capture_decode_graph",
        f"{_MODEL_RUNNER}:ModelRunner.init_decode_cuda_graph",
        f"{_MODEL_RUNNER}:ModelRunner.init_device_graphs",
    ),
)
TARGET_MEMORY = Seat(GRAPHS, (f"{_SETUP}:get_available_gpu_memory", f"{_MODEL_RUNNER}:get_available_gpu_memory"))
DRAFT_CAPTURE = Seat(
    GRAPHS, (f"{_WORKER}:EagleDraftWorker._capture_cuda_graphs", f"{_WORKER}:EagleDraftWorker.init_cuda_graphs")
)
BACKEND = Seat(
    GRAPHS,
    ("srt.model_executor.runner_backend.full_cuda_graph_backend:FullCudaGraphBackend.capture_one",
     f"{_OLD_RUNNER}:CudaGraphRunner._capture_graph"),
)  # fmt: skip
OWN_CAPTURES = tuple(f"{runner}._capture_graph" for runner in (_DRAFT, _EXTEND))
"""Of runners that capture by a method of their own, as 0.5.13's do."""
MODES = Seat(GRAPHS, ("srt.model_executor.forward_batch_info:ForwardMode.is_cpu_graph",))
NEEDED = (TARGET_RUNNER, *DRAFT_RUNNERS, STREAMS, TARGET_CAPTURE, TARGET_MEMORY, DRAFT_CAPTURE, BACKEND, MODES)


def use_captured_calls() -> list[str]:
    """Have the graph runners capture on a CPU; returns what was replaced. Raises NoSeat."""
    torch.cuda.CUDAGraph = ReplayedCall  # type: ignore[misc, assignment]
    torch.cuda.graph = torch.cpu.graph = capturing  # type: ignore[misc, assignment, attr-defined]
    torch.cpu.graph_pool_handle = lambda: 0  # type: ignore[attr-defined]
    torch.cpu.is_current_stream_capturing = lambda: False  # type: ignore[attr-defined]
    torch.cuda.current_stream = torch.cpu.current_stream  # type: ignore[assignment]
    mode, name = MODES.find()
    setattr(mode, name, mode.is_cuda_graph)
    module, name = STREAMS.find()
    setattr(module, name, _capture_context)
    return [
        "torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.current_stream", "ForwardMode.is_cpu_graph",
        _place(STREAMS), *_keep_what_is_captured(), *_capture_as_on_a_gpu(),
    ]  # fmt: skip


@contextlib.contextmanager
def _capture_context(*_: Any, **__: Any) -> Iterator[Any]:
    """In the place of ``graph_capture``, which gives a stream to capture on."""
    yield types.SimpleNamespace(stream=None)


def _keep_what_is_captured() -> list[str]:
    """Have what is handed to a capture kept by the graph; the functions that capture are SGLang's own."""
    owner, name = BACKEND.find()
    if name == "capture_one":
        _note_captures_of_backend(owner)
        return []
    for seat in (BACKEND, *(Seat(GRAPHS, (place,)) for place in OWN_CAPTURES)):
        _note_own_capture(*seat.find())
    return []


def _note_captures_of_backend(backend: Any) -> None:
    begin, capture_one = backend.__init__, backend.capture_one
    runners: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @functools.wraps(begin)
    def begun(self: Any, runner: Any, *args: Any, **named: Any) -> None:
        runners[self] = weakref.ref(runner)
        begin(self, runner, *args, **named)

    @functools.wraps(capture_one)
    def noted(self: Any, key: Any, forward: Callable[[], Any], *args: Any, **named: Any) -> Any:
        return capture_one(self, key, captured(forward, runners[self]()), *args, **named)

    backend.__init__, backend.capture_one = begun, noted


def _note_own_capture(runner: Any, name: str) -> None:
    capture_graph = getattr(runner, name)

    @functools.wraps(capture_graph)
    def noted(self: Any, graph: Any, pool: Any, stream: Any, run_once_fn: Callable[[], Any]) -> Any:
        return capture_graph(self, graph, pool, stream, captured(run_once_fn, self))

    setattr(runner, name, noted)


def _capture_as_on_a_gpu() -> list[str]:
    """Have what decides about graphs take its model runner, or its worker, for a GPU's."""
    module, memory = TARGET_MEMORY.find()
    setattr(module, memory, lambda *_, **__: 0.0)
    named = _NamedCuda()

    def of_target(*args: Any, model_runner: Any = None) -> Any:
        return args[0] if model_runner is None else model_runner

    for seat, of in ((TARGET_CAPTURE, of_target), (DRAFT_CAPTURE, lambda worker: worker.target_worker)):
        owner, name = seat.find()
        setattr(owner, name, named.while_deciding(getattr(owner, name), of))
    for seat in (TARGET_RUNNER, *DRAFT_RUNNERS):
        runner = getattr(*seat.find())
        runner.__init__ = named.not_while_made(runner.__init__)
    return [_place(TARGET_MEMORY), f"the device that {_place(TARGET_CAPTURE)} sees",
            f"the device that {_place(DRAFT_CAPTURE)} sees"]  # fmt: skip


class _NamedCuda:
    """Whose device is called ``cuda`` now, while SGLang decides what to capture; what is then made has its own name of
    it."""

    def __init__(self) -> None:
        self._owners: list[tuple[Any, str]] = []

    def while_deciding(self, decide: Callable[..., Any], of: Callable[..., Any]) -> Callable[..., Any]:
        """``of``: the owner of the device, by what ``decide`` gets."""

        @functools.wraps(decide)
        def call(*args: Any, **named: Any) -> Any:
            owner = of(*args, **named)
            self._owners.append((owner, owner.device))
            owner.device = "cuda"
            try:
                return decide(*args, **named)
            finally:
                _, owner.device = self._owners.pop()

        return call

    def not_while_made(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def begin(*args: Any, **named: Any) -> None:
            for owner, device in self._owners:
                owner.device = device
            init(*args, **named)
            for owner, _ in self._owners:
                owner.device = "cuda"

        return begin


def _place(seat: Seat) -> str:
    return seat.place(installed()).removeprefix("srt.").replace(":", ".")
