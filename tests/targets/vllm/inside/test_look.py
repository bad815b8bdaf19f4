"""vLLM's drafts and verifies, told as those of our engine: a chain, what it was drafted from, what was accepted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from specdebug.base.features import NONE, Features
from specdebug.events import Decided, DraftForward, Observers
from specdebug.targets.requests import NotShown, RequestView
from specdebug.targets.vllm.inside.boundaries import Boundaries
from specdebug.targets.vllm.inside.look import DraftLook
from tests.targets.vllm.inside.fake_runner import Runner


def request(rid: str) -> RequestView:
    asked = Features(frequency_penalty=0.5) if rid == "steered" else NONE
    return cast(RequestView, SimpleNamespace(rid=rid, sampling=SimpleNamespace(features=asked)))


class Told:
    """Remembers what it is told, and what requests stored when a verify was decided."""

    hears = (Decided, DraftForward)

    def __init__(self, num_steps: int = 3) -> None:
        self.runner, observers = Runner(num_steps), Observers()
        observers.add(self)
        self.look = DraftLook(request, observers, num_steps)
        Boundaries(self.runner, [self.look])
        self.decided: list[Decided] = []
        self.forwards: list[DraftForward] = []
        self.stored: list[Any] = []

    def on(self, event: Any) -> None:
        if isinstance(event, DraftForward):
            self.forwards.append(event)
            return
        self.decided.append(event)
        self.stored.append(self.look.stored(event.requests))


def test_a_prefill_leaves_what_the_first_draft_is_read_from() -> None:
    told = Told()
    told.runner.add("a", [1, 2, 3])
    told.runner.step(a=3)
    assert (told.decided, told.forwards) == ([], [])
    stored = told.look.stored([request("a")])
    facts = (stored.seq_lens, stored.bonus, stored.topk_index, stored.hidden_states)
    assert [each.tolist() for each in facts] == [[3], [4], [[5]], [[4.0]]]
    assert stored.topk_p.item() == pytest.approx(0.2137, abs=1e-4)  # e of e + 10
    told.look.forget("a")
    with pytest.raises(NotShown):
        told.look.stored([request("a")])


def test_a_verify_is_told_with_the_forwards_that_drafted_its_chain_and_what_that_was_drafted_from() -> None:
    told = Told()
    told.runner.add("a", [1, 2, 3])
    told.runner.step(a=3)
    told.runner.step(a=4)
    (decided,), (stored,) = told.decided, told.stored
    assert decided.tokens.tolist() == [[4, 5, 6, 7]]
    assert decided.positions.tolist() == [[3, 4, 5, 6]]
    assert decided.mask.long().tolist() == [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]]
    assert decided.retrieve_next_token.tolist() == [[1, 2, 3, -1]]
    assert decided.retrieve_next_sibling.tolist() == [[-1] * 4]
    assert decided.logits.argmax(-1).tolist() == [5, 6, 7, 8]
    assert decided.predict.tolist() == [5, 6, 7, 8]
    assert decided.accept_index.tolist() == [[0, 1, 2, 3]]
    assert decided.num_correct_drafts.tolist() == [3]
    assert (stored.seq_lens.tolist(), stored.bonus.tolist()) == ([3], [4])
    assert [each.tokens.tolist() for each in told.forwards] == [[5], [6]]
    assert [each.logits.argmax(-1).tolist() for each in told.forwards] == [[6], [7]]
    assert told.look.stored([request("a")]).seq_lens.tolist() == [7]


def test_a_verify_of_a_request_whose_logits_are_changed_behind_the_look_is_not_told() -> None:
    told = Told()
    told.runner.add("steered", [1, 2, 3])
    told.runner.add("a", [1, 2])
    told.runner.step(steered=3, a=2)
    told.runner.step(steered=4, a=4)
    (decided,) = told.decided
    assert [each.rid for each in decided.requests] == ["a"]


def test_rejected_drafts_are_no_nodes_of_the_path_and_rows_of_a_batch_are_numbered_on() -> None:
    told = Told()
    told.runner.add("a", [1, 2, 3])
    told.runner.add("b", [1, 2])
    told.runner.step(a=3, b=2)
    told.runner.drafts["b"] = [4, 9, 9]
    told.runner.step(b=4, a=4)
    (decided,) = told.decided
    assert [each.rid for each in decided.requests] == ["b", "a"]
    assert decided.accept_index.tolist() == [[0, 1, -1, -1], [4, 5, 6, 7]]
    assert decided.num_correct_drafts.tolist() == [1, 3]
    assert [each.tokens.tolist() for each in told.forwards] == [[4, 5], [5, 6]]


def test_a_chain_that_was_cut_is_not_told() -> None:
    told = Told()
    told.runner.add("a", [1, 2, 3])
    told.runner.step(a=3)
    told.runner.step(a=3)
    assert told.decided == []
