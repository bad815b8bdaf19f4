"""The scenarios of a hunt as trials, each of the number of its scenario: what a node of a cluster runs."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from specdebug import __version__
from specdebug.apps.hunt.hunting import HuntRunner, result_with
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.preload import PRELOAD
from specdebug.campaign.trials.source import Candidate
from specdebug.campaign.trials.state import digest_of
from specdebug.scenario.library import Library
from specdebug.targets.settings import TargetChoice
from specdebug.workers.pool import WorkerPool


class HuntSource:
    """Runs drawn scenarios one at a time, with workers of its own, which start with the first of them.

    Args:
        folders: of content, beside what is shipped.
        engine: options that every engine has.

    Raises ContentError where those cannot be used.
    """

    candidates: tuple[Candidate, ...] = ()
    capacity = 1
    rerun = 0

    def __init__(
        self,
        target: TargetChoice,
        seed: int,
        reverts: tuple[int, ...],
        folders: Sequence[Path],
        engine: Mapping[str, str | int],
    ) -> None:
        library = Library(folders)
        fixes = library.toggles(reverts, target)
        told = (toggle.path.read_text(encoding="utf-8") for toggle in fixes)
        about = (__version__, platform.python_version(), str(target), str(seed), repr(sorted(engine.items())))
        self.identity = digest_of("hunt", *about, *told)
        self._runner = HuntRunner(WorkerPool(1, PRELOAD), library, target, seed, reverts, engine=engine)
        self._trial: Trial | None = None
        self._started = False

    def start(self, trial: Trial) -> None:
        """Take in the trial; :meth:`wait` makes it."""
        self._trial = trial

    def wait(self) -> tuple[Trial, TrialResult]:
        """Return the trial's result. Raises SpecDebugError where this machine cannot run it."""
        assert self._trial is not None
        if not self._started:
            self._runner.pool.start()
            self._started = True
        trial, self._trial = self._trial, None
        judged, interrupted = self._runner.together([trial.number])
        if interrupted:
            raise KeyboardInterrupt
        return trial, result_with(judged[0])

    def close(self) -> None:
        """End the workers and servers. May be called more than once."""
        self._runner.close()
        self._runner.pool.close()
