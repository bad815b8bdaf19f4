"""What is accepted: mistakes of the walk that are seen though every token is right, and coins that decide nothing."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specdebug.engine.textbook.speculative import accept as accept_module
from specdebug.engine.textbook.speculative import worker as worker_module
from specdebug.engine.textbook.speculative.accept import Acceptance
from specdebug.engine.textbook.speculative.tree import VerifyTree
from specdebug.run.judge import MAX_WITH_TREE
from specdebug.run.oracles.acceptance import target_probs
from specdebug.verdict.outcome import Violation
from tests.run.oracles.watched import EAGLE, TREE, Watched, prompts

QUIET = {"draft_state": False}
MIXED = (0.0, 0.8, 1.3)


def changed(patch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Have ``change`` called with the function that it stands in for, and its arguments."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **options: change(original, *args, **options))


@pytest.mark.parametrize("temperatures", [(0.0,), (0.8, 1.2), MIXED])
@pytest.mark.parametrize("shape", [EAGLE, TREE], ids=["chain", "tree"])
def test_a_sound_engine_is_silent(shape: dict[str, Any], temperatures: tuple[float, ...]) -> None:
    watched = Watched({**shape, "algorithm": "EAGLE3"}, spec=QUIET)
    assert watched.serve(prompts(40, 75, 20), 30, temperatures=temperatures, top_k=20, top_p=0.9) == []
    assert watched.judge.bench.looks["acceptance"] > 15


def too_strict(original: Any, tree: VerifyTree, *args: Any, **options: Any) -> Acceptance:
    return original(replace(tree, retrieve_next_token=torch.full_like(tree.tokens, -1)), *args, **options)


def no_siblings(original: Any, tree: VerifyTree, *args: Any, **options: Any) -> Acceptance:
    return original(replace(tree, retrieve_next_sibling=torch.full_like(tree.tokens, -1)), *args, **options)


def always(
    original: Any, tree: VerifyTree, probs: torch.Tensor, coins: torch.Tensor, *args: Any, **options: Any
) -> Any:
    return original(tree, probs, coins * 0.5, *args, **options)


@pytest.mark.parametrize(("change", "shape"), [(too_strict, EAGLE), (too_strict, TREE), (no_siblings, TREE)])
@pytest.mark.parametrize(("name", "temperature"), [("accept_greedy", 0.0), ("accept_sampling", 0.8)])
def test_drafts_that_are_not_tried_are_missed(
    monkeypatch: pytest.MonkeyPatch, change: Any, shape: dict[str, Any], name: str, temperature: float
) -> None:
    changed(monkeypatch, accept_module, name, change)
    found = Watched(shape, spec=QUIET).serve(prompts(40, 75, 20), 30, temperatures=(temperature,))
    assert {each.signature for each in found} == {"mismatch@acceptance"}
    assert all(each.data["rid"] in each.detail for each in found)
    assert found[0].data["node"] == 0 or change is no_siblings


def test_the_first_findings_tell_of_the_tree_that_was_verified_in_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, accept_module, "accept_greedy", too_strict)
    watched = Watched(TREE, spec=QUIET)
    found = watched.serve(prompts(40, 75, 20), 30)
    assert [("tree" in one.data) for one in found] == [True] * MAX_WITH_TREE + [False] * (len(found) - MAX_WITH_TREE)
    for one in found[:MAX_WITH_TREE]:
        tree = one.data["tree"]
        assert (tree["rid"], tree["accepted"]) == (one.data["rid"], [0])
        assert len(tree["tokens"]) == len(tree["parents"]) == TREE["num_draft_tokens"]
        assert all(parent < node for node, parent in enumerate(tree["parents"]))
    bench, last = watched.judge.bench, watched.steps
    other = Violation("nan", "x", last, data={"rid": "r9"})
    assert bench.with_tree(other) is other  # no request of that step
    assert bench.with_tree(replace(other, step=1, data={})).data == {}  # a prefill


def test_coins_that_are_not_those_drawn_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, accept_module, "accept_sampling", always)
    found = Watched(TREE, spec=QUIET).serve(prompts(40, 75, 20), 30, temperatures=(1.0,))
    assert {each.signature for each in found} == {"mismatch@acceptance"}


def test_a_coin_that_is_tossed_for_two_things_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every walk and every token behind it is right by the coins that there are."""

    def reused(original: Any, tree: VerifyTree, probs: Any, coins: torch.Tensor, *args: Any, **options: Any) -> Any:
        coins[:, -1] = coins[:, 0]
        return original(tree, probs, coins, *args, **options)

    changed(monkeypatch, accept_module, "accept_sampling", reused)
    found = Watched(TREE, spec=QUIET).serve(prompts(40, 75, 20), 30, temperatures=MIXED)
    assert [each.signature for each in found] == ["sampling@coins"]
    assert found[0].data["rid"] in ("r1", "r2")  # r0 is greedy


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_thresholds_that_are_ignored_are_seen(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    def strict(original: Any, *args: Any, **options: Any) -> Acceptance:
        return original(*args, **{**options, "threshold_single": 1.0, "threshold_acc": 1.0})

    changed(monkeypatch, accept_module, "accept_sampling", strict)
    watched = Watched({**TREE, "threshold_single": 0.2, "threshold_acc": 0.5}, spec=QUIET)
    found = watched.serve(prompts(40, 75, 20), 30, temperatures=(temperature,))
    assert bool(found) is (temperature > 0)


def test_a_bonus_that_is_not_the_targets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, accept_module, "argmax", lambda original, logits: original(logits[:, 3:]))
    found = Watched(EAGLE, spec=QUIET).serve(prompts(40), 12)
    assert found[0].signature == "mismatch@acceptance"


def test_tokens_that_were_lost_on_their_way_out_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def shorter(original: Any, *args: Any) -> Any:
        compacted = original(*args)
        return replace(compacted, accept_lengths=(compacted.accept_lengths - 1).clamp_min(1))

    changed(monkeypatch, worker_module, "compact_accepted", shorter)
    found = Watched(EAGLE, spec=QUIET).serve(prompts(40, 75), 20)
    assert {each.signature for each in found} == {"mismatch@acceptance"}
    got, expected = found[0].data["got"], found[0].data["expected"]
    assert got[0] == expected[0] - 1


def test_what_top_k_and_top_p_leave() -> None:
    logits = np.log(np.array([0.5, 0.2, 0.2, 0.1]))

    def left(top_k: int, top_p: float, temperature: float = 1.0) -> Any:
        return target_probs(logits, SimpleNamespace(temperature=temperature, top_k=top_k, top_p=top_p))

    assert left(0, 1.0) == pytest.approx([0.5, 0.2, 0.2, 0.1])
    assert left(0, 1.0, 0.5) == pytest.approx(np.array([25, 4, 4, 1]) / 34)
    assert left(1, 1.0) == pytest.approx([1, 0, 0, 0])
    assert left(2, 1.0) == pytest.approx(np.array([5, 2, 2, 0]) / 9)  # equals of the last are kept
    assert left(0, 0.6) == pytest.approx(np.array([5, 2, 2, 0]) / 9)
    assert left(0, 0.5) is None  # float32 may find less or more than that in the first
    logits[1] += 1e-7
    assert left(2, 1.0) is None
