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

from specdebug.targets.sglang.inside import graphs
from specdebug.targets.sglang.inside.graphs import ReplayedCall, backends_of, on_capture


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


def test_the_backends_of_a_runner_are_its_own_and_those_within() -> None:
    inner = SimpleNamespace()
    target, draft, extend = SimpleNamespace(), SimpleNamespace(attn_backends=[inner]), SimpleNamespace()
    runner = SimpleNamespace(
        model_runner=SimpleNamespace(attn_backend=target), attn_backend=draft, draft_attn_backend=draft,
        eagle_worker=SimpleNamespace(draft_extend_attn_backend=extend),
    )  # fmt: skip
    assert list(map(id, backends_of(runner))) == list(map(id, (target, draft, extend, inner)))
