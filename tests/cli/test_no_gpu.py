"""A device that this machine does not have is no verdict, 125, whichever command asks for it, and said in a line."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specdebug.base.errors import CannotRunHere
from specdebug.base.trial import Trial
from specdebug.campaign.loops import fault_matrix
from specdebug.campaign.loops.fault_matrix import verify
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.trials import scenario as trials_of
from specdebug.campaign.trials.scenario import ScenarioSource
from specdebug.engine.workers.registry import LINEUP
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import Outcome
from tests.cli.command import spawn

ROOT = Path(__file__).resolve().parents[2]
MINI = str(ROOT / "tests" / "cli" / "mini.yaml")
ABSENT = "cuda:99" if torch.cuda.is_available() else "cuda"
COMMANDS = [
    ["replay", MINI],
    ["replay", MINI, "--arm", "fixed"],
    ["compare", MINI, "--arm", "fixed", "--arm", "plain"],
    ["diverge", MINI, "--arm", "fixed", "--arm", "positions"],
    ["bundle", MINI, "-o", "b.specdebug"],
    ["flake", MINI, "--arm", "fixed"],
    ["bisect", MINI],
    ["bisect", MINI, "--over", "config", "--arm", "fixed", "--option", "page_size=16"],
    ["bisect", MINI, "--over", "faults", "--arm", "fixed", "--fault", "nan_logits", "--fault", "inf_logits"],
    ["minimise", MINI, "-o", "small.yaml"],
    ["toggles", "verify", "25015"],
    ["faults", "verify", "--class", "nan_logits"],
]


def result(unavailable: bool) -> ArmResult:
    scenario = Library().scenario(MINI)
    outcome = Outcome("unknown", None, None, "there is no CUDA", None, unavailable=unavailable)
    return ArmResult(ArmRun("fixed", scenario, "fixed", 0), outcome)


class Pool:
    """A pool whose arms end as its list says, in turn."""

    capacity, rerun = 1, 0

    def __init__(self, *unavailable: bool) -> None:
        self._ends = [result(each) for each in unavailable]
        self._runs: list[ArmRun] = []

    def start(self, run: ArmRun) -> None:
        self._runs.append(run)

    def wait(self) -> ArmResult:
        return replace(self._ends.pop(0), run=self._runs.pop())

    def close(self) -> None:
        pass


def trials(monkeypatch: pytest.MonkeyPatch, *unavailable: bool) -> Iterator[str]:
    """The results of trials of a scenario, one after another."""
    monkeypatch.setattr(trials_of, "WarmPool", lambda *_: Pool(*unavailable))
    library = Library()
    source = ScenarioSource(library, library.scenario(MINI))
    for number in range(len(unavailable)):
        source.start(Trial(number, frozenset(), 0))
        yield source.wait()[1].outcome


def test_a_search_ends_when_the_first_arm_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotRunHere, match="arm 'fixed': there is no CUDA") as caught:
        list(trials(monkeypatch, True))
    assert caught.value.exit_code == 125


def test_what_one_trial_alone_lacks_is_its_own_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(trials(monkeypatch, False, True))) == 2  # such as memory that a trial takes


def test_a_matrix_of_faults_ends_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_matrix.WarmPool, "wait", lambda pool: result(unavailable=True))
    monkeypatch.setattr(fault_matrix.WarmPool, "start", lambda pool, run: None)
    monkeypatch.setattr(fault_matrix.WarmPool, "foresee", lambda pool, run: None)
    matrix = verify([fault_matrix.CLASSES["nan_logits"]], 3, 1, Library())
    assert (matrix.made, matrix.missing) == (0, 6 * len(LINEUP))
    assert isinstance(matrix.trouble, CannotRunHere)


@pytest.mark.slow
@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: " ".join(word for word in argv if word != MINI))
def test_it_is_125_and_named_for_every_command(argv: list[str], tmp_path: Path) -> None:
    ended = spawn(*argv, "--device", ABSENT)
    assert ended.returncode == 125
    said = ended.stdout + ended.stderr
    assert "there is no " + ABSENT.replace("cuda", "CUDA" if ABSENT == "cuda" else "cuda") in said
    assert "Traceback" not in said
    assert not (tmp_path / "b.specdebug").exists()
