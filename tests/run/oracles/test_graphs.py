"""Graphs: an engine that leaves them unused, or takes another size, is seen though every token is right."""

import inspect
import sys
import textwrap
from typing import Any

import pytest

from specdebug.engine.graph import runner as runner_module
from specdebug.engine.graph.runner import ForwardLauncher, GraphRunner
from specdebug.engine.textbook.speculative.verify import VerifyStage
from specdebug.events import AheadDropped, Event, Launched
from specdebug.run.judge import Judge
from specdebug.verdict.outcome import Violation
from tests.run.fakes import FakeEngine, FakeSession, oracle_settings
from tests.run.oracles.watched import EAGLE, TREE, Watched, prompts

QUIET = {"draft_kv": False, "draft_state": False, "acceptance": False}
SIZES = {"capture_bs": [2, 4]}
SPECULATIVE = ("draft", "verify", "draft_extend")


def watched(speculative: dict[str, Any] = EAGLE, **options: Any) -> Watched:
    return Watched(speculative, spec=QUIET, **{"cuda_graph": SIZES, "max_running_requests": 6, **options})


class Seen:
    """The launches of an engine, and how often what was begun ahead was dropped."""

    hears = (Launched, AheadDropped)

    def __init__(self, engine: Any) -> None:
        self.launches: set[tuple[int, int | None]] = set()
        self.forwards: set[str] = set()
        self.dropped = 0
        engine.observers.add(self)

    def on(self, event: Event) -> None:
        match event:
            case Launched(forward, batch_size, captured):
                self.launches.add((batch_size, captured))
                self.forwards.add(forward)
            case AheadDropped():
                self.dropped += 1


def plant(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Change the source of a function of a module or class where it says ``old``."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1
    code = compile(source.replace(old, new), "<planted>", "exec")
    defined: dict[str, Any] = {}
    exec(code, vars(sys.modules[function.__module__]), defined)
    patch.setattr(owner, name, defined[name])


def mixed(engine: Watched) -> list[Violation]:
    """Serve batches of all sizes from six requests to one, and plain ones beside them."""
    for n, piece in enumerate(prompts(20, 30, 25, 40, 35, 15)):
        engine.serve([piece], 28 * n + 4, until=lambda: True)
    engine.serve(prompts(12), 20)
    return engine.serve(prompts(12, 14, 16), 8, speculative=False)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("shape", [EAGLE, TREE], ids=["chain", "tree"])
def test_a_sound_engine_is_silent_whatever_its_batches(shape: dict[str, Any], ahead: bool) -> None:
    engine = watched(shape)
    engine.engine.view.eagle.drafts_ahead = ahead
    seen = Seen(engine.engine)
    assert mixed(engine) == []
    assert {(1, 2), (2, 2), (3, 4), (4, 4), (5, None), (6, None)} <= seen.launches
    assert seen.forwards == {*SPECULATIVE, "decode"}
    assert (seen.dropped > 0) is ahead
    assert engine.judge.bench.looks["graphs"] > 30


@pytest.mark.parametrize("ahead", [False, True])
def test_a_sound_engine_that_retracts_is_silent(ahead: bool) -> None:
    engine = watched(memory={"num_slots": 160})
    engine.engine.view.eagle.drafts_ahead = ahead
    assert engine.serve(prompts(30, 30, 30, 30), 40) == []
    assert any(request.retractions for request in engine.engine.requests.values())


RUNS = "self.runner is not None and self.runner.can_run(len(lens_cpu))"
PREPARES = "runner is not None and runner.can_run(len(lens_cpu))"
PLANNED = "runner is not None and planned is not None"
LEFT_UNUSED: dict[str, tuple[Any, str, str, str, set[str]]] = {
    "can_run": (GraphRunner, "can_run", "is not None", "is None", set(SPECULATIVE)),
    "draft and its extend": (ForwardLauncher, "run", f"if {RUNS}", f"if not ({RUNS})", {"draft", "draft_extend"}),
    "verify, prepared": (VerifyStage, "prepare", f"if {PREPARES}", f"if not ({PREPARES})", {"verify"}),
    "verify, run": (VerifyStage, "run", PLANNED, PLANNED.replace("is not None and", "is None and"), {"verify"}),
}


@pytest.mark.parametrize("planted", LEFT_UNUSED.values(), ids=LEFT_UNUSED)
@pytest.mark.parametrize("ahead", [False, True])
def test_graphs_that_are_left_unused_are_seen(monkeypatch: pytest.MonkeyPatch, planted: Any, ahead: bool) -> None:
    owner, name, old, new, forwards = planted
    plant(monkeypatch, owner, name, old, new)
    engine = watched()
    engine.engine.view.eagle.drafts_ahead = ahead
    found = engine.serve(prompts(40, 75, 20), 12)
    assert {each.signature for each in found} == {f"graphs@{forward}" for forward in forwards}
    assert found[0].data == {"batch_size": 3, "got": None, "expected": 4}
    assert found[0].detail.endswith("of a batch of 3 ran eagerly, expected as the graph of 4")
    assert found[0].step == 2, "the first that decodes"
    assert all(request.output_ids for request in engine.engine.requests.values())


@pytest.mark.parametrize(
    ("old", "new"), [("size >= raw_bs", "size > raw_bs"), ("in capture_bs if", "in capture_bs[1:] if")]
)
def test_another_size_than_the_smallest_is_seen(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    plant(monkeypatch, runner_module, "padded_size", old, new)
    found = watched().serve(prompts(40, 75), 12)
    assert {each.signature for each in found} == {f"graphs@{forward}" for forward in SPECULATIVE}
    assert found[0].data == {"batch_size": 2, "got": 4, "expected": 2}
    assert found[0].detail == "draft of a batch of 2 ran as the graph of 4, expected as the graph of 2"


def judged(launches: list[Launched], steps: int = 1) -> list[Violation]:
    """What is found where the scenario asks for graphs of 2 and 4, and each step launches these."""
    found: list[Violation] = []
    settings = oracle_settings(lossless=False, draft_kv=False, pools=False, ends=False, graphs=(2, 4))
    judge = Judge(settings, FakeSession(FakeEngine()), None, found.append, lambda rid, tie: None, str)
    for step in range(1, steps + 1):
        for launch in launches:
            judge.on(launch)
        assert judge.inspect(step) is None
    return found


def test_each_way_in_which_a_forward_ran_wrongly_is_said_once_in_its_first_step() -> None:
    found = judged([Launched("draft", 3, None), Launched("draft", 3, None), Launched("draft", 2, 4)], steps=3)
    assert [(each.step, each.data["batch_size"]) for each in found] == [(1, 3), (1, 2)]
