"""CUDA graphs without CUDA. Which there are, their warm-ups, padding, buffers and replays are decided and done by
SGLang's own graph runners, told that this is a GPU. What a function does on the host happens at each replay: the one
difference."""

from __future__ import annotations

import contextlib
import enum
import functools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from specdebug.targets.inside.guard import Call
from specdebug.targets.sglang.inside.launches import ours, refusal
from specdebug.targets.sglang.inside.seats import Seat, installed

GRAPHS, _GRAPH = "graphs", "CUDAGraph"
_METADATA = ("forward_metadata", "forward_metadata_spec_decode_expand")
"""The attributes of SGLang's attention backends that hold what a forward was planned with."""
_Planned = list[tuple[Any, dict[str, Any]]]
"""Backends with the metadata that each has at some time."""
_captured: list[Callable[[Any], None]] = []
_capturing: list[ReplayedCall] = []
"""The graph that is captured now; it is one at a time."""


def on_capture(told: Callable[[Any], None]) -> None:
    """Have a function called with each graph runner whenever it has captured a graph."""
    _captured.append(told)


class ReplayedCall:
    """In the place of ``torch.cuda.CUDAGraph``. A replay calls the captured function again over the same buffers, and
    puts what it returns where the capture's answer lies. It finds the forward context and each attention backend's
    metadata of the capture, as a graph would."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._call: Callable[[], Any]
        self._context: Any = None
        self._planned: _Planned = []
        self._answer: Any = None

    def pool(self) -> int:
        return 0

    def reset(self) -> None:
        """Do nothing: there is no memory to give back."""

    def capture(self, call: Callable[[], Any], runner: Any) -> Any:
        """Call it once for a graph runner, and keep what it was called with; returns the answer that replays write."""
        from sglang.srt.model_executor.forward_context import get_forward_context

        self._call, self._context = call, get_forward_context()
        with ours(_GRAPH):
            self._planned = _planned(backends_of(runner))
        self._answer = call()
        for told in _captured:
            told(runner)
        return self._answer

    def replay(self) -> None:
        from sglang.srt.model_executor.forward_context import forward_context

        now = _planned([backend for backend, _ in self._planned])
        _restore(self._planned)
        try:
            with torch.inference_mode(), forward_context(self._context):
                _write(self._answer, self._call())
        finally:
            _restore(now)


def _planned(backends: Sequence[Any]) -> _Planned:
    return [(each, {name: getattr(each, name) for name in _METADATA if hasattr(each, name)}) for each in backends]


def _restore(planned: _Planned) -> None:
    for backend, metadata in planned:
        for name, value in metadata.items():
            setattr(backend, name, value)


@contextlib.contextmanager
def capturing(cuda_graph: ReplayedCall, *_: Any, **__: Any) -> Iterator[None]:
    """In the place of ``torch.cuda.graph``: what is called within by :func:`captured` is what the graph replays."""
    _capturing.append(cuda_graph)
    try:
        yield
    finally:
        _capturing.pop()


def captured(call: Callable[[], Any], runner: Any) -> Callable[[], Any]:
    """A graph runner's forward, as it hands it to be captured; it warms up with it, too."""
    return lambda: _capturing[-1].capture(call, runner) if _capturing else call()


_ATOMS = (bool, int, float, str, bytes, enum.Enum, torch.dtype, torch.device, type(None))
"""The types of an answer, beside tensors, that a graph keeps as they were at the capture."""


def _write(kept: Any, new: Any) -> None:
    """Copy an answer over the one that is kept, tensor by tensor. Raises NotImplementedError for one that is of another
    form, or has parts of a kind that is not known: a replay that left a part as the capture had it would be wrong."""
    if isinstance(kept, _ATOMS):
        return
    if isinstance(kept, Tensor):
        if isinstance(new, Tensor) and new.shape == kept.shape:
            if kept.data_ptr() != new.data_ptr():
                kept.copy_(new)
            return
    elif (old := _parts(kept)) is None:
        raise refusal(_GRAPH, f"answer with {_form(kept)} in it")
    elif (now := _parts(new)) is not None and old.keys() == now.keys():
        for name, part in old.items():
            _write(part, now[name])
        return
    raise refusal(_GRAPH, f"answer in which {_form(kept)} of the capture is now {_form(new)}")


def _parts(answer: Any) -> dict[Any, Any] | None:
    """The parts of an answer by their places in it; None of a kind that is not known."""
    if isinstance(answer, Mapping):
        return dict(answer)
    if isinstance(answer, (tuple, list)):
        return dict(enumerate(answer))
    if callable(answer) or isinstance(answer, (Set, Tensor)):
        return None
    if hasattr(answer, "__dict__"):
        return dict(vars(answer))
    slots = getattr(type(answer), "__slots__", None)
    return None if slots is None else {name: getattr(answer, name) for name in slots if hasattr(answer, name)}


def _form(part: Any) -> str:
    return f"a tensor of {list(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"


def backends_of(runner: Any) -> list[Any]:
    """The attention backends that a graph runner's forward may use, those within others included."""
    names = ("attn_backend", "draft_attn_backend", "draft_extend_attn_backend")
    found = [runner.model_runner.attn_backend, *(getattr(runner, name, None) for name in names)]
    found.append(getattr(getattr(runner, "eagle_worker", None), "draft_extend_attn_backend", None))
    every = [each for each in found if each is not None]
    every += [inner for each in every for inner in getattr(each, "attn_backends", ())]
    parts = ("full_attn_backend", "linear_attn_backend")  # of one that has a backend for each kind of layer
    every += [getattr(each, part) for each in every for part in parts if hasattr(each, part)]
    return list({id(each): each for each in every}.values())


_RUNNER = "srt.model_executor.runner.decode_cuda_graph_runner"
_OLD_RUNNER = "srt.model_executor.cuda_graph_runner"
_DRAFT, _EXTEND = (
    "srt.speculative.eagle_draft_cuda_graph_runner:EAGLEDraftCudaGraphRunner",
    "srt.speculative.eagle_draft_extend_cuda_graph_runner:EAGLEDraftExtendCudaGraphRunner",
)
_SETUP = "srt.model_executor.model_runner_components.cuda_graph_setup"
_MODEL_RUNNER = "srt.model_executor.model_runner"
_WORKER = "srt.speculative.eagle_worker_v2:EagleDraftWorker"


def _seat(*places: str) -> Seat:
    return Seat(GRAPHS, places)


TARGET_RUNNER = _seat(f"{_RUNNER}:DecodeCudaGraphRunner", f"{_OLD_RUNNER}:CudaGraphRunner")
DRAFT_RUNNERS = (_seat(_DRAFT), _seat(_EXTEND))
STREAMS = _seat(f"{_RUNNER}:graph_capture", f"{_OLD_RUNNER}:graph_capture")
TARGET_CAPTURE = _seat(
    f"{_SETUP}:capture_decode_graph",
    f"{_MODEL_RUNNER}:ModelRunner.init_decode_cuda_graph",
    f"{_MODEL_RUNNER}:ModelRunner.init_device_graphs",
)
TARGET_MEMORY = _seat(f"{_SETUP}:get_available_gpu_memory", f"{_MODEL_RUNNER}:get_available_gpu_memory")
DRAFT_CAPTURE = _seat(f"{_WORKER}._capture_cuda_graphs", f"{_WORKER}.init_cuda_graphs")
BACKEND = _seat(
    "srt.model_executor.runner_backend.full_cuda_graph_backend:FullCudaGraphBackend.capture_one",
    f"{_OLD_RUNNER}:CudaGraphRunner._capture_graph",
)
OWN_CAPTURES = tuple(f"{runner}._capture_graph" for runner in (_DRAFT, _EXTEND))
"""Of runners that capture by a method of their own, as 0.5.13's do."""
MODES = _seat("srt.model_executor.forward_batch_info:ForwardMode.is_cpu_graph")
NEEDED = (TARGET_RUNNER, *DRAFT_RUNNERS, STREAMS, TARGET_CAPTURE, TARGET_MEMORY, DRAFT_CAPTURE, BACKEND, MODES)


def use_captured_calls() -> list[str]:
    """Have the graph runners capture on a CPU; returns what was replaced. Raises NoSeat."""
    torch.cuda.CUDAGraph = ReplayedCall  # type: ignore[misc, assignment]
    torch.cuda.graph = torch.cpu.graph = capturing  # type: ignore[misc, assignment, attr-defined]
    torch.cpu.graph_pool_handle = lambda: 0  # type: ignore[attr-defined]
    torch.cpu.is_current_stream_capturing = lambda: False  # type: ignore[attr-defined]
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.current_stream = torch.cpu.current_stream  # type: ignore[assignment]
    mode, name = MODES.find()
    setattr(mode, name, mode.is_cuda_graph)
    module, name = STREAMS.find()
    setattr(module, name, lambda *_, **__: contextlib.nullcontext(types.SimpleNamespace(stream=None)))
    _keep_what_is_captured()
    _capture_as_on_a_gpu()
    memory, target, draft, streams = map(_place, (TARGET_MEMORY, TARGET_CAPTURE, DRAFT_CAPTURE, STREAMS))
    return [
        *("torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.current_stream", "ForwardMode.is_cpu_graph"),
        *(streams, memory, f"the device that {target} sees", f"the device that {draft} sees"),
    ]


def _place(seat: Seat) -> str:
    return seat.place(installed()).removeprefix("srt.").replace(":", ".")


def _keep_what_is_captured() -> None:
    """Have what is handed to a capture kept by the graph; the functions that capture are SGLang's own."""
    backend, name = BACKEND.find()
    if name != "capture_one":
        for owner, method in (seat.find() for seat in (BACKEND, *map(_seat, OWN_CAPTURES))):
            _note_own_capture(owner, method, getattr(owner, method))
        return
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


def _note_own_capture(runner: Any, name: str, capture: Call) -> None:
    @functools.wraps(capture)
    def noted(self: Any, graph: Any, pool: Any, stream: Any, run_once_fn: Callable[[], Any]) -> Any:
        return capture(self, graph, pool, stream, captured(run_once_fn, self))

    setattr(runner, name, noted)


def _capture_as_on_a_gpu() -> None:
    """Have what decides about graphs take its model runner, or its worker, for a GPU's: the device is called ``cuda``
    then, but by its own name while a graph runner is made."""
    module, memory = TARGET_MEMORY.find()
    setattr(module, memory, lambda *_, **__: 0.0)
    owners: list[tuple[Any, str]] = []

    def while_deciding(decide: Call, owner_of: Call) -> Call:
        @functools.wraps(decide)
        def call(*args: Any, **named: Any) -> Any:
            owner = owner_of(*args, **named)
            owners.append((owner, owner.device))
            owner.device = "cuda"
            try:
                return decide(*args, **named)
            finally:
                _, owner.device = owners.pop()

        return call

    def not_while_made(init: Call) -> Call:
        @functools.wraps(init)
        def begin(*args: Any, **named: Any) -> None:
            for owner, device in owners:
                owner.device = device
            init(*args, **named)
            for owner, _ in owners:
                owner.device = "cuda"

        return begin

    def of_target(*args: Any, model_runner: Any = None) -> Any:
        return args[0] if model_runner is None else model_runner

    for seat, of in ((TARGET_CAPTURE, of_target), (DRAFT_CAPTURE, lambda worker: worker.target_worker)):
        owner, name = seat.find()
        setattr(owner, name, while_deciding(getattr(owner, name), of))
    for seat in (TARGET_RUNNER, *DRAFT_RUNNERS):
        runner = getattr(*seat.find())
        runner.__init__ = not_while_made(runner.__init__)
