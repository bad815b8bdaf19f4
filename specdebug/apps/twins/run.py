"""Run pairs of twins, compare them, and lay the runs of those that are broken beside each other for the first tensor
that differs."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from specdebug.apps.twins.judge import JudgedPair, judged
from specdebug.apps.twins.plan import TwinPair, TwinPlan
from specdebug.apps.twins.words import break_text
from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.replay import ArmResult, ArmRun, LeftOut, Progress, RunContent, run_through
from specdebug.diverge.run import Divergence, Diverging, not_comparable
from specdebug.scenario.grammar import Scenario
from specdebug.verdict.outcome import EXIT_CODES, Outcome
from specdebug.verdict.twins import TWIN
from specdebug.workers.pool import WorkerPool


@dataclass(frozen=True)
class TwinResult:
    """What a pair came to.

    Attributes:
        verdict: ``holds``, ``broken`` or ``not compared``.
        place: where the two runs' tensors first differ, if that was looked for.
    """

    judged: JudgedPair
    place: Divergence | None = None

    @property
    def pair(self) -> TwinPair:
        return self.judged.pair

    @property
    def verdict(self) -> str:
        if self.judged.why:
            return "not compared"
        return "broken" if self.judged.breaks else "holds"

    @property
    def signature(self) -> str | None:
        return f"{TWIN}{self.pair.relation.name}" if self.verdict == "broken" else None

    @property
    def words(self) -> str:
        """What is broken first."""
        how = self.pair.twin.how or self.pair.relation.changes
        return f"{break_text(self.judged, self.judged.breaks[0])} (twin: {how})"

    @property
    def met(self) -> bool | None:
        """Return True if it came to what is expected of it; None where it came to nothing."""
        if self.verdict == "not compared":
            return None
        return (self.verdict == "broken") == bool(self.pair.broken)


@dataclass(frozen=True)
class ScenarioTwins:
    """The twins of a scenario; those known by then where a signal ``interrupted`` them."""

    scenario: Scenario
    results: tuple[TwinResult, ...]
    left_out: tuple[LeftOut, ...] = ()
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 all came to what is expected of them, 1 one did not, 125 none could be compared, 128 + N after signal N."""
        if self.interrupted:
            return interrupts.exit_code()
        met = [each.met for each in self.results]
        return EXIT_CODES["fail" if False in met else "pass" if True in met else "unknown"]


@dataclass
class TwinRunner:
    """Runs pairs. ``locates``: runs of a broken one are recorded and compared, tensor by tensor."""

    pool: WorkerPool
    library: RunContent
    progress: Progress | None = None
    locates: bool = True
    interrupted: bool = False
    _outcomes: dict[str, Outcome] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)

    def run(self, plans: Sequence[TwinPlan]) -> list[ScenarioTwins]:
        """Run the pairs of several scenarios, whose runs have keys that differ. Raises SpecDebugError where an arm as
        it is cannot be run."""
        results = iter(self.results([pair for plan in plans for pair in plan.pairs]))
        return [
            ScenarioTwins(plan.scenario, tuple(next(results) for _ in plan.pairs), plan.left_out, self.interrupted)
            for plan in plans
        ]

    def results(self, pairs: Sequence[TwinPair], known: Mapping[str, Outcome] | None = None) -> list[TwinResult]:
        """Run pairs. ``known``: outcomes of runs, by key, that were made before. Raises as :meth:`run`."""
        self._outcomes |= known or {}
        runs = {run.key: run for pair in pairs for run in pair.runs if run.key not in self._outcomes}
        self._serve(list(runs.values()), {pair.base.key for pair in pairs})
        every = [self._judged(pair) for pair in pairs]
        results = [TwinResult(each) for each in every]
        if not self.interrupted:
            try:
                judged(every, self.pool)
                for at, each in enumerate(every):
                    if self.locates and not each.why and any(broken.what != "runs" for broken in each.breaks):
                        results[at] = TwinResult(each, self._located(each.pair))
            except KeyboardInterrupt:
                self.interrupted = True
        return results

    def _serve(self, runs: Sequence[ArmRun], bases: set[str]) -> None:
        """Run all; a twin that its engine declines is kept with the reason."""
        if not runs:
            return
        ran = run_through(self.pool, self.library, runs, progress=self.progress)
        self._keep(ran.results)
        self.interrupted = ran.interrupted
        if ran.trouble is None or ran.interrupted:
            return
        left = [run for run in runs if run.key not in self._outcomes]
        if len(runs) == 1 and runs[0].key not in bases and ran.trouble.exit_code == 2:
            self._refused[runs[0].key] = str(ran.trouble)
        elif len(runs) == 1 or ran.trouble.exit_code != 2:
            raise ran.trouble
        else:
            for run in left:  # which of them it is shows one by one
                self._serve([run], bases)

    def _keep(self, results: Sequence[ArmResult]) -> None:
        self._outcomes |= {each.run.key: each.outcome for each in results}

    def _judged(self, pair: TwinPair) -> JudgedPair:
        base = pair.base
        workload = self.library.workload(base.scenario, base.arm, base.seed)
        why = pair.why_not or next((self._refused[run.key] for run in pair.runs if run.key in self._refused), "")
        outcomes = tuple(self._outcomes[run.key] for run in pair.runs if run.key in self._outcomes)
        if self.interrupted:
            why = why or "interrupted"
        return JudgedPair(pair, workload, outcomes, why)

    def _located(self, pair: TwinPair) -> Divergence | None:
        """The first tensor that differs between the two runs of a broken pair; None where there is one run alone."""
        if pair.other is None:
            return None
        if reason := not_comparable(pair.base, pair.other):
            return Divergence((pair.base.key, pair.relation.name), reason=reason)
        if self.progress is not None:
            self.progress.notice(f"looking for the first tensor that differs: {pair.other.key}")
        both = (replace(pair.base, key="as it is"), replace(pair.other, key=pair.relation.name))
        with tempfile.TemporaryDirectory(prefix="specdebug-twins-") as folder:
            try:
                found = Diverging(self.pool, self.library, both, Path(folder)).run()
            except SpecDebugError as error:
                return Divergence((both[0].key, both[1].key), reason=str(error))
        if found.interrupted:
            self.interrupted = True
        return found


def processor_seconds(results: Sequence[TwinResult]) -> Mapping[str, float]:
    """Processor time of every run's worker, by its key."""
    return {
        run.key: outcome.metrics.processor_s
        for each in results
        for run, outcome in zip(each.pair.runs, each.judged.outcomes, strict=False)
    }
