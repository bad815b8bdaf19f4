"""Stored draft state and drafted trees: mistakes of the engine that are seen, and rounding that is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.engine.model.models import Eagle3Draft
from specdebug.engine.textbook.speculative import tree as selection
from specdebug.engine.textbook.speculative.draft import DraftLoop, ExtendForward
from specdebug.engine.textbook.speculative.eagle import EagleDrafter
from specdebug.engine.textbook.speculative.tree import TreeBuilder, VerifyTree
from specdebug.events import Aborting
from specdebug.verdict.outcome import Violation
from tests.run.oracles.watched import EAGLE, TREE, Watched, prompts

Patch = pytest.MonkeyPatch


def changed(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Have ``change`` called with the function that it stands in for, and its arguments."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **options: change(original, *args, **options))


def first(found: list[Violation]) -> tuple[str, str]:
    """Signature and tensor of the first violation."""
    ordered = sorted(found, key=Violation.order)
    assert ordered, "nothing was found"
    return ordered[0].signature, ordered[0].data["tensor"]


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3"])
@pytest.mark.parametrize("shape", [EAGLE, TREE], ids=["chain", "tree"])
def test_a_sound_engine_is_silent(algorithm: str, shape: dict[str, Any]) -> None:
    watched = Watched({**shape, "algorithm": algorithm}, chunked_prefill_size=32)
    found = watched.serve(prompts(40, 75, 20), 14, temperatures=(0.0, 0.8))
    again = prompts(40, 75, 20)
    found += watched.serve([[*again[1], 7, 8], again[0]], 6)
    assert found == []
    assert watched.judge.bench.looks["draft_state"] == 5
    assert max(request.cached_tokens for request in watched.engine.requests.values()) > 30


def test_a_sound_engine_in_bfloat16_is_silent() -> None:
    assert Watched(TREE, dtype="bfloat16").serve(prompts(40, 75), 14) == []


def test_requests_that_are_retracted_are_compared_in_both_their_lives() -> None:
    watched = Watched(TREE, memory={"num_slots": 190}, radix_cache=False)
    assert watched.serve(prompts(40, 45, 35), 40) == []
    assert sum(request.retractions for request in watched.engine.requests.values())


def test_zero_filled_prefixes_are_read_as_zeros() -> None:
    watched = Watched({**TREE, "draft_kv_on_hit": "zero_fill"}, memory={"num_slots": 2048, "fill": "nan"})
    (piece,) = prompts(60)
    watched.serve([piece], 2, speculative=False)
    found = watched.serve([[*piece, 5, 6]], 12)
    assert watched.engine.requests["r1"].cached_tokens > 50
    assert found == []
    assert watched.judge.bench.looks["draft_state"] == 1


def test_a_zeroed_prefix_that_another_request_mends_is_read_as_mended_from_then_on() -> None:
    """The tree takes in draft KV that it lacks from whoever computed it, also under those who read zeros there."""
    watched = Watched({**TREE, "draft_kv_on_hit": "zero_fill"}, memory={"num_slots": 2048, "fill": "nan"})
    (piece,) = prompts(20)
    watched.serve([piece], 30, speculative=False)
    text_of_both = list(watched.session.request("r0").all_ids)

    def zeros() -> int:
        keys, _ = watched.session.draft_kv(watched.session.request("r1"), 0, 45)
        return int((keys == 0).flatten(2).all(-1).all(0).sum())

    watched.serve([text_of_both[:46]], 60, until=lambda: len(watched.session.request("r1").output_ids) > 8)
    assert zeros() == 45
    watched.serve([piece], 12, until=lambda: watched.session.request("r2").finish_reason is not None)
    assert list(watched.session.request("r2").all_ids) == text_of_both[:32]
    assert zeros() < 40, "nothing was mended"
    assert len(watched.session.request("r1").output_ids) < 50, "it has ended before that"
    assert watched.serve([]) == []


def wrong_row(original: Any, self: ExtendForward, inputs: Any, *rest: Any) -> Any:
    return original(self, replace(inputs, accept_lengths=(inputs.accept_lengths - 1).clamp_min(1)), *rest)


def other_request(original: Any, self: EagleDrafter, rows: Tensor, start: Any) -> None:
    original(self, rows, replace(start, hidden_states=start.hidden_states.roll(1, 0)))


def stale(original: Any, self: EagleDrafter, rows: Tensor, start: Any) -> None:
    kept = self.state.gather(rows)
    original(self, rows, replace(start, topk_index=kept.topk_index) if bool(kept.topk_p.any()) else start)


@pytest.mark.parametrize(
    ("owner", "name", "change", "tensor"),
    [
        (ExtendForward, "run", wrong_row, "hidden_states"),
        (EagleDrafter, "keep", other_request, "hidden_states"),
        (EagleDrafter, "keep", stale, "topk_index"),
    ],
)
@pytest.mark.parametrize("shape", [EAGLE, TREE], ids=["chain", "tree"])
def test_a_wrong_state_is_named(
    monkeypatch: Patch, owner: Any, name: str, change: Any, tensor: str, shape: dict[str, Any]
) -> None:
    changed(monkeypatch, owner, name, change)
    found = Watched(shape).serve(prompts(40, 75), 14)
    assert first(found) == ("mismatch@draft_state", tensor)
    assert all(each.data["rid"] in each.detail and each.step for each in found)


def untranslated(original: Any, self: Eagle3Draft, draft_ids: Tensor) -> Tensor:
    return draft_ids


@pytest.mark.parametrize("shape", [EAGLE, TREE], ids=["chain", "tree"])
def test_a_draft_vocabulary_that_is_not_translated_is_seen(monkeypatch: Patch, shape: dict[str, Any]) -> None:
    changed(monkeypatch, Eagle3Draft, "to_target_ids", untranslated)
    found = Watched({**shape, "algorithm": "EAGLE3"}).serve(prompts(40, 75), 14)
    assert first(found) == ("mismatch@draft_tree", "tokens")


def other_parent(original: Any, self: DraftLoop, step: int, tokens: Tensor, hidden: Tensor, *rest: Any) -> Any:
    return original(self, step, tokens, hidden.roll(1, 0) if step else hidden, *rest)


def test_another_parents_hidden_state_in_the_draft_loop_is_seen(monkeypatch: Patch) -> None:
    changed(monkeypatch, DraftLoop, "_forward", other_parent)
    assert first(Watched(TREE).serve(prompts(40, 75), 14)) == ("mismatch@draft_tree", "tokens")


def with_tree(**change: Callable[[VerifyTree], Tensor]) -> Callable[..., VerifyTree]:
    def built(original: Any, *args: Any) -> VerifyTree:
        tree: VerifyTree = original(*args)
        return replace(tree, **{name: make(tree) for name, make in change.items()})

    return built


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        (with_tree(positions=lambda tree: tree.positions + 1), "positions"),
        (with_tree(retrieve_next_sibling=lambda tree: torch.full_like(tree.tokens, -1)), "links"),
        (with_tree(retrieve_next_token=lambda tree: torch.full_like(tree.tokens, -1)), "links"),
        (with_tree(mask=lambda tree: tree.mask.roll(1, 1)), "mask"),
        (with_tree(tokens=lambda tree: tree.tokens + torch.eye(10, dtype=torch.int64)[3]), "tokens"),
        (with_tree(tokens=lambda tree: tree.tokens.roll(1, 0)), "bonus"),
    ],
)
def test_a_tree_that_does_not_hold_together_is_named(monkeypatch: Patch, change: Any, tensor: str) -> None:
    changed(monkeypatch, TreeBuilder, "build", change)
    watched = Watched(TREE)
    assert first(watched.serve(prompts(40, 75), 14)) == ("mismatch@draft_tree", tensor)


def worst_first(original: Any, logits: Tensor, k: int) -> Any:
    probs, ids = original(logits, k)
    return probs.flip(1), ids.flip(1)


def test_siblings_that_are_not_best_first_are_seen(monkeypatch: Patch) -> None:
    changed(monkeypatch, selection, "top_k_probs", worst_first)
    assert first(Watched(TREE).serve(prompts(40, 75), 14)) == ("mismatch@draft_tree", "order")


def test_requests_under_way_are_compared_when_a_run_fails_or_they_are_aborted(monkeypatch: Patch) -> None:
    changed(monkeypatch, EagleDrafter, "keep", other_request)
    watched = Watched(EAGLE)
    watched.serve(prompts(40, 75), 14, until=lambda: watched.steps == 3)
    assert watched.found == []
    watched.judge.on(Aborting(watched.engine.requests["r0"]))
    watched.engine.abort("r0")
    assert [each.data["rid"] for each in watched.found] == ["r0"]
    watched.judge.inspect(watched.steps, failed=True)
    assert [(each.data["rid"], each.step) for each in watched.found] == [("r0", 1), ("r1", 1)]
