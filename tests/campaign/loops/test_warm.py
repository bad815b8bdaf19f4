"""Warm arms: the same outcome as a fresh arm's, and whatever one dies of ends no other."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops import warm
from specdebug.campaign.loops.replay import ArmResult, ArmRun, run_arms
from specdebug.campaign.loops.warm import ArmLost, WarmPool
from specdebug.campaign.preload import PRELOAD
from specdebug.patching import Patch
from specdebug.patching.toggles import Detection, Toggle
from specdebug.scenario.grammar import CorpusPrompt, Limits, Scenario
from specdebug.scenario.library import Library
from specdebug.targets.base import Asked
from specdebug.targets.installed import InstalledTarget
from specdebug.targets.settings import parse_target
from specdebug.targets.sglang.target import SglangTarget
from specdebug.verdict.outcome import Outcome
from specdebug.workers.home import Home
from specdebug.workers.job import Job
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from specdebug.workers.pool import WorkerPool

Fresh = Callable[[list[ArmRun]], list[Outcome]]

LIBRARY = Library()
NAME = "flaky_page_table"
FLAKY = sorted(path.stem for path in (Path(__file__).parents[3] / "scenarios").glob("flaky_*.yaml"))
DECODE = "specdebug.engine.textbook.speculative.worker:EagleWorker.decode"
FIRST = "lens_cpu = tuple(request.kv_len for request in requests)"


def run_of(name: str, *toggles: Toggle, seed: int | None = None, key: str = "arm", **limits: float) -> ArmRun:
    scenario = LIBRARY.scenario(name)
    if limits:
        scenario = dataclasses.replace(scenario, limits=dataclasses.replace(Limits(), **limits))
    packs = LIBRARY.packs(scenario.probes_of("fixed"))
    return ArmRun(key, scenario, "fixed", scenario.seed if seed is None else seed, packs, toggles)


def essence(outcome: Outcome) -> dict[str, Any]:
    """Everything but what was measured with a clock, and how warm the worker was."""
    plain = outcome.to_dict()
    metrics, _ = plain.pop("metrics"), plain.pop("warm")
    return {**plain, "steps": metrics["steps"], "generated": metrics["generated_tokens"]}


@pytest.fixture(scope="module")
def fresh() -> Iterator[Fresh]:
    """Runs arms in workers that have imported nothing of the engine."""
    with WorkerPool(2, PRELOAD) as pool:
        yield lambda runs: [result.outcome for result in run_arms(pool, LIBRARY, runs)[0]]


def toggle(target: str, match: str, replacement: str) -> Toggle:
    """A revert of nothing that was ever fixed."""
    found = Detection("none", ("none@none",))
    patch = Patch.of("toggle 1", target, (match, replacement))
    return Toggle(1, (), "t", "https://x", "f", "s", "", found, (patch,), {}, Path("t.yaml"))


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    with WarmPool(LIBRARY.scenario(NAME), ["fixed"], LIBRARY.all_toggles(), jobs=2) as pool:
        yield pool


def outcome_of(pool: WarmPool, run: ArmRun) -> Outcome:
    pool.start(run)
    return pool.wait().outcome


@pytest.mark.slow
def test_several_seeds_and_reverts_come_out_as_in_fresh_workers(pool: WarmPool, fresh: Fresh) -> None:
    sets = [(), *((one,) for one in LIBRARY.toggles([27360, 25015])), LIBRARY.toggles([26972, 26335])]
    runs = [
        run_of(NAME, *chosen, seed=seed, key=f"{seed}, {len(chosen)}, {[one.pr for one in chosen]}")
        for seed in (0, 1)
        for chosen in sets
    ]
    warm: dict[str, Outcome] = {}
    for number, run in enumerate(runs):
        pool.start(run)
        if number >= pool.capacity - 1:
            ended = pool.wait()
            warm[ended.run.key] = ended.outcome
    ended = pool.wait()
    warm[ended.run.key] = ended.outcome
    for run, cold in zip(runs, fresh(runs), strict=True):
        assert essence(warm[run.key]) == essence(cold), run.key


def test_what_was_foreseen_changes_no_outcome(pool: WarmPool) -> None:
    """Neither of the run that it was foreseen for, nor of a damaged one, nor of one under another seed."""
    runs = [
        run_of(NAME, key="as foreseen"),
        run_of(NAME, *LIBRARY.toggles([27360]), key="damaged"),
        run_of(NAME, key="another seed", seed=7),
    ]
    unforeseen = [essence(outcome_of(pool, run)) for run in runs]
    pool.foresee(runs[0])
    assert [essence(outcome_of(pool, run)) for run in runs] == unforeseen


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAKY)
def test_every_toggle_shows_as_in_a_fresh_worker_and_as_its_flaky_scenario_says(name: str, fresh: Fresh) -> None:
    scenario = LIBRARY.scenario(name)
    toggles = LIBRARY.toggles(scenario.arms["reverted"].revert)
    runs = [run_of(name, key="fixed"), run_of(name, *toggles, key="reverted")]
    with WarmPool(scenario, ["fixed"], toggles) as pool:
        warm = [outcome_of(pool, run) for run in runs]
    for run, one, other in zip(runs, warm, fresh(runs), strict=True):
        assert essence(one) == essence(other)
        assert scenario.expect[run.key].met_by(one.verdict, one.signature)
        assert all(toggle.detected_by.recognises(one.signature or "") for toggle in run.toggles)


@pytest.mark.parametrize(
    ("bad", "signature"),
    [
        ("__import__('ctypes').string_at(0)", "crash:SIGSEGV"),
        ("__import__('os')._exit(0)", "error@worker"),
        ("while True: pass", "hang"),
        ("hog = [bytearray(2**20) for _ in range(4000)]", "oom"),
        ("raise RuntimeError('oh no')", "error@speculative.worker.EagleWorker.decode"),
    ],
)
def test_what_one_arm_dies_of_is_its_own(pool: WarmPool, bad: str, signature: str) -> None:
    deadly = toggle(DECODE, FIRST, f"{bad}\n{FIRST}")
    pool.start(run_of(NAME, deadly, key="dying", timeout_s=4.0 if signature == "hang" else 60.0, memory_mb=1200))
    pool.start(run_of(NAME, key="living"))
    ended = {result.run.key: result.outcome for result in (pool.wait(), pool.wait())}
    assert (ended["dying"].verdict, ended["living"].verdict) == ("fail", "pass")
    assert ended["dying"].signature == signature
    assert outcome_of(pool, run_of(NAME)).verdict == "pass"


@pytest.mark.parametrize(("times", "rerun"), [(1, 1), (2, 1)])
def test_an_arm_whose_worker_somebody_killed_is_run_once_more(times: int, rerun: int, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.write_text("")
    die = (
        f"__import__('os').kill(0, 0) if len(open({str(marks)!r}).read()) >= {times} "
        f"else (open({str(marks)!r}, 'a').write('x'), __import__('os').kill(__import__('os').getpid(), 9))"
    )
    deadly = toggle(DECODE, FIRST, f"{die}\n{FIRST}")
    with WarmPool(LIBRARY.scenario(NAME), ["fixed"], [deadly], jobs=1) as pool:
        pool.start(run_of(NAME, deadly))
        if times == 1:
            assert pool.wait().outcome.verdict == "pass"
        else:
            with pytest.raises(MachineFailed, match="a worker was killed from outside"):
                pool.wait()
        assert pool.rerun == rerun


@pytest.mark.parametrize("answers", [True, False])
def test_an_arm_that_hung_is_lost_if_its_device_is(answers: bool) -> None:
    lost = MachineFailure("device", "no answer after arm had hung for 9 s")
    hung = ArmResult(run_of(NAME), Outcome("fail", "hang", None, "", None))
    doubted: list[MachineFailure] = []
    with WarmPool(LIBRARY.scenario(NAME), ["fixed"]) as pool:
        pool._watch = SimpleNamespace(  # type: ignore[assignment]
            doubt=lambda device, failure: doubted.append(failure), gone=lambda device: None if answers else lost
        )
        pool._listener.ended_runs.append((hung, lost))
        if answers:
            assert pool.wait() is hung
        else:
            with pytest.raises(ArmLost, match="no answer after arm had hung"):
                pool.wait()
    assert doubted == [lost]


@pytest.mark.parametrize(
    ("edit", "began"),
    [
        (toggle("specdebug.engine.config", "STEPS_IN_FLIGHT = 2", "STEPS_IN_FLIGHT = 3"), "cold"),
        (toggle("specdebug.engine.model.models:TargetModel.logits", "return linear(hidden, self.lm_head)",
                "return -linear(hidden, self.lm_head)"), "imported"),
    ],
    ids=["run at import", "run by the server"],
)  # fmt: skip
def test_edits_of_what_the_server_has_run_already_count_too(
    pool: WarmPool, fresh: Fresh, edit: Toggle, began: str
) -> None:
    run = run_of(NAME, edit)
    warm, (cold,) = outcome_of(pool, run), fresh([run])
    assert essence(warm) == essence(cold)
    assert (warm.warm, cold.warm) == (began, "cold")
    assert warm.verdict != "unknown", warm.detail


def test_a_scenario_at_fault_is_said_where_it_is_asked_for(pool: WarmPool) -> None:
    run = run_of(NAME)
    group = dataclasses.replace(run.scenario.workload[0], prompt=CorpusPrompt((60, 60)), max_new_tokens=(8, 8))
    scenario: Scenario = dataclasses.replace(run.scenario, workload=(group,))
    pool.start(dataclasses.replace(run, scenario=scenario))
    with pytest.raises(SpecDebugError, match="needs 68 positions, context_length is 64"):
        pool.wait()


class Launches(SimpleNamespace):
    """In the place of a pool: keeps the jobs."""

    def __init__(self, *_: object) -> None:
        super().__init__(jobs=[], limit=1, close=lambda: None)

    def launch(self, job: Job) -> None:
        self.jobs.append(job)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_runs_at_home_elsewhere_are_forked_from_a_nest_unless_they_use_a_gpu(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "WorkerPool", Launches)
    monkeypatch.setattr(InstalledTarget, "patches", lambda self, toggles, content=(): {})
    monkeypatch.setattr(SglangTarget, "home", lambda self: Home("/env/bin/python"))
    monkeypatch.setattr(SglangTarget, "asked", lambda self, options: Asked("tiny", device=device))
    ours = run_of(NAME)
    there = dataclasses.replace(
        ours, scenario=dataclasses.replace(ours.scenario, target=parse_target("sglang==0.5.13"))
    )
    with WarmPool(ours.scenario, ["fixed"]) as pool:
        for run in (ours, there, dataclasses.replace(there, key="other seed", seed=99)):
            pool.start(run)
        at_ours, *others = pool._pool.jobs  # type: ignore[attr-defined]
    assert (at_ours.home, at_ours.nest) == (None, None)
    assert {each.home for each in others} == {Home("/env/bin/python")}
    keys = {each.nest and each.nest.key for each in others}
    assert (len(keys), None in keys) == (1, device == "cuda")
