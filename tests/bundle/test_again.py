"""A bundle's run and its repetition: exact, other by rounding, or different. The engine is a stand-in that says what it
chose; the choices are weighed for real, by the shipped models."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specdebug.bundle.again import Again, run_again
from specdebug.bundle.content import read_bundle, run_traced, write_bundle
from specdebug.bundle.partings import Parting, weigh
from specdebug.campaign.loops.replay import Replay
from specdebug.report.formats import to_json
from specdebug.report.replay import replay_document
from specdebug.run.dense import DenseReference
from specdebug.run.oracles.lossless import TIE_MARGIN
from specdebug.scenario.library import Library
from specdebug.targets.options import EngineShape
from specdebug.workers.job import WorkerEnd
from tests.bundle.bundles import MINI, arm_run
from tests.run.fakes import FakePool, ListSink

RIDS = ("first.0", "again.0")
Script = Any


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Two requests with the prompt after which the model is most in two minds."""
    prompt = ", ".join(map(str, narrowest()))
    text = MINI.read_text().replace("5, 6, 7, 8, 9, 10, 11, 12", prompt).replace("128", "256")
    text = text.replace("model: tiny", "model: tiny\n  dtype: bfloat16")
    file = tmp_path / "mini.yaml"
    file.write_text(text)
    return file


def serving(
    first: int, again: int, *, accept: int = 1, kind: str = "prefill", violation: str | None = None, weighs: bool = True
) -> Script:
    """A run in which these are the requests' first tokens. ``accept``: of the verify after it, which emits the same
    tokens whatever it is; ``weighs``: whether the worker that weighs gets to its end."""

    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        if job.name == "weighing":
            sink = ListSink()
            if weighs:
                weigh(job.payload, sink)
            return sink.events, WorkerEnd("done" if weighs else "memory", 0, 0.1, 1.0, "")
        none: dict[str, Any] = {"cached": {}, "finished": [], "retracted": [], "s": 0.1}
        events: list[dict[str, Any]] = [{"event": "setup", "probes_enabled": 0, "requests": 2}]
        events += [{"event": "arrive", "rid": rid, "group": rid[:-2], "prompt_tokens": 2} for rid in RIDS]
        emitted = dict(zip(RIDS, ([first], [again]), strict=True))
        events.append(
            {"event": "step", "step": 1, "kind": kind, "rids": list(RIDS), "emitted": emitted, "accept": {}, **none}
        )
        facts = {"emitted": {RIDS[0]: [7]}, "accept": {RIDS[0]: accept}}
        events.append({"event": "step", "step": 2, "kind": "decode", "rids": [RIDS[0]], **facts, **none})
        if violation:
            events.append({"event": "violation", "kind": violation, "site": "x", "step": 2, "detail": "d"})
        events.append({"event": "done", "stages_s": {}, "peak_rss_mb": 1.0})
        return events, WorkerEnd("done", 0, 0.5, 10.0, "")

    return script


def again(scenario: Path, recorded: Script, now: Script, interrupt_at: str | None = None) -> Again:
    """Make the bundle of one run, and have it replayed by another."""
    run = arm_run(scenario)
    done = run_traced(FakePool(recorded), Library(), run)  # type: ignore[arg-type]
    assert done is not None
    path = scenario.with_suffix(".specdebug")
    requests = Library().workload(run.scenario, run.arm, run.seed)
    versions = {"python": "3.99", "cpu capability": "AVX9"}
    write_bundle(path, done, requests, versions, replay_document(Replay(run.scenario, (done.result,), 0.5)), force=True)
    return run_again(FakePool(now, interrupt_at), read_bundle(path, None))  # type: ignore[arg-type]


def told(answer: Again) -> dict[str, Any]:
    document: dict[str, Any] = answer.to_dict()["bundle"]
    to_json(document)  # has no number that JSON has no word for
    return document


def test_a_run_that_came_out_as_recorded_is_exact(scenario: Path) -> None:
    best, *_ = ranked(narrowest())
    answer = again(scenario, serving(best, best), serving(best, best))
    document = told(answer)
    assert (document["status"], document["reproduced"], document["first_difference"]) == ("exact", True, None)
    assert answer.lines[0].startswith("reproduced: verdict, signature and trace hash ")


def test_a_narrow_choice_is_rounding(scenario: Path) -> None:
    best, second, _ = ranked(narrowest())
    answer = again(scenario, serving(best, best, violation="nan"), serving(best, second, violation="nan"))
    document = told(answer)
    assert (document["status"], document["reproduced"]) == ("rounding", False)
    first = document["first_difference"]
    assert (first["kind"], first["narrow"], first["step"], first["request"]) == ("token", True, 1, "again.0")
    assert (first["position"], first["recorded"], first["now"], first["preferred"]) == (0, best, second, best)
    assert 0 < first["gap"] < first["allowed"]
    said = answer.lines
    assert said[0].startswith("same verdict and signature; other hash by rounding: step 1, again.0 output 0: token ")
    assert "  cpu capability: recorded AVX9, here none" in said  # the stand-in tells nothing of its machine
    assert "  python: recorded 3.99, here " in "\n".join(said)
    assert answer.replay.exit_code == 1  # the plain verdict


def test_another_schedule_is_different(scenario: Path) -> None:
    best, *_ = ranked(narrowest())
    document = told(again(scenario, serving(best, best), serving(best, best, kind="decode")))
    assert (document["status"], document["first_difference"]["kind"]) == ("different", "schedule")


def test_another_number_of_accepted_drafts_is_weighed(scenario: Path) -> None:
    best, *_ = ranked(narrowest())
    document = told(again(scenario, serving(best, best), serving(best, best, accept=3)))
    first = document["first_difference"]
    assert (first["kind"], first["recorded"], first["now"], first["step"]) == ("draft", 1, 3, 2)
    assert first["narrow"] == (first["gap"] is not None and first["gap"] <= first["allowed"])
    assert document["status"] == ("rounding" if first["narrow"] else "different")


def test_what_cannot_be_weighed_is_not_excused(scenario: Path) -> None:
    best, second, _ = ranked(narrowest())
    answer = again(scenario, serving(best, best), serving(second, best, weighs=False))
    assert told(answer)["status"] == "different"
    assert told(answer)["first_difference"]["gap"] is None
    assert "how narrow that was could not be found out" in "\n".join(answer.lines)


def test_an_interrupt_of_the_run_or_of_the_weighing_is_one(scenario: Path) -> None:
    best, second, _ = ranked(narrowest())
    for at in ("fixed", "weighing"):
        answer = again(scenario, serving(best, best), serving(second, best), at)
        assert (told(answer)["status"], told(answer)["reproduced"]) == ("interrupted", None)
        assert answer.replay.exit_code == 130
        assert answer.lines == ("interrupted; recorded is pass, no signature",)


MODEL, DRAFT = "tiny", "tiny-eagle"
TEXT = tuple((7919 * n * n + 31 * n) % 2000 + 3 for n in range(120))
"""Tokens in no order, after which the model is often in two minds."""


@cache
def reference() -> DenseReference:
    return DenseReference(MODEL, DRAFT)


def ranked(ids: tuple[int, ...]) -> list[int]:
    """What the model puts after ``ids``: the best token, the second best, one that is far from it."""
    import torch

    from specdebug.reference.target import target_logits

    one = reference()
    with torch.no_grad():
        order = target_logits(one.weights, one.config, one._states(ids).hidden[len(ids) - 1]).argsort(descending=True)
    return [int(order[0]), int(order[1]), int(order[len(order) // 2])]


def weighed(parting: Parting, dtype: str = "bfloat16", shape: tuple[int, int, int] | None = None) -> dict[str, float]:
    sink = ListSink()
    weigh({"shape": EngineShape(MODEL, DRAFT, "cpu", dtype, "triton", tree=shape), "partings": [parting]}, sink)
    (event,) = sink.events
    return event


@cache
def narrowest() -> tuple[int, ...]:
    """Where the model prefers a token least."""
    return min((TEXT[:n] for n in range(8, len(TEXT))), key=lambda ids: reference().next_token(ids)[1])


@pytest.mark.parametrize("swapped", [False, True])
def test_two_tokens_are_as_near_as_the_worse_is_to_the_best(swapped: bool) -> None:
    ids = narrowest()
    best, second, far = ranked(ids)
    pair = (second, best) if swapped else (best, second)
    found = weighed(Parting(1, "token", "a.0", 0, *pair, ids))
    token, lead, size = reference().next_token(ids)
    assert (found["preferred"], found["number"]) == (token, 0) == (best, 0)
    assert found["gap"] == pytest.approx(lead, abs=1e-3)
    assert found["allowed"] == pytest.approx(TIE_MARGIN["bfloat16"] * size)
    assert found["gap"] < found["allowed"]
    wide = weighed(Parting(1, "token", "a.0", 0, far, pair[1], ids))
    assert wide["gap"] > wide["allowed"]


def test_more_drafts_than_a_tree_is_deep_are_not_excused() -> None:
    found = weighed(Parting(1, "draft", "a.0", 0, 10**9, 10**9 + 1, narrowest(), (5,), 10**9), shape=(1, 3, 4))
    assert float(found["gap"]) == float("inf")


def test_what_was_accepted_beyond_the_end_of_an_output_may_be_narrow_by_its_tokens() -> None:
    """The model decides between two tokens outside the text: one is a draft, the other is not."""
    before, last = narrowest()[:-1], narrowest()[-1]
    token, lead, size = reference().next_token(narrowest())
    found = weighed(Parting(1, "draft", "a.0", 0, 2, 3, before, (last,), 2), shape=(1, 3, 4))
    assert found["preferred"] == token
    assert found["gap"] / found["allowed"] <= lead / (TIE_MARGIN["bfloat16"] * size) + 1e-3
