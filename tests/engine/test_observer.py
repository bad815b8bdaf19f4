"""What an engine tells those who observe it, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from specdebug.engine import Engine, EngineObserver, Request
from specdebug.engine.batch import PrefillBatch
from specdebug.engine.observer import Decision, LaunchedForward, ObservedBatch, Observers, Stage
from tests.engine.conftest import Lab
from tests.engine.driving import build, greedy, run

STEP = ["stage draft", "stage tree", "stage verify"]
FINISH = ["stage verify", "stage accept", "decided", "stage commit", "stage extend", "ahead", "ahead ends"]


class Diary(EngineObserver):
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_step_begin(self, step: int) -> None:
        self.told.append(f"step {step}")

    def on_step_end(self) -> None:
        self.told.append("step ends")

    def on_batch_begin(self, batch: ObservedBatch) -> None:
        lens = f" {batch.lens}" if batch.lens else ""
        self.told.append(f"{batch.kind} {[request.rid for request in batch.requests]}{lens}")

    def on_batch_end(self, batch: ObservedBatch) -> None:
        self.told.append(f"{batch.kind} ends")

    def on_stage(self, stage: Stage) -> None:
        self.told.append(f"stage {stage}")

    def on_decided(self, decision: Decision) -> None:
        assert decision.tree.tokens.shape[0] == len(decision.requests)
        self.told.append("decided")

    def on_ahead_begin(self) -> None:
        self.told.append("ahead")

    def on_ahead_end(self) -> None:
        self.told.append("ahead ends")

    def on_ahead_dropped(self) -> None:
        self.told.append("dropped")

    def on_prefilled(self, engine: Engine, request: Request) -> None:
        self.told.append(f"prefilled {request.rid}")

    def on_finishing(self, engine: Engine, request: Request) -> None:
        self.told.append(f"finishing {request.rid}")


def watched(lab: Lab, **changes: Any) -> tuple[Engine, Diary]:
    speculative = {"draft_model": str(lab.eagle), "num_steps": 2, "eagle_topk": 1}
    engine = build({"model": str(lab.target), "context_length": 64, "speculative": speculative}, **changes)
    diary = Diary()
    engine.observers.add(diary)
    return engine, diary


def test_a_step_is_told_from_its_beginning_to_its_end(lab: Lab) -> None:
    engine, diary = watched(lab)
    engine.add_request("a", [3, 7, 1], greedy(9))
    engine.add_request("b", [2, 4], greedy(9), speculative=False)
    run(engine, steps=1)
    assert diary.told == [
        "step 1",
        "prefill ['a', 'b'] (3, 2)",
        "prefill ['a'] (3,)",  # of the draft
        "prefill ends",
        "prefilled a",
        "prefilled b",
        "prefill ends",
        "step ends",
    ]
    diary.told.clear()
    run(engine, steps=1)
    assert diary.told == [
        "step 2",
        "plain ['b']",
        "plain ends",
        "speculative ['a']",
        *STEP,
        *FINISH,
        "speculative ends",
        "step ends",
    ]


def test_work_that_is_begun_ahead_is_told_and_so_is_that_it_is_dropped(lab: Lab) -> None:
    engine, diary = watched(lab)
    engine.view.eagle.drafts_ahead = True
    engine.add_request("a", [3, 7, 1], greedy(30))
    run(engine, steps=2)
    diary.told.clear()
    run(engine, steps=1)
    begun = diary.told.index("ahead")
    assert diary.told[begun : begun + 5] == ["ahead", *STEP, "ahead ends"]
    assert diary.told.index("stage accept") < diary.told.index("stage draft")  # this step's was begun in the one before
    assert "dropped" not in diary.told
    engine.add_request("b", [2, 4], greedy(4))
    diary.told.clear()
    run(engine, steps=1)
    assert "dropped" in diary.told


class Launches(EngineObserver):
    def __init__(self) -> None:
        self.told: list[tuple[str, int, int | None]] = []

    def on_launched(self, launch: LaunchedForward) -> None:
        self.told.append((launch.forward, launch.batch_size, launch.captured))


@pytest.mark.parametrize(
    ("graphs", "captured"), [({"capture_bs": [4]}, 4), ({"enabled": False}, None), ({"capture_bs": [1]}, None)]
)
def test_every_launch_is_told_with_its_batch_and_the_size_it_was_padded_to(
    lab: Lab, graphs: dict[str, Any], captured: int | None
) -> None:
    engine, _ = watched(lab, cuda_graph=graphs)
    launches = Launches()
    engine.observers.add(launches)
    for name, speculative in (("a", True), ("b", True), ("c", False), ("d", False)):
        engine.add_request(name, [3, 7, 1], greedy(9), speculative=speculative)
    run(engine, steps=1)
    assert launches.told == [], "prefills have no graphs"
    run(engine, steps=1)
    forwards = ("decode", "draft", "verify", "draft_extend")
    assert launches.told == [(forward, 2, captured) for forward in forwards]


def test_a_verify_that_was_begun_ahead_is_launched_a_step_later_or_never(lab: Lab) -> None:
    engine, _ = watched(lab)
    engine.view.eagle.drafts_ahead = True
    launches = Launches()
    engine.observers.add(launches)
    engine.add_request("a", [3, 7, 1], greedy(30))
    run(engine, steps=3)
    launches.told.clear()
    run(engine, steps=1)
    assert launches.told == [("verify", 1, 1), ("draft_extend", 1, 1), ("draft", 1, 1)]
    engine.add_request("b", [2, 4], greedy(9))
    run(engine, steps=1)
    launches.told.clear()
    run(engine, steps=1)
    assert launches.told == [("draft", 2, 2), ("verify", 2, 2), ("draft_extend", 2, 2), ("draft", 2, 2)]


def test_a_step_that_fails_has_ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, diary = watched(lab)
    engine.add_request("a", [3, 7, 1], greedy(9))

    def fail(*_: Any) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(engine.model.__class__, "forward", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        engine.step()
    assert diary.told == ["step 1", "prefill ['a'] (3,)", "prefill ends", "step ends"]


def test_every_observer_is_told_in_the_order_in_which_they_came_until_it_is_taken_away() -> None:
    observers, told = Observers(), []

    class Named(EngineObserver):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_stage(self, stage: Stage) -> None:
            told.append((self.name, stage))

    first, second = Named("first"), Named("second")
    observers.add(first)
    observers.add(second)
    observers.stage("draft")
    observers.remove(first)
    observers.remove(first)
    observers.stage("tree")
    assert told == [("first", "draft"), ("second", "draft"), ("second", "tree")]


class Heard(EngineObserver):
    """Rows of hidden states, and tokens that the target chose alone, with the logits that chose them."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.tokens: list[tuple[str, int]] = []

    def on_prompt(self, batch: PrefillBatch, hidden: Tensor) -> None:
        self.rows.append(hidden.shape[0])
        assert hidden.shape[0] == sum(batch.extend_lens_cpu)

    def on_sampled(self, requests: Sequence[Request], logits: Tensor, ids: Tensor) -> None:
        assert ids.tolist() == logits.argmax(dim=-1).tolist()
        self.tokens += [(request.rid, token) for request, token in zip(requests, ids.tolist(), strict=True)]


def test_what_the_target_chooses_alone_is_told(lab: Lab) -> None:
    engine, _ = watched(lab, chunked_prefill_size=4)
    heard = Heard()
    engine.observers.add(heard)
    drafted = engine.add_request("drafted", [3, 7, 1, 5, 6], greedy(6))
    plain = engine.add_request("plain", [2, 4], greedy(6), speculative=False)
    run(engine)
    assert sum(heard.rows) == 7
    alone = [token for rid, token in heard.tokens if rid == "plain"]
    assert alone == plain.output_ids
    chosen = [token for rid, token in heard.tokens if rid == "drafted"]
    assert chosen[1:] == drafted.output_ids[:1], "after the first chunk a token that is not used, then the first"
