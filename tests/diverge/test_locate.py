"""Where failures began that were seen in outputs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.replay import ArmResult, ArmRun, run_arms
from specdebug.campaign.preload import PRELOAD
from specdebug.diverge import locate as module
from specdebug.diverge.align import Difference
from specdebug.diverge.locate import IN_PLACE, Locator, Suspect, place_of
from specdebug.diverge.recording import Descriptor, RecordedStep
from specdebug.diverge.run import Divergence
from specdebug.scenario.grammar import Expectation
from specdebug.scenario.library import Library
from specdebug.targets.settings import ReleasedEngine
from specdebug.verdict.outcome import Located, Outcome, Violation
from specdebug.workers.pool import WorkerPool
from tests.diverge.planted import BUGS, failing_run
from tests.run.fakes import FakeLibrary

RUN = failing_run(next(iter(BUGS)), 0)
SEEN = Outcome("fail", "mismatch@request", "request", "wrong", 3, (Violation("mismatch", "request", 3, "wrong"),))
FINE = Outcome("pass", None, None, "", None)

INPUTS, K, LOGITS = "verify.input_ids", "kv_pool.write.k", "verify.logits"


def step(number: int, rids: Sequence[str] = "ab", **hashes: Sequence[int]) -> RecordedStep:
    """Calls of a verify, each with a hash for each request."""
    names = {"inputs": (INPUTS, "int64"), "k": (K, "float32"), "logits": (LOGITS, "float32")}
    owners = tuple(range(len(rids)))
    calls = tuple(Descriptor(*names[name], owners, (6,) * len(rids)) for name in hashes)
    return RecordedStep(number, tuple(rids), calls, [each for share in hashes.values() for each in share])


def steps(changed: int | None = None, last: int = 5) -> list[RecordedStep]:
    """A recording of as many steps, of which one has a row of ``k`` and then logits that are ``changed``."""
    return [
        step(n, inputs=[1, 2], k=[3, 9 if n == changed else 4], logits=[5, 9 if n == changed else 6])
        for n in range(1, last + 1)
    ]


def place(
    sound: list[RecordedStep], failing: list[RecordedStep], until: int | None = None, seen: str = "mismatch@request"
) -> Located | str:
    return place_of(sound, failing, Suspect(RUN, RUN, seen, until, "its twin"))


def test_what_a_probe_finds_is_named_where_the_tensor_that_it_came_from_first_differs() -> None:
    found = place(steps(), steps(changed=2), seen="nan@verify.logits")
    assert isinstance(found, Located)
    assert (found.signature, found.seen) == (f"mismatch@verify.{K}", "nan@verify.logits")
    found = place(steps(), steps(changed=2), seen="illegal-address@attention.kv_cache")
    assert isinstance(found, Located)
    assert found.signature == f"mismatch@verify.{K}"


def test_what_a_probe_finds_keeps_its_name_where_nothing_differs_before() -> None:
    assert place(steps(), steps(changed=2), seen=f"nan@{K}") == IN_PLACE
    assert place(steps(), steps(), seen="nan@verify.logits") == IN_PLACE
    another_way = [*steps()[:2], step(3, "a", inputs=[1])]
    assert place(steps(), another_way, seen="nan@verify.logits") == IN_PLACE, "a hit, say: that is not what is wrong"


def test_other_requests_are_the_schedule_and_in_a_step_the_site_that_is_left_out_is_named() -> None:
    found = place(steps(), [*steps()[:2], step(3, "a", inputs=[1])])
    assert isinstance(found, Located)
    assert (found.signature, found.step) == ("mismatch@schedule", 3)
    assert found.tensor == "requests a, b are computed in the twin, a in the arm"
    found = place([step(1, "a", inputs=[1])], [step(1, "a", k=[1])])
    assert isinstance(found, Located)
    assert (found.site, found.tensor) == (INPUTS, f"the twin reaches {INPUTS}, the arm reaches {K}")
    found = place([step(1, "a", k=[1], logits=[1])], [step(1, "a", logits=[1])])
    assert isinstance(found, Located)
    assert (found.site, found.stage) == (K, "verify")
    found = place([step(1, "a", inputs=[1])], [step(1, "a", inputs=[1], k=[1])])
    assert isinstance(found, Located)
    assert (found.site, found.tensor) == (K, f"the twin reaches nothing more, the arm reaches {K}")
    found = place(steps(), steps(last=2))
    assert isinstance(found, Located)
    assert (found.site, found.step, found.tensor) == (
        "schedule",
        3,
        "only the first arm has a step 3".replace("first arm", "twin"),
    )


class Bench:
    """Stands for the running of arms: recordings by whether a bug is in, and outcomes."""

    def __init__(self, sound: Outcome = FINE, bug_at: int = 2) -> None:
        self.ran: list[str] = []
        self.limits: list[int] = []
        self.each_step: list[bool] = []
        self.judged: list[bool] = []
        self.sound = sound
        self.bug_at = bug_at
        self.interrupted = False
        self.error: SpecDebugError | None = None

    def __call__(self, pool: Any, library: Any, runs: Sequence[Any]) -> tuple[list[ArmResult], bool]:
        if self.error is not None:
            raise self.error
        for run in runs:
            self.ran.append("failing" if run.toggles else "sound")
            self.limits.append(run.scenario.limits.max_steps)
            self.judged.append(run.scenario.oracles_of(run.arm).lossless)
            self.each_step.append(run.scenario.oracles_of(run.arm).each_step)
            Path(run.hashes).write_text("failing" if run.toggles else "sound")
        return [ArmResult(run, SEEN if run.toggles else self.sound) for run in runs], self.interrupted

    def read(self, path: Path) -> list[RecordedStep]:
        return steps(changed=self.bug_at if path.read_text() == "failing" else None)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    found = Bench()
    monkeypatch.setattr(module, "run_arms", found)
    monkeypatch.setattr(module, "read", found.read)
    return found


def locator() -> Locator:
    pool: Any = None
    return Locator(pool, FakeLibrary())


def test_a_failure_seen_in_outputs_is_told_by_where_it_began(bench: Bench) -> None:
    (told,) = locator().located([ArmResult(RUN, SEEN)])
    outcome = told.outcome
    assert (outcome.signature, outcome.seen, outcome.site, outcome.where_step) == (
        f"mismatch@verify.{K}",
        "mismatch@request",
        f"verify.{K}",
        2,
    )
    assert outcome.violations == SEEN.violations
    assert bench.limits == [3] * 2, "what differs after the step in which it was seen is not where it began"
    plain = json.loads(json.dumps(outcome.to_dict()))
    assert plain["located"] == {
        "step": 2,
        "rid": "b",
        "site": K,
        "tensor": "float32, 6 rows",
        "from": "mismatch@request",
        "twin": "the same arm with fix 1 applied",
        "stage": "verify",
    }
    assert Outcome.from_dict(plain) == outcome


def test_a_probe_finding_is_located_unless_it_is_what_is_expected(bench: Bench) -> None:
    seen = replace(SEEN, signature="nan@verify.logits")
    (told,) = locator().located([ArmResult(RUN, seen)])
    assert (told.outcome.signature, told.outcome.seen) == (f"mismatch@verify.{K}", "nan@verify.logits")
    bench.ran.clear()
    stated = replace(RUN, expectation=Expectation("fail", ("nan@verify*",)))
    (told,) = locator().located([ArmResult(stated, seen)])
    assert (told.outcome, bench.ran) == (seen, [])
    (told,) = locator().located([ArmResult(replace(RUN, toggles=()), seen)])
    assert (told.outcome, bench.ran) == (seen, []), "it has no twin, and no oracle sees more"


def test_the_sound_run_is_recorded_once_for_all_that_need_it(bench: Bench) -> None:
    one = locator()
    one.located([ArmResult(RUN, SEEN), ArmResult(replace(RUN, key="again"), SEEN)])
    assert sorted(bench.ran) == ["failing", "failing", "sound"]
    one.located([ArmResult(RUN, SEEN)])
    assert sorted(bench.ran) == ["failing"] * 3 + ["sound"]
    one.located([ArmResult(RUN, replace(SEEN, where_step=4))])
    assert bench.ran.count("sound") == 2, "it had been stopped before"
    one.located([ArmResult(replace(RUN, seed=9), SEEN)])
    assert bench.ran.count("sound") == 3, "another seed is another run"


def test_a_twin_is_judged_unless_it_has_passed_as_an_arm(bench: Bench) -> None:
    locator().located([ArmResult(RUN, SEEN)])
    assert bench.judged == [False, True], "the failing arm is not judged again, its twin is"
    arms = {**RUN.scenario.arms, "fixed": replace(RUN.scenario.arms["base"], name="fixed")}
    both = replace(RUN.scenario, arms=arms)
    fixed = ArmResult(ArmRun("fixed", both, "fixed", RUN.seed), FINE)
    locator().located([fixed, ArmResult(replace(RUN, scenario=both), SEEN)])
    assert bench.judged[2:] == [False, False]
    locator().located([replace(fixed, outcome=SEEN), ArmResult(replace(RUN, scenario=both), SEEN)])
    assert bench.judged[-1] is True


def test_what_cannot_be_located_keeps_its_signature_and_says_why(bench: Bench) -> None:
    def note(run: ArmRun, told: Locator | None = None) -> str:
        (result,) = (told or locator()).located([ArmResult(run, SEEN)])
        assert result.outcome.signature == "mismatch@request"
        return result.outcome.notes[-1]

    elsewhere = replace(RUN.scenario, target="reference")
    assert "target reference cannot show its tensors" in note(replace(RUN, scenario=elsewhere))
    bench.sound = replace(SEEN, violations=(Violation("nan", "verify.logits", 2),))
    assert note(RUN).endswith("fix 1 applied fails, too: nan@verify.logits")
    bench.sound = replace(FINE, violations=(Violation("hang", "", 3, "not done after 3 steps"),))
    bench.bug_at = 99
    assert note(RUN).endswith("computes the same up to step 3")
    bench.error = SpecDebugError("no worker could be started")
    assert note(RUN) == "not located: no worker could be started"
    bench.error, bench.interrupted = None, True
    assert note(RUN) == "not located: interrupted"


def test_without_a_twin_the_oracles_look_after_every_step(bench: Bench) -> None:
    bare = replace(RUN, toggles=())
    kv = Violation("mismatch", "draft_kv", 2, "draft key of r.1 is off", data={"rid": "r.1"})
    bench.sound = replace(SEEN, violations=(kv, *SEEN.violations))
    (told,) = locator().located([ArmResult(bare, SEEN)])
    assert told.outcome.signature == "mismatch@draft_kv"
    assert told.outcome.located is not None
    assert (told.outcome.located.step, told.outcome.located.rid, told.outcome.seen) == (2, "r.1", "mismatch@request")
    assert bench.each_step == [True]
    assert bench.limits == [3]
    bench.sound = SEEN
    (told,) = locator().located([ArmResult(bare, SEEN)])
    assert told.outcome.signature == "mismatch@request"
    assert told.outcome.notes[-1].endswith("sees nothing before")


def test_an_arm_of_another_engine_without_a_twin_is_laid_beside_ours(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    apart = Difference("shape", 3, "draft.forward.logits", "r.1", None, None, "the first arm has no such step")
    answer = Divergence(("ours", "theirs"), first=apart)

    def diverging(pool: Any, library: Any, runs: Any, folder: Path) -> Any:
        asked.append(runs)
        return SimpleNamespace(run=lambda: answer)

    monkeypatch.setattr(module, "Diverging", diverging)
    bare = replace(RUN, toggles=(), scenario=RUN.scenario.on(ReleasedEngine(release="sglang==0.5.13")))
    (told,) = locator().located([ArmResult(bare, SEEN)])
    assert told.outcome.signature == "mismatch@draft.forward.logits"
    assert told.outcome.located is not None
    assert told.outcome.located.twin == "the same arm on our engine"
    assert (told.outcome.located.step, told.outcome.located.tensor) == (3, "the twin has no such step")
    ((ours, theirs),) = asked
    assert (ours.target, str(theirs.target)) == ("embedded", "sglang==0.5.13")
    assert (theirs.scenario.limits.max_steps, bench.ran) == (3, [])
    answer = replace(answer, first=None)
    (told,) = locator().located([ArmResult(bare, SEEN)])
    assert told.outcome.notes[-1] == "not located: the same arm on our engine computes the same but for rounding"
    answer = replace(answer, reason="other models")
    (told,) = locator().located([ArmResult(bare, SEEN)])
    assert told.outcome.notes[-1] == "not located: other models"


def test_an_arm_on_several_ranks_without_a_twin_is_not_laid_beside_ours() -> None:
    scenario = RUN.scenario.on(ReleasedEngine(release="sglang==0.5.23"))
    arm = replace(scenario.arms[RUN.arm], engine={"tp": 2})
    scenario = replace(scenario, arms={**scenario.arms, RUN.arm: arm})
    (told,) = locator().located([ArmResult(replace(RUN, toggles=(), scenario=scenario), SEEN)])
    assert told.outcome.signature == "mismatch@request"
    assert told.outcome.notes[-1].startswith("not located: it is served on 2 ranks, and our engine")


def test_another_engine_s_failure_is_located_beside_its_own_twin(bench: Bench) -> None:
    run = replace(RUN, scenario=RUN.scenario.on(ReleasedEngine(release="sglang==0.5.23")))
    (told,) = locator().located([ArmResult(run, SEEN)])
    assert told.outcome.signature == f"mismatch@verify.{K}"
    assert bench.ran == ["failing", "sound"]


def located_for_real(runs: Sequence[ArmRun]) -> list[ArmResult]:
    with WorkerPool(2, PRELOAD) as pool:
        library = Library()
        results, _ = run_arms(pool, library, runs)
        seen = {result.outcome.signature for result in results}
        assert seen <= {"mismatch@request", "mismatch@target_kv"}
        return Locator(pool, library).located(results)


def test_a_wrong_token_is_located_for_real() -> None:
    name = "a node is judged by another's logits"
    (told,) = located_for_real([failing_run(name, 0)])
    assert told.outcome.signature == "mismatch@verify.logits"


@pytest.mark.slow
def test_bugs_that_are_all_seen_as_wrong_tokens_have_a_place_each_under_any_seed() -> None:
    runs = [(name, failing_run(name, seed)) for name in BUGS for seed in range(3)]
    told = located_for_real([run for _, run in runs])
    found = [result.outcome.located and result.outcome.located.site for result in told]
    assert found == [BUGS[name].site for name, _ in runs]
    assert len(set(found)) == len(BUGS)
