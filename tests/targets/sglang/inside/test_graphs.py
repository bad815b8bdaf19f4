"""A captured call: its replays see the metadata and the context of the capture, and write where its answer lies."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.targets.inside import guard
from specdebug.targets.sglang.inside import graphs
from specdebug.targets.sglang.inside.graphs import ReplayedCall, captured, capturing, on_capture


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The contexts that are in force, innermost last, in the place of SGLang's module."""
    current = ["of the capture"]

    @contextlib.contextmanager
    def forward_context(entered: str) -> Iterator[None]:
        current.append(entered)
        yield
        current.pop()

    module = types.ModuleType("forward_context")
    module.__dict__.update(get_forward_context=lambda: current[-1], forward_context=forward_context)
    monkeypatch.setitem(sys.modules, "sglang.srt.model_executor.forward_context", module)
    return current


def test_a_replay_has_what_the_capture_had_and_writes_its_answer(
    context: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SimpleNamespace(forward_metadata=1, forward_metadata_spec_decode_expand=10)
    seen: list[Any] = []

    def call() -> tuple[torch.Tensor, None]:
        seen.append((context[-1], backend.forward_metadata, backend.forward_metadata_spec_decode_expand))
        return torch.full((2,), float(len(seen))), None

    runner = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=backend), attn_backend=SimpleNamespace())
    told: list[Any] = []
    monkeypatch.setattr(graphs, "_captured", [])
    on_capture(told.append)
    graph = ReplayedCall()
    answer, _ = graph.capture(call, runner)
    assert told == [runner]
    context.append("of now")
    backend.forward_metadata, backend.forward_metadata_spec_decode_expand = 2, 20
    graph.replay()
    assert seen == [("of the capture", 1, 10)] * 2
    assert answer.tolist() == [2.0, 2.0]
    assert (context[-1], backend.forward_metadata, backend.forward_metadata_spec_decode_expand) == ("of now", 2, 20)


class Proxy:
    """As SGLang's PPProxyTensors: an object with a dict of tensors in it."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.tensors = tensors


class Slotted:
    __slots__ = ("hidden", "unset")

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


def replayed(context: list[str], answers: list[Any]) -> Any:
    """The answer of a capture, once the graph of it was replayed: the first answer, then the second."""
    runner = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=SimpleNamespace()))
    left, graph = iter(answers), ReplayedCall()
    kept = graph.capture(lambda: next(left), runner)
    graph.replay()
    return kept


@pytest.mark.parametrize(
    "form",
    [
        lambda tensor: Proxy(hidden_states=tensor, residual=tensor + 1),
        lambda tensor: {"a": [tensor, {"b": (tensor + 2,)}]},
        lambda tensor: Slotted(tensor),
        lambda tensor: SimpleNamespace(logits=tensor, ids=None, size=3, dtype=torch.float32),
    ],
)
def test_every_tensor_of_an_answer_is_written_wherever_it_lies(context: list[str], form: Any) -> None:
    def values(answer: Any) -> list[Any]:
        parts = graphs._parts(answer) or {}
        return [[each.tolist()] if isinstance(each, torch.Tensor) else values(each) for each in parts.values()]

    kept = replayed(context, [form(torch.zeros(2)), form(torch.tensor([3.0, 4.0]))])
    assert values(kept) == values(form(torch.tensor([3.0, 4.0])))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (torch.zeros(2), torch.zeros(3), "a tensor of [2] of the capture is now a tensor of [3]"),
        (torch.zeros(2), None, "a tensor of [2] of the capture is now a NoneType"),
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}, "a dict of the capture is now a dict"),
        ([torch.zeros(1)], [], "a list of the capture is now a list"),
        ({"a": {torch.zeros(1)}}, {"a": {torch.zeros(1)}}, "answer with a set in it"),
        ([print], [print], "answer with a builtin_function_or_method in it"),
    ],
)
def test_what_is_not_known_is_refused_and_noted(
    context: list[str], first: Any, second: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LOST", [])
    with pytest.raises(NotImplementedError, match="stand-in for CUDAGraph has no") as refused:
        replayed(context, [first, second])
    assert said in str(refused.value)
    assert [each.stand_in for each in guard.LOST] == [True]


def test_a_forward_is_kept_where_it_is_captured_and_only_called_where_it_warms_up(context: list[str]) -> None:
    runner = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=SimpleNamespace()))
    calls: list[int] = []

    def forward() -> torch.Tensor:
        calls.append(1)
        return torch.full((1,), float(len(calls)))

    noted, graph = captured(forward, runner), ReplayedCall()
    noted()
    with capturing(graph, pool=0, stream=None):
        kept = noted()
    graph.replay()
    assert (len(calls), kept.tolist()) == (3, [3.0])
