"""The suite's plan and its rules, with stages that are played by tiny commands."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu import stages, suite
from benchmarks.gpu.suite import Clock, End, Result, Stage
from specdebug.campaign.loops.plans import exists_in
from specdebug.patching.toggles import load_registry

ROOT = Path(__file__).resolve().parents[3]
DEVICE_TROUBLE = suite.device_trouble
LIVES_ON = """
import subprocess, sys
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(60)"
worker = subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE)
worker.stdout.readline()
print("left", worker.pid, flush=True)
"""
"""A stage that leaves a worker behind: one in a session of its own, deaf to TERM."""


def played(name: str, source: str, limit_s: float = 60.0, **facts: object) -> Stage:
    return Stage(name, (sys.executable, "-c", source), limit_s, needs=(), **facts)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _device_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "device_trouble", lambda: "")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the stages that were run; each succeeds but for the doctor."""
    names: list[str] = []

    def run(stage: Stage, out: Path, clock: Clock) -> Result:
        names.append(stage.name)
        (out / f"{stage.name}.log").write_text("done\n")
        failed = stage.name == "doctor"
        return Result(stage, "failed" if failed else "ok", int(failed), 1.0, "done")

    monkeypatch.setattr(suite, "run", run)
    return names


def call(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["suite.py", *options])
    return suite.main()


def test_twenty_seeds_are_run_only_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[str]
) -> None:
    assert call(monkeypatch, str(tmp_path)) == 1  # one stage failed, the others ran
    assert {"scenarios", "scenarios-bf16", "tests-engine"} <= set(ran)
    assert not any(name.startswith("seeds") for name in ran)
    ran.clear()
    call(monkeypatch, str(tmp_path), "--long")
    assert {"seeds-triton-1", "seeds-fa3-2", "seeds-flashinfer-1", "matrix-fa3"} <= set(ran)
    ran.clear()
    assert call(monkeypatch, str(tmp_path), "--only", "seeds-fa3-1", "lossless") == 0
    assert sorted(ran) == ["lossless", "seeds-fa3-1"]
    assert {row["stage"]: row["end"] for row in json.loads((tmp_path / "suite.json").read_text())} == {
        "lossless": "ok",
        "seeds-fa3-1": "ok",
    }


def test_what_is_timed_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[str] = set()
    beside: dict[str, set[str]] = {}
    both = threading.Barrier(2)

    def run(stage: Stage, out: Path, clock: Clock) -> Result:
        running.add(stage.name)
        if stage.name in ("tests-engine", "tests"):  # the first two checks: each waits for the other to run
            both.wait(timeout=30)
        beside[stage.name] = running - {stage.name}
        running.discard(stage.name)
        return Result(stage, "ok", 0, 1.0, "done")

    monkeypatch.setattr(suite, "run", run)
    begun = suite.stages(tmp_path, 2)
    results = suite.run_all(begun, tmp_path, Clock(None))
    assert [result.stage.name for result in results] == [stage.name for stage in begun]
    assert not any(beside[stage.name] for stage in begun if stage.timed)


def test_a_mistyped_stage_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ran: list[str]
) -> None:
    with pytest.raises(SystemExit):
        call(monkeypatch, str(tmp_path), "--only", "losless")
    assert "no stage losless; there are doctor" in capsys.readouterr().err
    assert ran == []


def test_both_parts_of_the_matrix_have_every_fix_and_about_as_many_rows() -> None:
    registry = load_registry()
    numbers = [int(number) for part in stages.PARTS for number in part]
    assert sorted(numbers) == sorted(registry.toggles)
    first, second = (sum(len(registry.toggles[int(pr)].detections) for pr in part) for part in stages.PARTS)
    assert abs(first - second) <= 2


@pytest.mark.parametrize("plan", stages.PLANS)
def test_a_plan_is_spared_the_fixes_that_exist_in_others_only(plan: str, tmp_path: Path) -> None:
    toggles = load_registry().toggles.values()
    elsewhere = {
        str(toggle.pr)
        for toggle in toggles
        if not any(exists_in(toggle.shown_by(detection), plan) for detection in toggle.detections)
    }
    assert stages.KEPT[plan] == elsewhere
    asked = {
        word
        for stage in suite.stages(tmp_path, 2)
        if stage.name.startswith(f"seeds-{plan}")
        for word in stage.command
        if word.isdigit() and len(word) == 5
    }
    assert asked == {str(toggle.pr) for toggle in toggles} - elsewhere


def test_tests_that_need_a_gpu_are_marked_where_they_stand() -> None:
    """So that the stage finds their files without collecting all others."""
    found = stages.gpu_tests()
    assert set(stages.ENGINE_TESTS) <= set(found)
    assert "tests/engine/kernels/device/test_accept.py" in found
    helpers = [file for file in (ROOT / "tests").rglob("*.py") if not file.name.startswith("test_")]
    assert not [file for file in helpers if "mark.gpu" in file.read_text()]


def test_every_script_that_a_stage_runs_is_there(tmp_path: Path) -> None:
    for stage in suite.stages(tmp_path, 2):
        scripts = [word for word in stage.command if word.endswith(".py")]
        assert all((suite.ROOT / script).exists() for script in scripts)


# -- what a stage gets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "timed", "threads"), [(8, False, "1"), (1, False, "8"), (1, True, "16")])
def test_workers_of_both_lanes_share_the_cores(
    workers: int, timed: bool, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "cores", lambda: 16)
    given = suite.environment(played("a", "", workers=workers, timed=timed), "mark")
    assert {given[name] for name in suite.THREADS} == {threads}


def test_a_stage_finds_the_checkout_whatever_is_set_and_wherever_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (None, "/elsewhere"):
        monkeypatch.setenv("PYTHONPATH", path) if path else monkeypatch.delenv("PYTHONPATH", raising=False)
        given = suite.environment(played("a", ""), "mark")
        assert given["PYTHONPATH"].split(os.pathsep) == [str(ROOT), *([path] if path else [])]
        source = "import specdebug, tests; print(specdebug.__file__)"
        found = subprocess.run(
            [sys.executable, "-c", source], env=given, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        assert found.strip() == str(ROOT / "specdebug" / "__init__.py")


def test_a_stage_without_its_packages_is_skipped_and_the_line_that_mends_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poor = Stage("poor", (sys.executable, "-c", ""), 60, needs=("json", "no_such_package_a", "no_such_package_b"))
    monkeypatch.setattr(suite, "stages", lambda out, jobs, bounds: [poor, played("rich", "print('fine')")])
    monkeypatch.setitem(suite.DISTRIBUTIONS, "no_such_package_b", "package-b")
    assert call(monkeypatch, str(tmp_path)) == 125
    told = capsys.readouterr().out
    assert f"{sys.executable} -m pip install no_such_package_a package-b\n" in told
    assert "1 of 2 stages ok" in told
    rows = {row["stage"]: row for row in json.loads((tmp_path / "suite.json").read_text())}
    assert (rows["poor"]["end"], rows["poor"]["last"]) == ("skipped", "missing: no_such_package_a, no_such_package_b")
    assert (rows["rich"]["end"], rows["rich"]["status"], rows["rich"]["last"]) == ("ok", 0, "fine")


def test_what_specdebug_depends_on_is_looked_for() -> None:
    """But for google-re2, without which logs are read all the same, and for what servers and their clients need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {text.split(">")[0].split("<")[0] for text in project["dependencies"]}
    spared = {"google-re2", "fastapi", "uvicorn", "httpx", "prometheus_client", "h11"}
    assert wanted - spared <= {suite.DISTRIBUTIONS.get(name, name) for name in stages.BASE}


def imported(tree: ast.Module) -> Iterator[str]:
    """Packages that are imported while a module is."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0]


def test_no_test_module_needs_more_to_be_collected_than_the_stage_looks_for() -> None:
    ours = {"specdebug", "tests", "benchmarks", "tools"}
    known = {*sys.stdlib_module_names, *ours, *stages.TESTS} - {"transformers"}
    of_a_gpu = {ROOT / file for file in stages.gpu_tests()}
    for file in sorted((ROOT / "tests").rglob("*.py")):
        also = set() if file in of_a_gpu else set(stages.SERVERS)
        assert set(imported(ast.parse(file.read_text()))) <= known | also, file


def test_tests_of_a_gpu_are_collected_where_nothing_of_servers_is_installed(tmp_path: Path) -> None:
    refusal = f"""
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {stages.SERVERS!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refused())
"""
    (tmp_path / "sitecustomize.py").write_text(refusal)
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpu", *stages.gpu_tests()],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout
    assert "error" not in found.stdout


def test_every_script_declares_what_it_imports(tmp_path: Path) -> None:
    ours = {"specdebug", *(file.stem for file in (ROOT / "benchmarks" / "gpu").glob("*.py"))}
    for stage in suite.stages(tmp_path, 2):
        for script in (word for word in stage.command if word.endswith(".py") and "benchmarks" in word):
            tree = ast.parse((ROOT / script).read_text())
            assert set(imported(tree)) <= {*sys.stdlib_module_names, *ours, *stage.needs}, script


# -- how a stage ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "end", "status"),
    [("print('fine')", "ok", 0), ("raise SystemExit(3)", "failed", 3), ("raise SystemExit(125)", "no verdict", 125)],
)
def test_a_stage_s_exit_status_is_told(source: str, end: End, status: int, tmp_path: Path) -> None:
    result = suite.run(played("a", source), tmp_path, Clock(None))
    assert (result.end, result.status) == (end, status)
    assert (tmp_path / "a.log").read_text().startswith(f"$ {sys.executable} -c {source}\n")


def test_a_stage_that_cannot_be_started_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> object:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    result = suite.run(played("a", ""), tmp_path, Clock(None))
    assert result.end == "not run"
    assert "Resource temporarily unavailable" in result.last


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def worker_of(log: Path) -> int:
    """The number that a stage says it has left behind; 0 before it does."""
    found = re.search(r"^left (\d+)$", log.read_text() if log.exists() else "", re.MULTILINE)
    return int(found[1]) if found else 0


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="told by /proc")


@needs_proc
@pytest.mark.parametrize(("then", "end"), [("", "ok"), ("import time; time.sleep(60)", "out of time")])
def test_no_worker_outlives_its_stage_whatever_session_it_is_in(
    then: str, end: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    if then:  # its time is over as soon as the worker is there
        now = SimpleNamespace(monotonic=lambda: 1e9 if worker_of(log) else 0.0)
        now.sleep = suite.time.sleep
        monkeypatch.setattr(suite, "time", now)
    result = suite.run(played("a", LIVES_ON + then), tmp_path, Clock(None))
    assert result.end == end
    assert worker_of(log)
    assert gone(worker_of(log))
    assert result.last == f"left {worker_of(log)}"
    assert log.read_text().endswith("processes left behind, and ended: 1\n")


@needs_proc
def test_another_stage_s_processes_are_left_alone(tmp_path: Path) -> None:
    source = "import time; print('here', flush=True); time.sleep(60)"
    other = subprocess.Popen(
        [sys.executable, "-c", source], env=suite.environment(played("b", ""), "another"), stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    other.stdout.readline()
    try:
        suite.run(played("a", LIVES_ON), tmp_path, Clock(None))
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


# -- time, and signals ---------------------------------------------------------------------------------------------


def test_what_would_not_fit_is_not_begun(tmp_path: Path) -> None:
    clock = Clock(suite.CLOSING_S + 50)
    results = suite.run_all(
        [played("a", "", takes_s=60), played("b", "", takes_s=5), played("c", "", takes_s=60)], tmp_path, clock
    )
    assert [result.end for result in results] == ["not run", "ok", "not run"]
    assert suite.exit_code(results, clock) == 125


def test_a_stage_is_cut_off_when_the_time_of_all_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "a.log"
    monkeypatch.setattr(Clock, "left_s", property(lambda clock: 0.0 if log.exists() else 60.0))
    result = suite.run(played("a", "import time; time.sleep(60)"), tmp_path, Clock(None))
    assert (result.end, result.status) == ("cut off", None)


def test_the_default_plan_fits(tmp_path: Path) -> None:
    """With each stage as long as it is said to take, all are begun and done in time."""
    lanes = [0.0] * suite.LANES
    for stage in suite.stages(tmp_path, 8):
        if stage.long:
            continue
        assert stage.takes_s <= stage.limit_s
        if stage.timed:
            lanes = [max(lanes) + stage.takes_s] * suite.LANES
        else:
            lanes = sorted([lanes[0] + stage.takes_s, *lanes[1:]])
        assert max(lanes) <= suite.BUDGET_S - suite.CLOSING_S, stage.name


def test_two_long_checks_beside_each_other_fit(tmp_path: Path) -> None:
    found = [stage for stage in suite.stages(tmp_path, 8) if stage.long]
    assert found
    assert all(stage.takes_s <= stage.limit_s <= suite.BUDGET_S and not stage.timed for stage in found)


def test_a_device_that_is_gone_fails_no_stage_and_no_other_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def trouble() -> str:
        asked.append("?")
        return "" if len(asked) == 1 else "the device is gone: No CUDA GPUs are available"

    monkeypatch.setattr(suite, "device_trouble", trouble)
    bad = "raise SystemExit(1)"
    played_out = [played(str(n), code, timed=True) for n, code in enumerate([bad, "print(1)", bad, bad, "print(1)"])]
    clock = Clock(None)
    found = suite.run_all(played_out, tmp_path, clock)
    assert [result.end for result in found] == ["failed", "ok", "no verdict", "not run", "not run"]
    assert {result.last for result in found[2:]} == {"the device is gone: No CUDA GPUs are available"}
    assert len(asked) == 2
    assert suite.exit_code(found[1:], clock) == 125


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("", ""),
        ("import sys; sys.exit('No CUDA GPUs are available')", "the device is gone: No CUDA GPUs are available"),
    ],
)
def test_the_device_is_asked_in_a_process_of_its_own(code: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run([*command[:2], code], **options))
    assert DEVICE_TROUBLE() == told


def test_a_device_that_hangs_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **options: float) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    assert DEVICE_TROUBLE() == "the device is gone: nothing is computed on it in 30 s"


def results(*ends: End) -> list[Result]:
    return [Result(played("a", ""), end, None, 1.0, "") for end in ends]


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (("ok", "ok"), 0),
        (("ok", "failed", "skipped"), 1),
        (("out of time", "not run"), 1),
        (("ok", "skipped"), 125),
        (("no verdict",), 125),
        (("not run",), 125),
        (("cut off", "ok"), 125),
    ],
)
def test_the_exit_code_says_what_is_known(ends: tuple[End, ...], code: int) -> None:
    assert suite.exit_code(results(*ends), Clock(None)) == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_what_runs_and_the_summary_is_still_made(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"import os, signal, time; os.kill({os.getpid()}, signal.{number.name}); time.sleep(60)"
    first, second = played("first", source, timed=True), played("second", "print('never')", timed=True)
    monkeypatch.setattr(suite, "stages", lambda out, jobs, bounds: [first, second])
    before = signal.getsignal(number)
    assert call(monkeypatch, str(tmp_path)) == 128 + number
    assert signal.getsignal(number) is before
    rows = {row["stage"]: row["end"] for row in json.loads((tmp_path / "suite.json").read_text())}
    assert rows == {"first": "interrupted", "second": "not run"}
    assert "0 of 2 stages ok" in capsys.readouterr().out
