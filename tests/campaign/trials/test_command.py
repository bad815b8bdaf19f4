"""What reaches a command, what its end means, and what its results belong to."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Candidate
from specdebug.campaign.trials.command import END_BYTES, CommandSource, CommandStopped, ThreadedSource
from specdebug.patching.toggles import Registry, load_registry


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "1")  # ours alone to set


def result(registry: Registry, script: str, *reverted: str, timeout_s: float | None = None) -> TrialResult:
    source = CommandSource(["bash", "-c", script], registry.toggles.values(), timeout_s=timeout_s)
    source.start(Trial(0, frozenset(reverted), 42))
    return source.wait()[1]


def test_the_reverts_and_the_seed_reach_it(registry: Registry) -> None:
    told = result(registry, 'echo "$SGLANG_DEBUG_REVERT_PR $SPECDEBUG_TRIAL_SEED"', "27360", "10846")
    assert told.detail == "10846,27360 42\n"
    assert result(registry, 'echo "${SGLANG_DEBUG_REVERT_PR-unset}"').detail == "unset\n"


def test_verdicts(registry: Registry) -> None:
    ended = {code: result(registry, f"exit {code}") for code in (0, 1, 2, 125)}
    assert [(r.outcome, r.signature) for r in ended.values()] == [
        ("pass", None),
        ("fail", "exit:1"),
        ("fail", "exit:2"),
        ("untestable", None),
    ]
    assert result(registry, "kill -ABRT $$").signature == "crash:SIGABRT"
    assert result(registry, "sleep 1000", timeout_s=0.2).signature == "hang"


NAN = "ValueError: Detected errors during sampling! NaN in the logits."


def test_failures_are_named_by_what_is_printed_and_told_apart(registry: Registry) -> None:
    assert result(registry, f"echo '{NAN}' >&2; exit 1").signature == "nan@sampler.logits"
    assert result(registry, "echo 'httpx.ReadTimeout: The read operation timed out'; exit 1").signature == (
        "error:ReadTimeout:The read operation timed out"
    )
    assert result(registry, f"echo '{NAN}'; echo 'x: fail guard@a.b->c.d, 1 s'; exit 1").signature == "guard@a.b->c.d"
    assert result(registry, f"echo '{NAN}'; exit 0").signature is None
    assert result(registry, f"echo '{NAN}'; exit 125").outcome == "untestable"
    assert result(registry, f"echo '{NAN}'; sleep 1000", timeout_s=0.5).signature == "hang"


def test_all_of_the_output_is_read_however_much_follows(registry: Registry) -> None:
    much = "yes '[TP0] Decode batch. gen throughput (token/s): 31' | head -c 400000"
    found = result(registry, f"{much}; echo '{NAN}'; {much}; exit 1")
    assert found.signature == "nan@sampler.logits"
    assert found.detail.startswith("line ")
    assert NAN in found.detail.splitlines()[0]
    assert result(registry, f"printf '{NAN}'; exit 3").detail == NAN


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("./missing.sh", "there is no command ./missing.sh: no such file"),
        ("no-such-command-anywhere", "there is no command no-such-command-anywhere"),
        ("plain.txt", "to run the file in this folder write ./plain.txt"),
        ("./plain.txt", "not an executable file; chmod +x ./plain.txt"),
        ("./", "not an executable file"),
    ],
)
def test_a_command_that_cannot_be_is_said_before_any_trial(registry: Registry, program: str, words: str) -> None:
    Path("plain.txt").write_text("x")
    with pytest.raises(SpecDebugError, match=words.replace("+", r"\+")):
        CommandSource([program], ())


def test_a_script_without_a_first_line_is_explained(registry: Registry) -> None:
    Path("bare").write_text("exit 0\n")
    Path("bare").chmod(0o755)
    source = CommandSource(["./bare"], ())
    source.start(Trial(0, frozenset(), 0))
    with pytest.raises(SpecDebugError, match="#!/bin/bash"):
        source.wait()


def run(script: str, tmp_path: Path, timeout_s: float | None = None) -> tuple[int, bool, str]:
    words, source = ["bash", "-c", script], CommandSource(["true"], ())
    ended = source.execute(words, cwd=tmp_path, env=dict(os.environ), timeout_s=timeout_s)
    return ended.status, ended.timed_out, ended.output


def test_a_command_that_hangs_is_killed_at_its_deadline_with_its_children(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    status, timed_out, output = run("exec 9>alive; sleep 1000 & echo started; wait", tmp_path, timeout_s=0.3)
    assert (status, timed_out, output) == (-9, True, "started\n")
    assert os.read(reader, 1) == b""  # blocks for as long as anybody holds the other end
    os.close(reader)


def test_of_a_long_output_the_ends_are_kept(tmp_path: Path) -> None:
    output = run(f"echo first; head -c {3 * END_BYTES} /dev/zero | tr '\\0' x; echo; echo last", tmp_path)[2]
    assert output.startswith("first\nxxx")
    assert output.endswith("xxx\nlast\n")
    assert "\n...\n" in output
    assert len(output) < 2 * END_BYTES + 10


def test_closing_ends_what_runs_and_starts_no_more(tmp_path: Path) -> None:
    source = CommandSource(["true"], ())
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    stopped: list[bool] = []

    def hang() -> None:
        try:
            source.execute(["bash", "-c", "echo x >started; sleep 1000"], cwd=tmp_path, env=dict(os.environ))
        except CommandStopped:
            stopped.append(True)

    thread = threading.Thread(target=hang)
    thread.start()
    fifo.read_text()
    source.close()
    thread.join()
    assert stopped == [True]
    with pytest.raises(CommandStopped):
        source.execute(["true"], cwd=tmp_path, env=dict(os.environ))


class Blocked(ThreadedSource):
    """Its trial signals the process from its own thread once the main one waits, and passes long afterwards."""

    candidates: tuple[Candidate, ...] = ()
    identity = "blocked"

    def __init__(self) -> None:
        super().__init__(capacity=1)
        self.over = threading.Event()
        self.heard = False

    def run(self, trial: Trial) -> TrialResult:
        main = threading.main_thread().ident
        assert main is not None
        while sys._current_frames()[main].f_code is not ThreadedSource.wait.__code__:
            os.sched_yield()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        self.heard = self.over.wait(timeout=20)
        return TrialResult("pass", None, 0.0, "")


@pytest.fixture
def _sigterm_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_sigterm_interrupts")
def test_a_signal_that_does_not_wake_the_waiting_thread_is_heard_all_the_same() -> None:
    source = Blocked()
    source.start(Trial(0, frozenset(), 0))
    with pytest.raises(KeyboardInterrupt):
        source.wait()
    source.over.set()
    source.close()
    assert source.heard
