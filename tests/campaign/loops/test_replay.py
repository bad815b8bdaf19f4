"""Which arms are run, how their results add up to an exit code, and what survives an interrupt."""

import dataclasses
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.yamlio import parse_yaml
from specdebug.campaign.loops.replay import (
    PROBE,
    REVERT,
    ArmResult,
    ArmRun,
    Choices,
    DeviceWatch,
    NotOnTarget,
    PlannedRuns,
    Replay,
    _Running,
    plan,
    planned,
    replay,
)
from specdebug.campaign.loops.replays import Replays, plan_all, replay_all
from specdebug.faults.declare import parse_fault
from specdebug.scenario.checks import scenario_of
from specdebug.scenario.grammar import Arm, Expectation, Limits, OracleSpec, Scenario, TokenPrompt, WorkloadGroup
from specdebug.scenario.library import Library
from specdebug.targets.base import Asked
from specdebug.targets.installed import InstalledTarget
from specdebug.targets.installs.store import VARIABLE, Installed
from specdebug.targets.settings import LaunchedServer, parse_target
from specdebug.targets.sglang.target import SglangTarget
from specdebug.verdict.outcome import EXIT_CODES, Outcome
from specdebug.workers.home import Home
from specdebug.workers.job import Job, Listener, WorkerEnd
from specdebug.workers.machine_failure import MachineFailure
from tests.run.fakes import FakeLibrary, FakePool, good_run

SCENARIO = Scenario(
    name="sample",
    workload=(WorkloadGroup("g0", TokenPrompt((1, 2))),),
    arms={"fixed": Arm("fixed"), "reverted": Arm("reverted", revert=(27338,), mode="assert")},
    expect={
        "fixed": Expectation(),
        "reverted": Expectation("fail", ("guard@draft.kv_indices*",)),
    },
    seed=7,
    limits=Limits(timeout_s=33, memory_mb=512),
)


def runs_of(**choices: Any) -> list[ArmRun]:
    return plan(SCENARIO, Choices(**choices), FakeLibrary())


def shape(runs: list[ArmRun]) -> list[tuple[str, tuple[int, ...], bool]]:
    return [(run.arm, run.reverts, run.expectation is not None) for run in runs]


def test_reverts_go_on_top_of_the_named_arm_or_the_first() -> None:
    assert shape(runs_of(reverts=(1, 2))) == [("fixed", (1, 2), False)]
    assert shape(runs_of(arms=("reverted",), reverts=(27338, 2))) == [("reverted", (27338, 2), False)]
    assert shape(runs_of(arms=("reverted", "fixed", "reverted"))) == [
        ("reverted", (27338,), False),
        ("fixed", (), False),
    ]


def test_choices_go_over_the_file() -> None:
    run = runs_of(seed=9, mode="record", probes=("graph",), timeout_s=5)[1]
    assert run.seed == 9
    assert [pack.name for pack in run.packs] == ["graph"]
    assert run.scenario.arms["reverted"].mode == "record"
    assert run.job(FakeLibrary()).timeout_s == 5
    plain = runs_of()[1]
    assert (plain.seed, plain.scenario.arms["reverted"].mode) == (7, "assert")
    assert [pack.name for pack in plain.packs] == ["default"]


def test_engine_options_from_outside_go_over_every_arm_and_ask_for_a_gpu() -> None:
    runs = runs_of(engine={"device": "cuda:1", "attention_backend": "fa3"})
    assert [(run.shape.device, run.shape.attention_backend) for run in runs] == [("cuda:1", "fa3")] * 2
    assert all(run.job(FakeLibrary()).uses_gpu for run in runs)
    assert not any(run.job(FakeLibrary()).uses_gpu for run in runs_of())
    assert SCENARIO.overrides == {}
    assert [(run.arm, run.job(FakeLibrary()).at_risk) for run in runs] == [("fixed", ""), ("reverted", "cuda:1")]
    assert not any(run.job(FakeLibrary()).at_risk for run in runs_of())
    unpickled = pickle.loads(pickle.loads(pickle.dumps(runs[0].job(FakeLibrary()).payload))["scenario"])
    assert unpickled.engine_of("reverted") == {"device": "cuda:1", "attention_backend": "fa3"}


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("http://127.0.0.1:30000", "localhost:30000"),
        ("http://localhost:30000/v1", "localhost:30000"),
        ("https://GPU-7", "gpu-7:https"),
        ("{http: 'http://[::1]:80', connections: 2}", "localhost:80"),
        ("serve", ""),
        ("embedded", ""),
        ("reference", ""),
    ],
)
def test_a_server_that_is_there_is_used_by_one_arm_at_a_time(target: str, place: str) -> None:
    jobs = [run.job(FakeLibrary()) for run in runs_of(target=parse_target(target), reverts=())]
    assert [job.server for job in jobs] == [place] * 2
    assert [job.slots and (job.slots.name, job.slots.most) for job in jobs] == [(place, 1) if place else None] * 2


def test_the_time_to_be_ready_goes_over_that_of_every_server_that_is_started() -> None:
    (fixed, reverted) = runs_of(target=parse_target("serve"), ready_timeout_s=7.5)
    assert [run.target for run in (fixed, reverted)] == [LaunchedServer(command="serve", ready_timeout_s=7.5)] * 2
    laid = SCENARIO.laid_over({"target": "{launch: serve, ready_timeout_s: 9}", "ready_timeout_s": 5.0})
    assert laid.target == LaunchedServer(command="serve", ready_timeout_s=5.0)
    assert laid.overrides == {}
    with pytest.raises(SpecDebugError, match="none of its arms starts a server, which --ready-timeout is for"):
        runs_of(ready_timeout_s=7.5)


def at_fault(scenario: Scenario, choices: Choices, message: str, *option: str) -> str:
    def usage(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        event = {"event": "usage", "message": message, "option": list(option)}
        return [event], WorkerEnd("done", 0, 0.1, 1.0, "")

    with pytest.raises(SpecDebugError) as caught:
        replay(FakePool(usage), FakeLibrary(), scenario, choices)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    return str(caught.value)


FILE = """\
name: on-gpu
engine:
  device: cuda
workload:
  - {prompt: {token_ids: [1, 2]}}
arms:
  small: {}
  paged: {engine: {page_size: 16}}
"""


def test_an_option_that_a_worker_finds_wrong_is_named_where_it_was_set() -> None:
    scenario = scenario_of(parse_yaml(FILE, "s.yaml"), None)
    assert at_fault(scenario, Choices(), "no CUDA here; use cpu", "device") == (
        "s.yaml:3:3: engine.device: no CUDA here; use cpu"
    )
    assert at_fault(scenario, Choices(arms=("paged",)), "16 is too many", "page_size") == (
        "s.yaml:8:20: engine.page_size: 16 is too many"
    )
    over = Choices(engine={"device": "cuda:3"})
    assert at_fault(SCENARIO, over, "there is no cuda:3", "device") == "--device cuda:3: there is no cuda:3"
    assert at_fault(SCENARIO, Choices(), "s.yaml:3:1: too long") == "<scenario>: arm 'fixed': s.yaml:3:1: too long"


def test_a_device_that_is_not_there_is_its_arm_s_unknown_and_the_others_run() -> None:
    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        if job.name == "reverted":
            event = {"event": "usage", "message": "there is no CUDA", "option": ["device"], "unavailable": True}
            return [event], WorkerEnd("done", 0, 0.1, 1.0, "")
        return good_run(job)

    answer = replay(FakePool(script), FakeLibrary(), SCENARIO, Choices())  # type: ignore[arg-type]
    fixed, reverted = (each.outcome for each in answer.results)
    assert fixed.verdict == "pass"
    assert (reverted.verdict, reverted.unavailable, reverted.violations) == ("unknown", True, ())
    assert "there is no CUDA" in reverted.detail
    assert answer.exit_code == 125


HANGS = WorkerEnd("timeout", -9, 33.0, 1.0, "")
GONE = MachineFailure("device", "no answer after fixed had hung for 33 s")


def hung(script: Any, *answers: bool, device: str = "cuda") -> tuple[Replay, FakePool]:
    pool = FakePool(script, answers=answers)
    return replay(pool, FakeLibrary(), SCENARIO, Choices(engine={"device": device})), pool  # type: ignore[arg-type]


def test_an_arm_that_hung_on_a_device_that_is_gone_comes_to_no_verdict() -> None:
    answer, pool = hung(lambda job: ([], HANGS), False)
    fixed, reverted = (each.outcome for each in answer.results)
    assert (fixed.verdict, fixed.signature, fixed.machine) == ("unknown", None, GONE)
    assert (reverted.verdict, reverted.machine) == ("unknown", GONE)
    assert [job.name for job in pool.jobs] == ["fixed"]
    assert answer.exit_code == 125


def test_an_arm_that_hung_on_a_device_that_answers_has_hung() -> None:
    answer, _ = hung(lambda job: ([], HANGS), True, True)
    assert [(each.outcome.verdict, each.outcome.signature) for each in answer.results] == [("fail", "hang")] * 2
    answer, _ = hung(lambda job: ([], HANGS), True, False)  # a device that is lost later says nothing of earlier arms
    assert [each.outcome.verdict for each in answer.results] == ["fail", "unknown"]


def result(verdict: Any, signature: str | None, expectation: Expectation | None) -> ArmResult:
    run = ArmRun("a", SCENARIO, "fixed", 0, expectation=expectation)
    return ArmResult(run, Outcome(verdict, signature, None, "", None))


PASS, FAIL, ANY = Expectation(), Expectation("fail", ("nan@*",)), None


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([("pass", None, PASS)], 0),
        ([("pass", None, PASS), ("fail", "nan@x", FAIL)], 0),
        ([("pass", None, PASS), ("fail", "oob@x", FAIL)], 1),
        ([("pass", None, FAIL)], 1),
        ([("fail", "nan@x", PASS)], 1),
        ([("unknown", None, PASS)], 125),
        ([("unknown", None, PASS), ("pass", None, FAIL)], 1),
        ([("unknown", None, Expectation("unknown"))], 0),
        ([("pass", None, ANY)], 0),
        ([("fail", "nan@x", ANY)], 1),
        ([("unknown", None, ANY)], 125),
        ([("pass", None, ANY), ("unknown", None, ANY)], 125),
        ([("unknown", None, ANY), ("fail", "hang", ANY)], 1),
    ],
)
def test_exit_code_table(results: list[tuple[Any, str | None, Expectation | None]], code: int) -> None:
    assert Replay(SCENARIO, tuple(result(*parts) for parts in results), 1.0).exit_code == code
    assert code in EXIT_CODES.values()


def dying_run(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
    events, _ = good_run(job)
    return events[:3], WorkerEnd("signal", -9, 0.5, 10.0, "")


def mixed_run(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
    return dying_run(job) if job.name == "fixed" else good_run(job)


def test_a_dead_arm_is_an_outcome_and_the_others_still_report() -> None:
    answer = replay(FakePool(mixed_run), FakeLibrary(), SCENARIO, Choices())
    assert [(r.run.arm, r.outcome.verdict, r.outcome.signature) for r in answer.results] == [
        ("fixed", "fail", "crash:SIGKILL"),
        ("reverted", "pass", None),
    ]
    assert answer.exit_code == 1
    assert answer.results[0].outcome.requests[0].output_ids == (4,)


def test_an_interrupt_keeps_what_is_known() -> None:
    answer = replay(FakePool(good_run, interrupt_at="reverted"), FakeLibrary(), SCENARIO, Choices())  # type: ignore[arg-type]
    verdicts = [(r.run.arm, r.outcome.verdict) for r in answer.results]
    assert verdicts == [("fixed", "pass"), ("reverted", "unknown")]
    assert (answer.interrupted, answer.exit_code) == (True, 130)
    assert answer.results[1].outcome.reasons == ("interrupted before it began",)
    assert answer.results[1].outcome.interrupted


ON_13 = Choices(target=parse_target("sglang==0.5.13"))
TEXT = """\
name: {name}
workload: [{{prompt: {{token_ids: [1, 2]}}}}]
arms:
  fixed: {{}}
  other: {{not_on: {{"sglang==0.5.13": its <own>}}}}
{more}
"""


def scenario(name: str, more: str = "") -> Scenario:
    return scenario_of(parse_yaml(TEXT.format(name=name, more=more), f"{name}.yaml"))


SOME, NONE = scenario("some"), scenario("none", "not_on: {sglang: pages of 3}")


def answer(*scenarios: Scenario, choices: Choices = ON_13) -> Replays:
    plans = plan_all(scenarios, choices, FakeLibrary())  # type: ignore[arg-type]
    return replay_all(FakePool(good_run), FakeLibrary(), plans)  # type: ignore[arg-type]


def whys(found: PlannedRuns) -> dict[str, str]:
    return {each.arm: each.why for each in found.left_out}


def test_an_arm_whose_fix_is_none_of_the_targets_engine_is_left_out() -> None:
    library = Library()
    found = planned(library.scenario("cache_hit"), ON_13, library)
    assert [run.arm for run in found.runs] == ["recompute"]
    assert whys(found)["reverted"] == "19897 is a fix in specdebug; sglang has no such code to revert"
    assert whys(found)["zero_fill"].startswith("it always computes the draft KV of a hit")
    old = Choices(target=parse_target("sglang==0.5.9"))
    found = planned(library.scenario("draft_positions"), old, library)
    assert whys(found)["reverted"].startswith("25015 has patches for sglang >=0.5.13")


def test_whoever_needs_an_arm_that_is_left_out_is_refused() -> None:
    def refused(scenario: Scenario, **more: Any) -> str:
        with pytest.raises(NotOnTarget) as caught:
            plan(scenario, Choices(target=ON_13.target, **more), FakeLibrary())  # type: ignore[arg-type]
        assert caught.value.exit_code == 2
        return str(caught.value)

    assert refused(SOME, arms=("fixed", "other")) == "some.yaml:5:3: not run on sglang==0.5.13: its <own>"
    assert refused(NONE) == (
        "none.yaml:4:3: not run on sglang==0.5.13: pages of 3; none.yaml:5:3: not run on sglang==0.5.13: its <own>"
    )
    assert [run.arm for run in plan(SOME, ON_13, FakeLibrary())] == ["fixed"]  # type: ignore[arg-type]


def test_a_checkout_between_two_releases_has_the_fixes_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    version = "0.5.14.dev57+gabc1234"
    Installed(tmp_path / "checkout", "sglang", version, "cpu", sys.executable, ours=False, done=("installed",)).write()
    there, library = Choices(target=parse_target(f"sglang=={version}")), Library()
    assert planned(library.scenario("draft_positions"), there, library).left_out == ()


LOST = MachineFailure("device", "No CUDA GPUs are available")
END = WorkerEnd("done", 0, 0.1, 1.0, "")


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def started(self, job: Job) -> None:
        self.told.append(f"{job.name} started")

    def event(self, job: Job, event: dict[str, Any]) -> None:
        self.told.append(f"{job.name} {event['event']}")

    def ended(self, job: Job, end: WorkerEnd) -> None:
        self.told.append(f"{job.name} ended")

    def waiting(self) -> None:
        self.told.append("waiting")


class Pool:
    """Each turn brings one report of the probe under way; ``answers`` says which probes answer."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.launched: list[Job] = []
        self.meanwhile: Callable[[Listener], None] = lambda listener: None
        self._reports: list[Callable[[Listener], None]] = []

    def launch(self, job: Job) -> None:
        self.launched.append(job)
        self._reports = [lambda on: on.started(job), self.meanwhile, lambda on: on.ended(job, END)]
        if self.answers.pop(0):
            self._reports.insert(1, lambda on: on.event(job, {"event": "answers"}))

    def turn(self, listener: Listener) -> None:
        self._reports.pop(0)(listener)
        listener.waiting()


@pytest.mark.parametrize(("answers", "gone"), [(True, None), (False, LOST)])
def test_a_doubt_is_settled_by_one_probe(answers: bool, gone: MachineFailure | None) -> None:
    watch = DeviceWatch(pool := Pool(answers), Heard())
    watch.doubt("cuda", LOST)
    watch.doubt("cuda", MachineFailure("device", "the same, of another arm"))
    assert [watch.gone("cuda") for _ in range(3)] == [gone] * 3
    assert [(job.target, job.payload, job.uses_gpu) for job in pool.launched] == [(PROBE, "cuda", True)]


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home of the workers of a release that stands for an installed one."""
    home = Home("/env/bin/python", ("/site",))
    monkeypatch.setattr(InstalledTarget, "patches", lambda self, toggles, content=(): {each.pr: [] for each in toggles})
    monkeypatch.setattr(SglangTarget, "home", lambda self: home)
    monkeypatch.setattr(SglangTarget, "asked", lambda self, options: Asked("tiny"))
    return home


FIX = Library().toggles((27338,))


def nest_key(**changes: Any) -> str:
    """The key of the nest of an arm on a release, with ``changes`` of the run, or of its arm or scenario."""
    arm = dataclasses.replace(Arm("fixed"), **changes.pop("arm", {}))
    over = {"arms": {"fixed": arm}, "target": ON_13.target, **changes.pop("scenario", {})}
    on_release = dataclasses.replace(SCENARIO, **over)
    run = ArmRun(**{"key": "one", "scenario": on_release, "arm": "fixed", "seed": 7, **changes})
    job = run.job_of("some:target", model="tiny")
    nest = run.nest(job.payload)
    assert nest is not None
    assert nest.of is not None
    assert (nest.target, nest.argument) == ("specdebug.run.arm:build", job.payload)
    patches = pickle.loads(job.payload["patches"])
    assert (nest.of.target, nest.of.argument) == (REVERT, {"patches": job.payload["patches"], "base": not patches})
    assert [pickle.loads(each.argument["patches"]) for each in nest.of.line] == ([{}, patches] if patches else [{}])
    return nest.key


def test_runs_that_are_alike_come_of_a_nest_and_one_alone_does_not(at_home: Home) -> None:
    (planned_run,) = plan(SOME, ON_13, FakeLibrary())  # type: ignore[arg-type]
    one = dataclasses.replace(planned_run, packs=())

    def nested(*runs: ArmRun) -> list[bool]:
        running = _Running(SimpleNamespace(), runs, {})  # type: ignore[arg-type]
        return [running._job(each, FakeLibrary()).nest is not None for each in runs]  # type: ignore[arg-type]

    assert nested(one) == [False]
    assert nested(dataclasses.replace(one, followed=True)) == [True]
    assert nested(one, dataclasses.replace(one, key="again", seed=8)) == [True, True]
    assert nested(one, dataclasses.replace(one, key="reverted", toggles=FIX)) == [False, False]


def test_a_job_of_a_release_is_at_home_there_and_carries_its_patches(at_home: Home) -> None:
    (run,) = plan(SOME, ON_13, FakeLibrary())  # type: ignore[arg-type]
    job = dataclasses.replace(run, packs=(), toggles=FIX).job(FakeLibrary())  # type: ignore[arg-type]
    assert (job.home, job.nest, job.slots) == (at_home, None, None)
    assert (job.payload["engine"], job.payload["worker"], job.payload["elsewhere"]) == ("sglang", job.target, False)
    assert pickle.loads(job.payload["patches"]) == {27338: []}
    ours = runs_of(reverts=())[0].job(FakeLibrary())
    assert (ours.home, "patches" in ours.payload) == (None, False)


@pytest.mark.parametrize(
    ("changes", "alike"),
    [
        ({"seed": 8}, True),
        ({"key": "two"}, True),
        ({"scenario": {"workload": (WorkloadGroup("g0", TokenPrompt((3,))),)}}, True),
        ({"toggles": FIX}, False),
        ({"arm": {"mode": "assert"}}, False),
        ({"arm": {"engine": {"page_size": 4}}}, False),
        ({"arm": {"faults": (parse_fault("slots_leaked"),)}}, False),
        ({"packs": Library().packs(("kv",))}, False),
        ({"scenario": {"oracles": OracleSpec(lossless=False)}}, False),
        ({"scenario": {"target": parse_target("sglang==0.5.23")}}, False),
    ],
)
def test_runs_that_differ_by_workload_and_seed_alone_share_a_nest(
    changes: dict[str, Any], alike: bool, at_home: Home
) -> None:
    assert (nest_key(**changes) == nest_key()) is alike
