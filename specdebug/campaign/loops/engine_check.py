"""The check of an installed release: ten tokens without drafts and ten with, held to the reference; what came of it is
kept in the environment's record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from specdebug.campaign.loops.replay import Choices, Progress, Replay, RunContent, replay
from specdebug.scenario.grammar import Scenario
from specdebug.targets.installs.store import Installed, keep_check
from specdebug.targets.settings import ReleasedEngine
from specdebug.workers.pool import WorkerPool

SCENARIO = Path(__file__).resolve().parents[2] / "_assets" / "engines" / "check" / "ten_tokens.yaml"


@dataclass(frozen=True)
class EngineChecked:
    """A release, with the arms that were run on it."""

    installed: Installed
    replay: Replay

    @property
    def exit_code(self) -> int:
        """0 when all tokens were right, 1 when some were not, 125 when it could not be told."""
        return self.replay.exit_code


def check_engine(
    pool: WorkerPool, library: RunContent, scenario: Scenario, there: Installed, progress: Progress
) -> EngineChecked:
    """Run the check, and keep what came of it. Raises StoreError where that cannot be kept."""
    target = ReleasedEngine(release=str(there.release), store=str(there.folder.parent))
    answer = replay(pool, library, scenario, Choices(target=target), progress)
    told = {result.run.arm: result.outcome.verdict for result in answer.results}
    means = [result.outcome.metrics.accept_mean for result in answer.results if result.run.arm == "drafts"]
    checked = {**told, "accept_length": means[0] if means else None}
    kept = replace(there, checked=checked) if answer.interrupted else keep_check(there, checked)
    return EngineChecked(kept, answer)
