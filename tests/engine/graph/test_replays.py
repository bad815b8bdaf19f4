"""What holds of every forward's graph runner, whatever it computes, and what is particular to one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.engine.errors import IllegalAddress
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.textbook.speculative.verify import PreparedVerify, VerifyStage
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
    Outputs,
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


@pytest.mark.parametrize("kind", BENCHES)
def test_outputs_are_views_until_the_next_replay(lab: Lab, kind: str) -> None:
    bench = BENCHES[kind](lab, capture=[5])
    small, large = bench.given(1), bench.given(MAX_BS)
    first = outputs(bench.replay(large))
    kept = {name: value.clone() for name, value in first.items()}
    second = outputs(bench.replay(small))
    arena = bench.runner.buffers[bench.inputs[0]].untyped_storage().data_ptr()
    for name, value in first.items():
        assert value.untyped_storage().data_ptr() == arena, name
        assert value.data_ptr() == second[name].data_ptr()
        rows = second[name].shape[0]
        assert torch.equal(value[:rows], second[name])
        if value.is_floating_point():
            assert not torch.equal(value[rows:], kept[name][rows:]), "padded rows were computed too"
    again = outputs(bench.replay(large))
    assert all(torch.equal(again[name], value) for name, value in kept.items())


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


@pytest.mark.parametrize("kind", BENCHES)
@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_inputs_are_repainted_between_replays(lab: Lab, kind: str, fill: str) -> None:
    """Under a poisoning policy a replay leaves nothing behind; under ``zeros`` what was copied stays."""
    bench = BENCHES[kind](lab, fill=fill)
    buffers, given = bench.runner.buffers, bench.given(2)
    left: list[Outputs] = []
    for _ in range(2):
        result = cloned(bench.replay(given))
        left.append({name: buffers[name].clone() for name in bench.inputs})
        assert all(torch.equal(value, outputs(bench.replay(given))[name]) for name, value in result.items())
    for name in bench.inputs:
        first, second = left[0][name], left[1][name]
        if not bench.fill.poisons:
            assert torch.equal(first, second), name
            assert bool(first.any())
        elif first.is_floating_point() and bench.fill.mode == "nan":
            assert bool(first.isnan().all()), name
        else:
            assert not torch.equal(first, second), name


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


def test_one_step_has_no_parents(lab: Lab) -> None:
    bench = DraftBench(lab, speculative=ONE_STEP)
    result = bench.replay(bench.given(3))
    assert result.parent_list.shape == (3, 0)
    assert result.draft_tokens.shape == result.top_scores_index.shape == (3, 3)


@pytest.mark.parametrize("options", PLANS, ids=str)
def test_what_is_planned_by_bounds_drafts_the_same(lab: Lab, options: dict[str, Any], recording: None) -> None:
    """A step that is begun early knows its lengths to a tree's size, of which at least one token was accepted."""
    bench = FrozenKVBench(lab, **options)
    for raw in (3, 5):
        given = bench.given(raw)
        known = cloned(bench.replay(given))
        bounds = tuple(length + bench.spec.tree_size - 1 for length in LENGTHS[:raw])
        early = bench.runner.replay(given, bounds)
        assert all(torch.equal(value, getattr(early, name)) for name, value in known.items())
    assert async_probe.drain() == []


def test_the_last_positions_are_kept_for_the_next_extend(lab: Lab) -> None:
    """Those before the step move on as far as tokens were accepted; of four accepted ones the last two are kept."""
    bench = MTPBench(lab)
    found, nodes = bench.replay(bench.given(5)), bench.spec.tree_size
    tokens, features = bench.tokens.view(5, nodes), bench.features.view(5, nodes, -1)
    for b, accepted in enumerate(bench.accepted.tolist()):
        ids = torch.cat([bench.recent[0][b], tokens[b, :accepted]])
        hidden = torch.cat([bench.recent[1][b], features[b, :accepted]])
        assert torch.equal(found.next_ids[b], ids[-2:])
        assert torch.equal(found.hidden_states[b], hidden[-2:])


@pytest.mark.parametrize(("algorithm", "layers"), [("EAGLE", 1), ("EAGLE3", 3)])
def test_features_are_what_the_draft_reads(lab: Lab, algorithm: str, layers: int) -> None:
    bench = VerifyBench(lab, speculative={"algorithm": algorithm})
    result = bench.replay(bench.given(2))
    assert result.logits.shape == (2 * bench.nodes, lab.vocab)
    assert result.features.shape == (2 * bench.nodes, layers * bench.target.config.hidden_size)


def test_a_verify_that_is_abandoned_leaves_nothing_behind(lab: Lab) -> None:
    bench = VerifyBench(lab, fill="nan")
    buffers, expected = bench.runner.buffers, cloned(bench.replay(bench.given(2)))
    bench.runner.prepare(bench.given(MAX_BS), LENGTHS)
    loaded = {name: buffers[name].clone() for name in bench.inputs}
    bench.runner.abandon()
    assert not any(torch.equal(buffers[name], value) for name, value in loaded.items())
    found = outputs(bench.replay(bench.given(2)))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_node_that_is_no_ancestor_is_not_seen(lab: Lab) -> None:
    """Swap the token of a leaf: only its own row changes."""
    bench = VerifyBench(lab)
    leaf = bench.nodes - 1
    before = cloned(bench.replay(bench.given(2)))
    bench.tokens[leaf] = (bench.tokens[leaf] + 1) % bench.vocab
    changed = (outputs(bench.replay(bench.given(2)))["logits"] != before["logits"]).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [leaf]


def test_padded_rows_of_a_verify_see_everything(lab: Lab) -> None:
    """A row that may see nothing has no softmax."""
    bench = VerifyBench(lab, fill="zeros", capture=[5])
    bench.replay(bench.given(3))
    assert torch.equal(bench.runner.buffers["verify.tree_mask"][:3], bench.masks[:3])
    assert bool(bench.runner.buffers["verify.tree_mask"][3:].all())
    assert not bool(bench.runner.buffers["verify.logits"].isnan().any())


@pytest.mark.parametrize(("kind", "options"), [one for one in SHAPED if one.values[0] == "verify"])
@pytest.mark.parametrize("raw", [1, 3, 5])
def test_lengths_of_a_verify_may_be_known_only_at_launch(
    lab: Lab, kind: str, options: dict[str, Any], raw: int, recording: None
) -> None:
    """Planned for what they can be at most, in buffers of garbage: the same outputs, no probe finds anything, and
    a library that schedules on the host is told what is."""
    bench = VerifyBench(lab, **options)
    given, start = bench.given(raw), bench.contents()
    expected = cloned(bench.replay(given))
    bench.restore(start)
    again = VerifyBench(lab, **options)
    parts: Any = SimpleNamespace(spec=again.spec, memory=SimpleNamespace(target=again.pool))
    stage, lens = VerifyStage(parts, again.launcher), tuple(given.seq_lens.tolist())
    longest = tuple(length + again.nodes - 1 for length in lens)
    told: list[Any] = []
    bind = again.launcher.attention.bind
    again.launcher.attention.bind = lambda plan, *rest, **flags: told.append(plan) or bind(plan, *rest, **flags)
    planned = again.runner.prepare(again.given(raw), longest, slack=raw * (again.nodes - 1))
    found = outputs(stage.run(PreparedVerify(given, planned), lens))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert async_probe.drain() == []
    assert again.runner.check_guards() == []
    if options["attention_backend"] != "fa3":
        padding = planned.bs - raw
        (plan,) = told
        assert plan.kv_lens_host == tuple(length + again.nodes for length in lens) + (again.nodes,) * padding
