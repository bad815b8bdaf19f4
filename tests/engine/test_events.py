"""What an engine tells those who observe it, and in which order."""

from typing import Any

import pytest

from specdebug.engine import Engine
from specdebug.events import (
    AheadBegan,
    AheadDropped,
    AheadEnded,
    BatchBegan,
    BatchEnded,
    Decided,
    Event,
    Finishing,
    Launched,
    Prefilled,
    PromptComputed,
    StageEntered,
    StepBegan,
    StepOver,
    TokensSampled,
)
from tests.engine.conftest import Lab
from tests.engine.driving import build, greedy, run
from tests.heard import Heard

STEP = ["stage draft", "stage tree", "stage verify"]
FINISH = ["stage verify", "stage accept", "decided", "stage commit", "stage extend", "ahead", "ahead ends"]


def line(event: Event) -> str:
    match event:
        case StepBegan(step):
            return f"step {step}"
        case StepOver(failed):
            return "step fails" if failed else "step ends"
        case BatchBegan(kind, requests, lens):
            return f"{kind} {[request.rid for request in requests]}" + (f" {lens}" if lens else "")
        case BatchEnded(kind):
            return f"{kind} ends"
        case StageEntered(stage):
            return f"stage {stage}"
        case Decided(requests, tokens):
            assert tokens.shape[0] == len(requests)
            return "decided"
        case Prefilled(request):
            return f"prefilled {request.rid}"
        case Finishing(request):
            return f"finishing {request.rid}"
    return {AheadBegan: "ahead", AheadEnded: "ahead ends", AheadDropped: "dropped"}[type(event)]


class Diary(Heard):
    """All of an engine's events but those of single forwards, a line each."""

    def __init__(self) -> None:
        super().__init__(StepBegan, StepOver, BatchBegan, BatchEnded, StageEntered, Decided, Prefilled, Finishing,
                         AheadBegan, AheadEnded, AheadDropped)  # fmt: skip

    def told(self) -> list[str]:
        """The lines since the last call."""
        events, self.events = self.events, []
        return [line(event) for event in events]


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
    assert diary.told() == [
        "step 1",
        "prefill ['a', 'b'] (3, 2)",
        "prefill ['a'] (3,)",  # of the draft
        "prefill ends",
        "prefilled a",
        "prefilled b",
        "prefill ends",
        "step ends",
    ]
    run(engine, steps=1)
    plain, speculative = ["plain ['b']", "plain ends"], ["speculative ['a']", *STEP, *FINISH, "speculative ends"]
    assert diary.told() == ["step 2", *plain, *speculative, "step ends"]


def test_work_that_is_begun_ahead_is_told_and_so_is_that_it_is_dropped(lab: Lab) -> None:
    engine, diary = watched(lab)
    engine.view.eagle.drafts_ahead = True
    engine.add_request("a", [3, 7, 1], greedy(30))
    run(engine, steps=2)
    diary.told()
    run(engine, steps=1)
    told = diary.told()
    begun = told.index("ahead")
    assert told[begun : begun + 5] == ["ahead", *STEP, "ahead ends"]
    assert told.index("stage accept") < told.index("stage draft")  # this step's was begun in the one before
    assert "dropped" not in told
    engine.add_request("b", [2, 4], greedy(4))
    run(engine, steps=1)
    assert "dropped" in diary.told()


@pytest.mark.parametrize(
    ("graphs", "captured"), [({"capture_bs": [4]}, 4), ({"enabled": False}, None), ({"capture_bs": [1]}, None)]
)
def test_every_launch_is_told_with_its_batch_and_the_size_it_was_padded_to(
    lab: Lab, graphs: dict[str, Any], captured: int | None
) -> None:
    engine, _ = watched(lab, cuda_graph=graphs)
    launches = Heard(Launched)
    engine.observers.add(launches)
    for name, speculative in (("a", True), ("b", True), ("c", False), ("d", False)):
        engine.add_request(name, [3, 7, 1], greedy(9), speculative=speculative)
    run(engine, steps=1)
    assert launches.events == [], "prefills have no graphs"
    run(engine, steps=1)
    assert launches.events == [Launched(each, 2, captured) for each in ("decode", "draft", "verify", "draft_extend")]


def test_a_step_that_fails_has_ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, diary = watched(lab)
    engine.add_request("a", [3, 7, 1], greedy(9))

    def fail(*_: Any) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(engine.model.__class__, "forward", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        engine.step()
    assert diary.told() == ["step 1", "prefill ['a'] (3,)", "prefill ends", "step fails"]


def test_what_the_target_chooses_alone_is_told(lab: Lab) -> None:
    engine, _ = watched(lab, chunked_prefill_size=4)
    tokens: list[tuple[str, int]] = []

    def chosen(event: TokensSampled) -> None:
        assert event.ids.tolist() == event.logits.argmax(dim=-1).tolist()
        tokens.extend((request.rid, token) for request, token in zip(event.requests, event.ids.tolist(), strict=True))

    prompts = Heard(PromptComputed)
    engine.observers.add(prompts)
    engine.observers.add(Heard(TokensSampled, then=chosen))
    drafted = engine.add_request("drafted", [3, 7, 1, 5, 6], greedy(6))
    plain = engine.add_request("plain", [2, 4], greedy(6), speculative=False)
    run(engine)
    assert all(event.hidden.shape[0] == sum(event.lens) for event in prompts.events)
    assert sum(event.hidden.shape[0] for event in prompts.events) == 7
    assert [token for rid, token in tokens if rid == "plain"] == plain.output_ids
    first = [token for rid, token in tokens if rid == "drafted"]
    assert first[1:] == drafted.output_ids[:1], "after the first chunk a token that is not used, then the first"
