"""CUDA graphs without CUDA, under SGLang's own graph runners: their padding, static buffers and metadata are theirs.

A replay calls the captured function again over the same static buffers, and puts what it returns where the capture's
answer lies, as a graph would. Two things a graph keeps are kept: the forward context, and each attention backend's
metadata, of the capture; what Python would find there now is not what a graph reads. What the function does on the host
happens at each replay, which is the one difference.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.sglang.inside.refusals import ours, refusal

_GRAPH = "CUDAGraph"
_captured: list[Callable[[Any], None]] = []


def on_capture(told: Callable[[Any], None]) -> None:
    """Have a function called with each graph runner whenever it has captured a graph."""
    _captured.append(told)


_METADATA = ("forward_metadata", "forward_metadata_spec_decode_expand")
"""The attributes of SGLang's attention backends that hold what a forward was planned with."""


_capturing: list[ReplayedCall] = []
"""The graph that is captured now; it is one at a time."""


class ReplayedCall:
    """In the place of ``torch.cuda.CUDAGraph``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._call: Callable[[], Any]
        self._context: Any = None
        self._planned: list[_Planned] = []
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
            self._planned = [_Planned.of(each) for each in backends_of(runner)]
        self._answer = call()
        for told in _captured:
            told(runner)
        return self._answer

    def replay(self) -> None:
        from sglang.srt.model_executor.forward_context import forward_context

        with torch.inference_mode(), _metadata(self._planned), forward_context(self._context):
            _write(self._answer, self._call())


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


@dataclass(frozen=True)
class _Planned:
    """The metadata that a backend has at some time, by the names of its attributes."""

    backend: Any
    metadata: dict[str, Any]

    @classmethod
    def of(cls, backend: Any) -> _Planned:
        return cls(backend, {name: getattr(backend, name) for name in _METADATA if hasattr(backend, name)})

    def restore(self) -> None:
        for name, value in self.metadata.items():
            setattr(self.backend, name, value)


@contextlib.contextmanager
def _metadata(planned: Sequence[_Planned]) -> Iterator[None]:
    """Give backends the metadata of a capture meanwhile."""
    now = [_Planned.of(each.backend) for each in planned]
    for each in planned:
        each.restore()
    try:
        yield
    finally:
        for each in now:
            each.restore()


_ATOMS = (bool, int, float, str, bytes, enum.Enum, torch.dtype, torch.device, type(None))
"""The types of an answer, beside tensors, that a graph keeps as they were at the capture."""


def _write(kept: Any, new: Any) -> None:
    """Copy an answer over the one that is kept, tensor by tensor. Raises NotImplementedError for one that is of another
    form, or has parts of a kind that is not known: a replay that left a part as the capture had it would be wrong
    without a word."""
    if isinstance(kept, Tensor):
        if not isinstance(new, Tensor) or new.shape != kept.shape:
            raise refusal(_GRAPH, f"answer in which {_form(kept)} of the capture is now {_form(new)}")
        if kept.data_ptr() != new.data_ptr():
            kept.copy_(new)
        return
    if isinstance(kept, _ATOMS):
        return
    old, now = _parts(kept), _parts(new)
    if old is None:
        raise refusal(_GRAPH, f"answer with {_form(kept)} in it")
    if now is None or old.keys() != now.keys():
        raise refusal(_GRAPH, f"answer in which {_form(kept)} of the capture is now {_form(new)}")
    for name, part in old.items():
        _write(part, now[name])


def _parts(answer: Any) -> dict[Any, Any] | None:
    """The parts of an answer by their places in it; None of a kind that is not known."""
    if isinstance(answer, Mapping):
        return dict(answer)
    if isinstance(answer, (tuple, list)):
        return dict(enumerate(answer))
    if callable(answer) or isinstance(answer, Set):
        return None
    if hasattr(answer, "__dict__"):
        return dict(vars(answer))
    slots = getattr(type(answer), "__slots__", None)
    return None if slots is None else {name: getattr(answer, name) for name in slots if hasattr(answer, name)}


def _form(part: Any) -> str:
    return f"a tensor of {list(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"


def backends_of(runner: Any) -> list[Any]:
    """The attention backends that a graph runner's forward may use, those within others included."""
    worker = getattr(runner, "eagle_worker", None)
    found = [
        runner.model_runner.attn_backend,
        getattr(runner, "attn_backend", None),
        getattr(runner, "draft_attn_backend", None),
        getattr(runner, "draft_extend_attn_backend", None),
        getattr(worker, "draft_extend_attn_backend", None),
    ]
    every = [each for each in found if each is not None]
    every += [inner for each in every for inner in getattr(each, "attn_backends", ())]
    return list({id(each): each for each in every}.values())
