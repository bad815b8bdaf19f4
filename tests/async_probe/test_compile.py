"""Probes inside ``torch.compile(fullgraph=True)``: they neither break the graph nor fall out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch

from specdebug import async_probe
from specdebug.async_probe import (
    maybe_detect_inf,
    maybe_detect_nan,
    maybe_detect_nonfinite,
    maybe_detect_oob,
    maybe_detect_page_aligned,
)


def _model(x: torch.Tensor, ids: torch.Tensor, vocab: int) -> torch.Tensor:
    y = x / x.abs()
    maybe_detect_nan(y, "test.y")
    maybe_detect_inf(x, "test.x")
    maybe_detect_nan(None, "test.none")
    maybe_detect_oob(ids, 0, vocab, "test.ids", relative_to=ids.new_zeros(1))
    maybe_detect_page_aligned(ids, 1, "test.pages")
    maybe_detect_nonfinite(y.expand(2, -1), "test.rows", at=ids.clamp(0, 0))
    return y * 2


@pytest.fixture(params=["eager", "aot_eager"])
def compiled(request: pytest.FixtureRequest) -> Iterator[Callable[..., torch.Tensor]]:
    torch._dynamo.reset()
    yield torch.compile(_model, backend=request.param, fullgraph=True)
    torch._dynamo.reset()


def test_record(compiled: Callable[..., torch.Tensor]) -> None:
    async_probe.configure("record")
    for step, (zeros, ids) in enumerate([(0, [3]), (1, [3, 10]), (2, [-1, 3, 11])]):
        async_probe.set_step(step)
        result = compiled(torch.tensor([0.0] * zeros + [-3.0]), torch.tensor(ids), 10)
        assert result[-1].item() == -2.0
    found = async_probe.drain()
    assert [(each.signature, each.step, each.count, each.bound) for each in found] == [
        ("nan@test.y", 1, 1, None),
        ("oob@test.ids", 1, 1, "not below 10"),
        ("nan@test.rows", 1, 4, None),
        ("nan@test.y", 2, 2, None),
        ("oob@test.ids", 2, 1, "below 0"),
        ("oob@test.ids", 2, 1, "not below 10"),
        ("nan@test.rows", 2, 6, None),
    ]
    assert async_probe.reached() == dict.fromkeys(["test.y", "test.x", "test.ids", "test.pages", "test.rows"], 3)


def test_assert(compiled: Callable[..., torch.Tensor]) -> None:
    async_probe.configure("assert")
    compiled(torch.tensor([1.0]), torch.tensor([1]), 10)
    with pytest.raises(RuntimeError, match=r"nan@test\.y"):
        compiled(torch.tensor([0.0]), torch.tensor([1]), 10)
    async_probe.configure("assert", [async_probe.Rule("test.x")])  # inf / inf fails the NaN probe as well
    with pytest.raises(RuntimeError, match=r"inf@test\.x"):
        compiled(torch.tensor([math.inf]), torch.tensor([1]), 10)


def test_switched_on_and_off_again(compiled: Callable[..., torch.Tensor]) -> None:
    bad = (torch.tensor([0.0]), torch.tensor([1]), 10)
    compiled(*bad)
    async_probe.configure("record")
    compiled(*bad)
    assert len(async_probe.drain()) == 2
    async_probe.configure("off")
    compiled(*bad)
    assert async_probe.drain() == []


def test_operator_is_declared_as_it_behaves() -> None:
    operator = torch.ops.specdebug_async_probe_probes.detect.default
    ticks = torch.zeros(1, dtype=torch.int64)
    arguments = (ticks, torch.tensor([1.0]), "nan", "a.b", 0, 0, None, None)
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
