"""Trials of a scenario of which something was taken away: each is a pair of twins."""

from collections.abc import Sequence
from dataclasses import replace

from specdebug.apps.twins.plan import as_it_is, pair_of
from specdebug.apps.twins.run import TwinRunner
from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmRun, RunContent
from specdebug.campaign.shrink import ScenarioSpace, ShrunkSource
from specdebug.patching.toggles import Toggle
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.text import load_tokenizer
from specdebug.scenario.workload import Workload, expand
from specdebug.targets.relations import Relation
from specdebug.workers.pool import WorkerPool


class TwinSource(ShrunkSource):
    """Runs one pair at a time. ``library``: where fixes are looked up for a twin on another target."""

    capacity = 1

    def __init__(
        self,
        space: ScenarioSpace,
        toggles: Sequence[Toggle],
        relation: Relation,
        pool: WorkerPool,
        library: RunContent,
    ) -> None:
        super().__init__(space, (), toggles)
        self._relation, self._workers, self._library = relation, pool, library
        self._trial: Trial | None = None

    def start(self, trial: Trial) -> None:
        self._trial = trial  # :meth:`wait` makes it

    def wait(self) -> tuple[Trial, TrialResult]:
        """Return the trial's result. Raises SpecDebugError where nothing of it can be run, KeyboardInterrupt."""
        assert self._trial is not None
        trial, (scenario, toggles) = self._trial, self.changed(self._trial)
        run = ArmRun("as it is", scenario, self.arm, trial.seed, (), (*self._own, *toggles))
        try:
            base = as_it_is(run, run.key)
            workload = expand(scenario, load_tokenizer(base.asked.model), trial.seed)
            runner = TwinRunner(self._workers, _Planned(self._library, workload), locates=False)
            pair = pair_of(self._relation, base, workload, self._library)
            (found,) = runner.results([replace(pair, broken=True)])
        except SpecDebugError as error:
            if error.exit_code != 2 or not self._has_run:
                raise
            return trial, TrialResult("untestable", None, 0.0, str(error))
        if runner.interrupted:
            raise KeyboardInterrupt
        self._has_run = True
        seconds = sum(outcome.metrics.wall_s for outcome in found.judged.outcomes)
        if found.signature is None:
            return trial, TrialResult("pass", None, seconds, found.judged.why)
        return trial, TrialResult("fail", found.signature, seconds, found.words)


class _Planned:
    """A library whose workloads are one that is planned already."""

    def __init__(self, library: RunContent, workload: Workload) -> None:
        self.packs, self.toggles = library.packs, library.toggles
        self._workload = workload

    def workload(self, scenario: Scenario, arm: str, seed: int) -> Workload:
        return self._workload
