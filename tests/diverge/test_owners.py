"""Whose rows are whose, site by site."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specdebug.diverge.owners import Batch


def request(kv_len: int, greedy: bool = True) -> SimpleNamespace:
    return SimpleNamespace(kv_len=kv_len, sampling=SimpleNamespace(greedy=greedy))


DECODE = Batch("speculative", [request(10), request(20, greedy=False)], (1, 2), (), branches=2, nodes=6)
PREFILL = Batch("prefill", [request(0), request(4)], (0, 1), (5, 2))


@pytest.mark.parametrize(
    ("site", "rows", "expected"),
    [
        ("verify.logits", 12, [(1, 0, 6), (2, 6, 12)]),
        ("draft.bonus", 2, [(1, 0, 1), (2, 1, 2)]),
        ("draft.forward.logits", 8, [(1, 0, 2), (2, 2, 4), (-1, 4, 8)]),
        ("draft_graph.replay.topk_p", 4, [(1, 0, 1), (2, 1, 2), (-1, 2, 4)]),
        ("draft_extend_graph.replay.input_ids", 24, [(1, 0, 6), (2, 6, 12), (-1, 12, 24)]),
        ("kv_pool.write.loc", 24, [(1, 0, 6), (2, 6, 12), (-1, 12, 24)]),
        ("draft.plan.kv_indptr", 8, [(-2, 0, 8)]),
        ("verify.logits", 13, [(-2, 0, 13)]),
        ("sampler.softmax.probs", 6, [(2, 0, 6)]),
    ],
)
def test_a_decode_step(site: str, rows: int, expected: list[tuple[int, int, int]]) -> None:
    assert DECODE.segments(site, rows) == expected


def test_the_draft_loop_writes_branches() -> None:
    assert DECODE.segments("kv_pool.write.loc", 8, drafting=True) == [(1, 0, 2), (2, 2, 4), (-1, 4, 8)]
    assert DECODE.segments("kv_pool.write.k", 8, grid=True) == [(1, 0, 2), (2, 2, 4), (-1, 4, 8)]


@pytest.mark.parametrize(
    ("site", "rows", "expected"),
    [
        ("target_prefill.input_ids", 7, [(0, 0, 5), (1, 5, 7)]),
        ("target_prefill.logits", 2, [(0, 0, 1), (1, 1, 2)]),
        ("kv_pool.write.k", 3, [(-2, 0, 3)]),
    ],
)
def test_a_prefill(site: str, rows: int, expected: list[tuple[int, int, int]]) -> None:
    assert PREFILL.segments(site, rows) == expected


def test_outside_of_any_batch() -> None:
    assert Batch("none", (), ()).segments("prefix_cache.release.first_free", 1) == [(-2, 0, 1)]
