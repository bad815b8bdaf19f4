"""Work that is done twice, left undone or missed is named, by no clock; what serves as it should is not."""

from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.engine import Engine
from specdebug.engine.textbook.speculative.verify import VerifyStage
from specdebug.events import Aborting, AheadDropped, CacheFlushed, InVain, Launched, PromptComputed, Queued, Stepped
from specdebug.run.oracles.base import Bench
from specdebug.run.oracles.work import MOST_IDLE, MOST_VAIN, WorkOracle
from specdebug.verdict.outcome import Violation
from tests.run.fakes import FakeRequest, oracle_settings
from tests.run.oracles.serving import ALONE, serve

PROMPT = list(range(1, 33))


class Served:
    """An engine of one page a token, and the oracle that is told of its steps."""

    def __init__(self, *, own: bool = True, page: int = 1, device: str = "cpu", batches: int = 1) -> None:
        self.found: list[Violation] = []
        self.requests: dict[str, FakeRequest] = {}
        settings = oracle_settings()
        object.__setattr__(settings.target, "device", device)
        object.__setattr__(settings.target, "batches", batches)
        session: Any = SimpleNamespace(request=self.requests.__getitem__, cache=(page, 1000), own=own)
        self.oracle = WorkOracle(Bench(settings, session, None, self.found.append, print, str))

    def asks(self, *rids: str, cached: int = 0) -> None:
        for rid in rids:
            sampling = SimpleNamespace(max_new_tokens=4)
            self.requests[rid] = FakeRequest(rid, list(PROMPT), sampling, cached_tokens=cached)
            self.oracle.on(Queued(self.requests[rid]))

    def step(self, kind: Any, *rids: str, **facts: Any) -> None:
        for rid in rids:
            self.requests[rid].output_ids.append(7)
        self.oracle.on(Stepped(1, kind, rids, {rid: [7] for rid in rids}, **facts))

    @property
    def said(self) -> list[str]:
        return [each.signature for each in self.found]


def test_a_request_that_runs_takes_part_in_each_decode_step() -> None:
    served = Served()
    served.asks("a", "b", "c")
    served.step("prefill", "a", "b")
    served.step("decode", "a", "b")
    served.step("prefill", "c")
    served.oracle.on(Aborting(served.requests["c"]))
    served.step("decode", "a", retracted=("b",))
    served.step("decode", "a")
    assert served.said == []
    served.step("prefill", "b")
    served.step("decode", "a", finished=("a",))
    served.step("decode", "b")
    assert served.said == ["work@turns"]
    assert served.found[0].detail == "a decode step of 1 requests left out b, which runs"


def test_batches_may_take_turns() -> None:
    served = Served(batches=2)
    served.asks("a", "b")
    served.step("prefill", "a", "b")
    served.step("decode", "a")
    served.step("decode", "b")
    assert served.said == []


def test_what_has_ended_is_computed_no_longer() -> None:
    served = Served()
    served.asks("a", "b", "c")
    served.step("prefill", "a", "b", "c", finished=("a",))
    served.oracle.on(Aborting(served.requests["b"]))
    for step in range(MOST_VAIN):
        served.oracle.on(InVain(step, ("a", "b", "c")))  # c was set back
    assert served.said == []
    served.oracle.on(InVain(9, ("b", "c")))
    assert served.said == ["work@vain"]
    assert served.found[0].detail == "b has ended, and 5 batches since were computed with it"


def test_a_verify_takes_one_forward_of_each_stage() -> None:
    def step(*forwards: str, device: str = "cpu", dropped: int = 0, accepted: bool = True) -> list[str]:
        served = Served(device=device)
        served.asks("a")
        for forward in forwards:
            served.oracle.on(Launched(forward, 1, None))  # type: ignore[arg-type]
        for _ in range(dropped):
            served.oracle.on(AheadDropped())
        served.step("decode", "a", accept_lengths={"a": 2} if accepted else {})
        return served.said

    assert step("draft", "verify", "draft_extend", "decode") == []
    assert step("verify", "draft_extend", "verify") == ["work@forwards"]
    assert step("draft", "draft", "verify") == ["work@forwards"]
    assert step("draft", "draft", "verify", device="cuda") == []  # the second is the next step's
    assert step("draft", "draft", "draft", "verify", device="cuda", dropped=1) == []
    assert step("verify", accepted=False) == ["work@forwards"]
    assert step("draft") == ["work@forwards"]  # nothing was verified, though something was accepted


def test_rows_of_a_prompt_are_computed_once_unless_it_was_set_back() -> None:
    served = Served()
    served.asks("a")

    def computed(start: int, rows: int) -> None:
        served.oracle.on(PromptComputed([served.requests["a"]], (start,), (rows,), None))  # type: ignore[arg-type]

    computed(0, 16)
    computed(16, 16)
    served.step("prefill", "a")
    served.step("decode", retracted=("a",))
    computed(4, 28)
    assert served.said == []
    computed(30, 3)
    assert served.said == ["work@rows"]


def test_no_step_is_idle_while_requests_run() -> None:
    served = Served()
    served.asks("a")
    served.step("idle")
    served.step("idle")
    served.step("idle")
    served.step("prefill", "a")
    for _ in range(MOST_IDLE):
        served.step("idle")
    assert served.said == []
    served.step("idle")
    assert served.said == ["work@idle"]


@pytest.mark.parametrize(
    ("cached", "kind", "flushed", "said"),
    [
        (30, {}, False, []),  # keys are pairs, and the last token of a prompt is always computed
        (29, {}, False, ["work@hits"]),
        (0, {}, True, []),
        (14, {"page": 16}, False, ["work@hits"]),
        (0, {"page": 16, "own": False}, False, []),  # the last page is an engine's own affair
        (0, {"page": 0}, False, []),
    ],
)
def test_what_is_certain_to_be_cached_is_found(cached: int, kind: Any, flushed: bool, said: list[str]) -> None:
    served = Served(**kind)
    served.asks("a")
    served.step("prefill", "a")
    served.requests["a"].finish_reason = "length"
    served.step("decode", "a", finished=("a",))
    if flushed:
        served.oracle.on(CacheFlushed())
    served.asks("b", cached=cached)
    served.step("prefill", "b")
    assert served.said == said


def looked_at(name: str, built: Any = lambda engine: None) -> list[str]:
    found, _, _ = serve(name, built=built, **{**ALONE, "work": True}, pools=False, turns=False, graphs=False)
    return [violation.signature for violation in found]


@pytest.mark.parametrize("name", ["twins/eagle_chain", "requests_come_and_go"])
def test_a_sound_engine_does_nothing_in_vain(name: str) -> None:
    assert looked_at(name) == []


def verify_twice(engine: Engine) -> None:
    """The plant: each verify is computed twice, and the first is thrown away."""
    stage: Any = engine.view.worker._verify  # type: ignore[union-attr]

    def twice(prepared: Any, lens: Any) -> Any:
        stage.launcher.run_eagerly(prepared.inputs, lens)
        return VerifyStage.run(stage, prepared, lens)

    object.__setattr__(stage, "run", twice)


def leave_one_out(engine: Engine) -> None:
    """The plant: every third decode step forgets the request that came last."""
    scheduler, steps = engine.view.scheduler, [0]
    prepare = scheduler.prepare_decode

    def some() -> Any:
        retracted = prepare()
        steps[0] += 1
        if steps[0] % 3 == 0 and len(scheduler.running) > 1:
            engine._left_out = scheduler.running.pop()  # type: ignore[attr-defined]
        return retracted

    def step() -> Any:
        report = whole()
        if (request := engine.__dict__.pop("_left_out", None)) is not None:
            scheduler.running.append(request)
        return report

    whole = engine.step
    scheduler.prepare_decode = some  # type: ignore[method-assign]
    engine.step = step  # type: ignore[method-assign]


def find_less(engine: Engine) -> None:
    """The plant: a request that arrives looks for all of its prompt but the last 32 tokens."""
    cache: Any = engine.view.cache
    attach, match = cache.attach, cache.radix.match_prefix

    def shorter(key: Any, **named: Any) -> Any:
        return match(key.part(0, max(len(key) - 32, 0)), **named)

    def attached(request: Any) -> None:
        cache.radix.match_prefix = shorter
        try:
            attach(request)
        finally:
            del cache.radix.match_prefix

    cache.attach = attached


PLANTS = {
    "work@forwards": ("twins/eagle_chain", verify_twice),
    "work@turns": ("requests_come_and_go", leave_one_out),
    "work@hits": ("twins/eagle_chain", find_less),
}


@pytest.mark.parametrize("signature", PLANTS)
def test_a_planted_waste_is_named(signature: str) -> None:
    name, plant = PLANTS[signature]
    assert looked_at(name, plant) == [signature]
