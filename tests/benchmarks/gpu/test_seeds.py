"""The expressions say what our probes say, and stand where the engine looks those up."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from benchmarks.gpu import seeds
from specdebug import async_probe
from specdebug.engine.memory import mha_pool
from specdebug.engine.speculative import tree


@pytest.fixture
def swapped() -> Iterator[None]:
    seeds.use(True)
    yield
    seeds.use(False)


@pytest.mark.usefixtures("swapped")
def test_the_engine_uses_the_expressions() -> None:
    assert mha_pool.maybe_detect_nan is seeds.detect_nan
    assert tree.maybe_detect_oob is async_probe.maybe_detect_oob is seeds.detect_oob
    with tree.grouped():
        tree.maybe_detect_oob(torch.tensor([3, 9]), 0, 10, "test.ids")
        with pytest.raises(RuntimeError, match=r"not below 10 at test\.ids"):
            tree.maybe_detect_oob(torch.tensor([3, 10]), 0, 10, "test.ids")


def test_and_ours_again_afterwards() -> None:
    ours = {name: vars(tree)[name] for name in ("maybe_detect_oob", "grouped")}
    seeds.use(True)
    assert tree.maybe_detect_oob is not ours["maybe_detect_oob"]
    seeds.use(False)
    seeds.use(False)
    assert {name: vars(tree)[name] for name in ours} == ours
    assert async_probe.grouped is ours["grouped"]


def test_bad_tensors_fail_and_good_ones_do_not() -> None:
    pool = torch.zeros(2, 5, 3)
    pool[1, 4, 2] = math.nan
    seeds.detect_nonfinite(pool, "test.pool", torch.tensor([0, 3]))
    with pytest.raises(RuntimeError, match=r"NaN at test\.pool"):
        seeds.detect_nonfinite(pool, "test.pool", torch.tensor([[0], [4]]))
    with pytest.raises(RuntimeError, match=r"infinity at test\.x"):
        seeds.detect_inf(torch.tensor([1.0, -math.inf]), "test.x")
    ids, base = torch.tensor([4, 7]), torch.tensor([4, 5])
    seeds.detect_oob(ids, 0, 3, "test.ids", base)
    with pytest.raises(RuntimeError, match=r"below 1 at test\.ids"):
        seeds.detect_oob(ids, 1, 3, "test.ids", base)
    seeds.detect_page_aligned(torch.tensor([0, 8]), 4, "test.pages")
    with pytest.raises(RuntimeError, match=r"not a multiple of 4 at test\.pages"):
        seeds.detect_page_aligned(torch.tensor([0, 6]), 4, "test.pages")


def test_what_ours_pass_over_these_do_too() -> None:
    for nothing in (None, torch.zeros(0), torch.ones(3, dtype=torch.int64)):
        seeds.detect_nonfinite(nothing, "test.nothing")
    for nothing in (None, torch.zeros(0)):
        seeds.detect_oob(nothing, 0, 1, "test.nothing")
        seeds.detect_page_aligned(nothing, 4, "test.nothing")
