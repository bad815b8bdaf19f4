"""What holds of every forward's graph runner, whatever it computes, and what is particular to one."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.engine.errors import IllegalAddress
from specdebug.engine.memory.arena import FillPolicy
from tests.engine.conftest import Lab
from tests.engine.graph.benches import (
    LENGTHS,
    MAX_BS,
    Bench,
    DecodeBench,
    DraftBench,
    ExtendBench,
    FrozenKVBench,
    MTPBench,
    VerifyBench,
    assert_near,
    cloned,
    outputs,
)

BENCHES: dict[str, Callable[..., Any]] = {
    "decode": DecodeBench,
    "draft": DraftBench,
    "verify": VerifyBench,
    "draft extend": ExtendBench,
    "frozen-KV draft": FrozenKVBench,
    "MTP extend": MTPBench,
}
TREE = {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6}
CHAIN = {"num_steps": 4, "eagle_topk": 1, "num_draft_tokens": 5}
EAGLE3 = {**CHAIN, "algorithm": "EAGLE3"}
ONE_STEP = {"num_steps": 1, "eagle_topk": 3, "num_draft_tokens": 4}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "decode": [{"speculative": CHAIN}],
    "draft": [{"speculative": shape} for shape in (TREE, EAGLE3, ONE_STEP)],
    "verify": [{"speculative": shape} for shape in (TREE, EAGLE3)],
    "draft extend": [{"speculative": shape} for shape in (TREE, EAGLE3)],
    "frozen-KV draft": [{"speculative": shape} for shape in (TREE, CHAIN, ONE_STEP)],
    "MTP extend": [{"layers": 2}, {"layers": 3, "chained": True}, {"layers": 4}],
}
PLANS = [
    {"attention_backend": "flashinfer", "page_size": 1},
    {"attention_backend": "flashinfer", "page_size": 4},
    {"attention_backend": "fa3", "page_size": 1},
    {"attention_backend": "fa3", "page_size": 4},
    {"attention_backend": "triton", "page_size": 4},
]
SHAPED = [
    pytest.param(kind, {**shape, **plan}, id=f"{kind}-{number}-{plan['attention_backend']}-{plan['page_size']}")
    for kind, shapes in SHAPES.items()
    for number, shape in enumerate(shapes)
    for plan in PLANS
]


def assert_every_size_equals_eager(bench: Bench) -> None:
    """Large batches first and last, so that small ones find their leftovers."""
    start = bench.contents()
    assert bool(start.isnan().any())
    for raw in (*range(MAX_BS, 0, -1), *range(2, MAX_BS + 1)):
        if not bench.runner.can_run(raw):
            continue
        given = bench.given(raw)
        bench.restore(start)
        expected = cloned(bench.eager(given))
        after_eager = bench.contents()
        bench.restore(start)
        found = outputs(bench.replay(given))
        assert not any(bool(value.isnan().any()) for value in expected.values())
        assert_near(found, expected)
        written, after = bench.written(raw), bench.contents()
        torch.testing.assert_close(after[:, written], after_eager[:, written], atol=1e-4, rtol=1e-4)
        untouched = torch.ones(bench.pool.size, dtype=torch.bool)
        untouched[written] = False
        untouched[0] = False  # padded rows write the padding slot
        assert torch.equal(after[:, untouched].nan_to_num(7.0), start[:, untouched].nan_to_num(7.0))
        assert bench.runner.check_guards() == []
    bench.restore(start)


@pytest.mark.parametrize(("kind", "options"), SHAPED)
@pytest.mark.parametrize("fill", ["zeros", "garbage"])
def test_replay_at_every_size_equals_eager(lab: Lab, kind: str, options: dict[str, Any], fill: str) -> None:
    assert_every_size_equals_eager(BENCHES[kind](lab, fill=fill, **options))


@pytest.mark.parametrize("kind", BENCHES)
@pytest.mark.parametrize("capture", [[5], [2, 4], [1, 3]])
def test_replay_pads_to_the_next_captured_size(lab: Lab, kind: str, capture: list[int]) -> None:
    bench = BENCHES[kind](lab, capture=capture)
    assert [bench.runner.can_run(raw) for raw in range(1, 7)] == [raw <= max(capture) for raw in range(1, 7)]
    assert_every_size_equals_eager(bench)


@pytest.mark.parametrize(("kind", "options"), SHAPED)
def test_padding_cannot_influence_live_rows(lab: Lab, kind: str, options: dict[str, Any]) -> None:
    """Whatever all static memory held before a padded replay, the live rows come out the same, bit for bit."""
    bench = BENCHES[kind](lab, **options)
    given, start = bench.given(3), bench.contents()
    results = []
    for policy in (FillPolicy("zeros"), FillPolicy("nan"), FillPolicy("garbage", 1), FillPolicy("garbage", 2)):
        bench.restore(start)
        for name in bench.runner.buffers._views:
            policy.paint(bench.runner.buffers[name])
        results.append(cloned(bench.replay(given)))
        assert bench.runner.check_guards() == []
    for result in results[1:]:
        assert all(torch.equal(value, result[name]) for name, value in results[0].items())


@pytest.mark.parametrize("kind", ["draft extend", "MTP extend"])
def test_what_was_not_accepted_does_not_reach_the_output(lab: Lab, kind: str) -> None:
    """All is read at the last accepted rows or before, and attention is causal."""
    bench = BENCHES[kind](lab)
    before, nodes = cloned(bench.replay(bench.given(5))), bench.spec.tree_size
    for b, accepted in enumerate(bench.accepted.tolist()):
        rows = slice(b * nodes + accepted, (b + 1) * nodes)
        bench.tokens[rows] = (bench.tokens[rows] + 1) % bench.vocab
        bench.features[rows] *= -2
    after = outputs(bench.replay(bench.given(5)))
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    bench.accepted[0] += 1
    changed = outputs(bench.replay(bench.given(5)))["hidden_states"] != before["hidden_states"]
    assert changed.flatten(1).any(dim=1).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("kind", ["draft", "draft extend", "frozen-KV draft", "MTP extend"])
@pytest.mark.parametrize("fill", ["nan", "garbage"])
def test_probes_see_padded_rows_and_find_nothing(lab: Lab, kind: str, fill: str, recording: None) -> None:
    bench = BENCHES[kind](lab, fill=fill)
    for raw in (5, 3, 1):
        bench.replay(bench.given(raw))
    assert async_probe.drain() == []
    replayed = {site: count for site, count in async_probe.reached().items() if "_graph.replay." in site}
    assert replayed
    assert set(replayed.values()) == {3}


@pytest.mark.parametrize(
    ("kind", "name", "site"),
    [
        ("draft", "topk_index", "oob@draft_graph.replay.topk_index"),
        ("draft", "req_pool_indices", "oob@draft_graph.replay.req_pool_indices"),
        ("draft", "topk_p", "nan@draft_graph.replay.topk_p"),
        ("draft", "hidden_states", "nan@draft_graph.replay.hidden_states"),
        ("draft extend", "input_ids", "oob@draft_extend_graph.replay.input_ids"),
        ("draft extend", "accept_lengths", "oob@draft_extend_graph.replay.accept_lengths"),
        ("frozen-KV draft", "input_ids", "oob@draft_graph.replay.input_ids"),
        ("frozen-KV draft", "positions", "oob@draft_graph.replay.positions"),
        ("frozen-KV draft", "req_pool_indices", "oob@draft_graph.replay.req_pool_indices"),
        ("frozen-KV draft", "hidden_states", "nan@draft_graph.replay.hidden_states"),
        ("MTP extend", "input_ids", "oob@mtp_graph.replay.input_ids"),
        ("MTP extend", "accept_lengths", "oob@mtp_graph.replay.accept_lengths"),
        ("MTP extend", "req_pool_indices", "oob@mtp_graph.replay.req_pool_indices"),
        ("MTP extend", "features", "nan@mtp_graph.replay.hidden_states"),
    ],
)
def test_a_padded_row_that_is_not_cleared_is_seen(
    lab: Lab, recording: None, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, site: str
) -> None:
    bench = BENCHES[kind](lab, capture=[4])
    buffers = bench.runner.buffers
    load = buffers.load

    def spoilt(inputs: Any) -> None:
        load(inputs)
        buffers[f"{bench.forward.name}.{name}"][-1] = float("nan") if site.startswith("nan") else 10**6

    monkeypatch.setattr(buffers, "load", spoilt)
    with contextlib.suppress(IndexError, IllegalAddress):  # what follows from it
        bench.replay(bench.given(3))
    found = async_probe.drain()[0]
    assert f"{found.kind}@{found.site}" == site


def test_a_verify_that_is_abandoned_leaves_nothing_behind(lab: Lab) -> None:
    bench = VerifyBench(lab, fill="nan")
    buffers, expected = bench.runner.buffers, cloned(bench.replay(bench.given(2)))
    bench.runner.prepare(bench.given(MAX_BS), LENGTHS)
    loaded = {name: buffers[name].clone() for name in bench.inputs}
    bench.runner.abandon()
    assert not any(torch.equal(buffers[name], value) for name, value in loaded.items())
    found = outputs(bench.replay(bench.given(2)))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_padded_rows_of_a_verify_see_everything(lab: Lab) -> None:
    """A row that may see nothing has no softmax."""
    bench = VerifyBench(lab, fill="zeros", capture=[5])
    bench.replay(bench.given(3))
    assert torch.equal(bench.runner.buffers["verify.tree_mask"][:3], bench.masks[:3])
    assert bool(bench.runner.buffers["verify.tree_mask"][3:].all())
    assert not bool(bench.runner.buffers["verify.logits"].isnan().any())
