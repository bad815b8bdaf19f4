"""A machine that fails is no verdict: its arms are unknown, it is said once, and on a lost device no arm is started."""

from pathlib import Path

import pytest

from specdebug.campaign.loops import replay as replaying
from specdebug.campaign.loops import warm
from specdebug.campaign.loops.replay import ArmRun, Choices, Replay, replay
from specdebug.campaign.loops.warm import WarmPool
from specdebug.scenario.grammar import Arm, Limits, Scenario, TokenPrompt, WorkloadGroup
from specdebug.scenario.library import Library
from specdebug.workers import job
from specdebug.workers.machine_failure import MachineFailed
from specdebug.workers.pool import WorkerPool
from tests.run.fakes import FakeLibrary

GONE = "machine: the device is gone: No CUDA GPUs are available"
NOT_RUN = "not run: the device is gone"


def scenario(*arms: str, device: str = "cuda") -> Scenario:
    return Scenario(
        name="machine",
        workload=(WorkloadGroup("g0", TokenPrompt((1, 2))),),
        arms={name: Arm(name) for name in arms},
        expect={},
        engine={"device": device},
        probes=(),
        limits=Limits(timeout_s=20, memory_mb=400),
    )


class Told:
    """Watches a replay."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.started: list[str] = []

    def arm_started(self, run: ArmRun) -> None:
        self.started.append(run.arm)

    def arm_moved(self, run: ArmRun, ledger: object) -> None: ...

    def arm_ended(self, result: object) -> None: ...

    def waiting(self) -> None: ...

    def notice(self, text: str) -> None:
        self.notices.append(text)


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Arms are played; the file has a line for every probe of a device."""
    file = tmp_path / "probes"
    file.touch()
    monkeypatch.setenv("SPECDEBUG_TEST_PROBES", str(file))
    monkeypatch.setattr(replaying, "TARGET", "tests.workers.victims:play")
    monkeypatch.setattr(replaying, "PROBE", "tests.workers.victims:answer")
    return file


def run(jobs: int, *arms: str, device: str = "cuda") -> tuple[Replay, Told]:
    told = Told()
    with WorkerPool(jobs, preload=()) as pool:
        return replay(pool, FakeLibrary(), scenario(*arms, device=device), Choices(), progress=told), told  # type: ignore[arg-type]


def details(answer: Replay) -> list[str]:
    return [result.outcome.detail for result in answer.results]


def test_no_arm_starts_on_a_device_that_stays_gone(probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEBUG_TEST_GONE", "1")
    answer, told = run(1, "good device", "gone", "good 2", "good 3")
    assert details(answer) == ["", GONE, NOT_RUN, NOT_RUN]
    assert [result.outcome.verdict for result in answer.results] == ["pass", *["unknown"] * 3]
    assert [result.outcome.unavailable for result in answer.results] == [False, True, True, True]
    assert answer.exit_code == 125
    assert told.started == ["good device", "gone"]
    assert told.notices == [f"{GONE}; arms that need it are not run"]
    assert probes.read_text().split() == ["cuda"]


def test_arms_side_by_side_lose_the_device_together(probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEBUG_TEST_GONE", "1")
    answer, told = run(2, "gone", "gone 2", "good 3", "good 4")
    found = details(answer)
    assert found[0] == found[1] == GONE
    assert NOT_RUN in found[2:]  # one of them may have begun before the first loss was known
    assert len(told.notices) == 1


def test_a_device_that_hides_after_it_was_used_is_gone(probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch then counts no devices, as where there never was one: then the machine lacks it, and none has failed."""
    monkeypatch.setenv("SPECDEBUG_TEST_GONE", "1")
    answer, _ = run(1, "good device", "hidden", "good 3")
    assert details(answer) == ["", "there is no CUDA device here", NOT_RUN]
    assert answer.exit_code == 125
    lacking, told = run(1, "hidden", "good 2")
    assert details(lacking) == ["there is no CUDA device here", ""]
    assert lacking.results[0].outcome.unavailable
    assert lacking.results[0].outcome.machine is None
    assert (lacking.exit_code, told.notices) == (125, [])


def test_a_worker_that_the_kernel_killed_for_memory_is_unknown(probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, _ = run(1, "killed", device="cpu")
    assert details(answer)[0].startswith("machine: a worker was killed from outside: ")
    assert answer.exit_code == 125
    monkeypatch.setattr(job, "oom_killed_since", lambda before: True)
    answer, _ = run(1, "killed", device="cpu")
    outcome = answer.results[0].outcome
    assert (outcome.verdict, outcome.unavailable, outcome.violations) == ("unknown", True, ())
    assert outcome.detail.startswith("machine: there is no memory left: the kernel killed a worker at ")
    assert outcome.requests[0].output_ids == (7,)  # what it had come to is kept


def test_a_gpu_that_no_process_can_take_fails_no_arm_of_a_shipped_scenario() -> None:
    """With the arm, the claim and the probe as they are; only torch is told what it has."""
    library = Library()
    told = Told()
    with WorkerPool(1, preload=("torch", "tests.run.gone_gpu")) as pool:
        choices = Choices(engine={"device": "cuda"})
        answer = replay(pool, library, library.scenario("cache_hit"), choices, progress=told)  # type: ignore[arg-type]
    gone = "machine: the device is gone: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    assert details(answer) == [gone, *[NOT_RUN] * (len(answer.results) - 1)]
    assert (len(told.started), told.notices) == (1, [f"{gone}; arms that need it are not run"])
    assert {result.outcome.verdict for result in answer.results} == {"unknown"}
    assert answer.exit_code == 125


# -- warm arms -----------------------------------------------------------------------------------------------------


def warm_run(arm: str) -> ArmRun:
    return ArmRun(arm, scenario(arm), arm, 0)


@pytest.fixture
def warm_pool(probes: Path, monkeypatch: pytest.MonkeyPatch) -> WarmPool:
    monkeypatch.setattr(warm, "TARGET", "tests.workers.victims:play")
    monkeypatch.setattr(warm, "PREPARE", "tests.workers.victims:get_ready")
    monkeypatch.setattr(warm, "PRELOAD", ())
    return WarmPool(scenario("good"), ["good"], jobs=1)


def test_a_search_ends_without_a_verdict_when_the_device_stays_gone(
    warm_pool: WarmPool, probes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEBUG_TEST_GONE", "1")
    with warm_pool as pool:
        pool.start(warm_run("good"))
        assert pool.wait().outcome.verdict == "pass"
        pool.start(warm_run("gone"))
        with pytest.raises(MachineFailed, match="No CUDA GPUs are available") as caught:
            pool.wait()
    assert caught.value.exit_code == 125
    assert probes.read_text().split() == ["cuda"]


def test_a_warm_arm_is_run_again_where_the_device_answers(
    warm_pool: WarmPool, probes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEBUG_TEST_ONCE", str(tmp_path / "once"))
    with warm_pool as pool:
        pool.start(warm_run("once"))
        result = pool.wait()
        assert (result.run.key, result.outcome.verdict) == ("once", "pass")
        pool.start(warm_run("gone"))  # however often the probe answers
        with pytest.raises(MachineFailed):
            pool.wait()
    assert probes.read_text().split() == ["cuda"] * 2


def test_a_warm_arm_that_finds_no_device_at_all_comes_to_no_verdict(warm_pool: WarmPool, probes: Path) -> None:
    with warm_pool as pool:
        pool.start(warm_run("hidden"))
        outcome = pool.wait().outcome
    assert (outcome.verdict, outcome.detail) == ("unknown", "there is no CUDA device here")
    assert outcome.unavailable
    assert outcome.machine is None
    assert probes.read_text() == ""


FATES = {
    "killed": None,
    "segfault": "crash:SIGSEGV",
    "hang": "hang",
    "hog": "oom",
    "quitter": "error@worker",
    "raiser": "error@worker",
    "good": None,
}
SCENARIO = Scenario(
    name="fates",
    workload=(WorkloadGroup("g0", TokenPrompt((1, 2))),),
    arms={name: Arm(name) for name in FATES},
    expect={},
    probes=(),
    limits=Limits(timeout_s=1.5, memory_mb=120),
)


def test_the_death_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "TARGET", "tests.workers.victims:play")
    with WorkerPool(3, preload=()) as pool:
        answer = replay(pool, FakeLibrary(), SCENARIO, Choices())
    outcomes = {result.run.arm: result.outcome for result in answer.results}
    assert {name: outcome.signature for name, outcome in outcomes.items()} == FATES
    assert {name: outcome.verdict for name, outcome in outcomes.items() if outcome.verdict != "fail"} == {
        "killed": "unknown",  # by whom is not known, but not by a bug
        "good": "pass",
    }
    assert all(outcome.requests[0].output_ids == (7,) for outcome in outcomes.values())
    assert "RuntimeError: oh no" in outcomes["raiser"].log_tail
    assert "sleep_forever" in outcomes["hang"].log_tail
