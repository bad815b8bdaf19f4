"""What reaches a command, what its end means, and what its results belong to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult, trial_seed
from specdebug.campaign.trials.command import CommandSource
from specdebug.patching.toggles import Registry, load_registry


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "1")  # ours alone to set


def result(registry: Registry, script: str, *reverted: str, timeout_s: float | None = None) -> TrialResult:
    source = CommandSource(["bash", "-c", script], registry, timeout_s=timeout_s)
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


def test_several_run_at_a_time(registry: Registry, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meet")
    # One writes what the other reads: neither ends unless both run.
    script = 'if [ -n "$SGLANG_DEBUG_REVERT_PR" ]; then echo hello >meet; else read x <meet; fi'
    source = CommandSource(["bash", "-c", script], registry, capacity=2, timeout_s=60)
    source.start(Trial(0, frozenset(), 1))
    source.start(Trial(1, frozenset({"27360"}), 1))
    assert {source.wait()[0].number, source.wait()[0].number} == {0, 1}
    source.close()
    source.close()


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
        CommandSource([program], registry)


def test_a_script_without_a_first_line_is_explained(registry: Registry) -> None:
    Path("bare").write_text("exit 0\n")
    Path("bare").chmod(0o755)
    source = CommandSource(["./bare"], registry)
    source.start(Trial(0, frozenset(), 0))
    with pytest.raises(SpecDebugError, match="#!/bin/bash"):
        source.wait()


def test_results_belong_to_the_command_and_to_the_script_as_it_is(registry: Registry) -> None:
    Path("a.sh").write_text("#!/bin/bash\nexit 0\n")
    Path("a.sh").chmod(0o755)
    same = CommandSource(["./a.sh", "x"], registry).identity
    assert CommandSource(["./a.sh", "x"], registry).identity == same
    assert CommandSource(["./a.sh", "y"], registry).identity != same
    assert CommandSource(["./a.sh", "x"], Registry({})).identity != same
    assert len({same, *(CommandSource(["./a.sh", "x"], registry, timeout_s=s).identity for s in (5.0, 60.0))}) == 3
    Path("a.sh").write_text("#!/bin/bash\nexit 1\n")
    assert CommandSource(["./a.sh", "x"], registry).identity != same


def test_the_candidates_are_the_registry(registry: Registry) -> None:
    candidates = CommandSource(["true"], registry).candidates
    assert [c.id for c in candidates] == [str(number) for number in registry.toggles]
    assert all(c.label == registry.toggles[int(c.id)].title for c in candidates)


def test_seeds_differ_by_number_and_by_search() -> None:
    seeds = {trial_seed(seed, number) for seed in range(20) for number in range(200)}
    assert len(seeds) == 4000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert trial_seed(3, 4) == trial_seed(3, 4)
