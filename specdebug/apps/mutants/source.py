"""The row of each mutant that was measured, and counts of rows."""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specdebug.apps.mutants.find import Mutant
from specdebug.apps.mutants.sound import FirstDifference, MutantRun, ReleaseSound, Sound, beyond_rounding, to_keep
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmResult
from specdebug.campaign.loops.warm import ArmAtFault, ArmLost, WarmPool
from specdebug.campaign.trials.campaign import Candidate
from specdebug.diverge.align import Difference
from specdebug.search.intervals import Interval, clopper_pearson

CONFIDENCE = 0.95
ENOUGH = 10
"""Arms of a release after which a mutant that differs in none of them is taken to have no effect."""


@dataclass(frozen=True)
class MutantRow:
    """One mutant, measured. ``scenario``: the arm that caught it, as scenario/arm; ``step``: where that saw it first.

    ``effective``: some tensor, token or book differed, or the engine failed. ``by_time``: it was caught by a limit of
    time or steps alone. ``rounding``: floating-point values differed, no more than rounding makes them, and nothing
    else did. ``difference``: the first from the sound engine, in the arm that caught it or else in the first that
    showed one. ``ran``: arms it was run in, of ``reached`` that run its line. ``rejected``: what an arm said that took
    the scenario for wrong, or the machine for too small.
    """

    id: str
    file: str
    function: str
    line: int
    operator: str
    diff: str
    effective: bool
    caught: bool
    signature: str | None = None
    scenario: str | None = None
    step: int | None = None
    by_time: bool = False
    rounding: bool = False
    difference: FirstDifference | None = None
    ran: int = 0
    reached: int = 0
    seconds: float = 0.0
    rejected: str = ""

    @property
    def survived(self) -> bool:
        return self.effective and not self.caught

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_text(cls, text: str) -> MutantRow:
        fields = json.loads(text)
        difference = fields.pop("difference")
        if difference is not None:
            difference = FirstDifference(**difference | {"before": tuple(difference["before"])})
        return cls(**fields, difference=difference)


@dataclass(frozen=True)
class Score:
    """Counts of some mutants."""

    name: str
    mutants: int
    effective: int
    caught: int
    by_time: int

    @property
    def rate(self) -> float | None:
        """The part of the effective that was caught; None of nothing."""
        return self.caught / self.effective if self.effective else None

    @property
    def interval(self) -> Interval:
        """Where the part lies in all mutants that these were drawn from."""
        return clopper_pearson(self.caught, self.effective, CONFIDENCE) if self.effective else Interval(0.0, 1.0)

    def to_dict(self) -> dict[str, Any]:
        interval = self.interval
        return {**asdict(self), "score": self.rate, "interval": [interval.low, interval.high]}


def score(name: str, rows: Iterable[MutantRow]) -> Score:
    rows = list(rows)
    effective = [row for row in rows if row.effective]
    caught = [row for row in effective if row.caught]
    return Score(name, len(rows), len(effective), len(caught), sum(row.by_time for row in caught))


def scores(rows: Sequence[MutantRow], key: Callable[[MutantRow], str]) -> list[Score]:
    return [score(name, [row for row in rows if key(row) == name]) for name in sorted(set(map(key, rows)))]


@dataclass
class _Going:
    """A mutant under way. ``left``: arms that it has not been run in."""

    trial: Trial
    mutant: Mutant
    left: deque[Sound]
    reached: int
    arm: Sound | None = None
    ran: int = 0
    seconds: float = 0.0
    rejected: str = ""
    differences: list[FirstDifference] = field(default_factory=list)
    doubtful: deque[tuple[Sound, tuple[Difference, ...]]] = field(default_factory=deque)
    """Arms in which nothing may differ but rounding, with what is to be looked at."""
    certain: bool = False  # true once a difference is known to be none of rounding

    @property
    def idle(self) -> bool:
        """True of a mutant of a release that has done nothing in as many arms as are enough to tell."""
        tried = self.ran >= ENOUGH and isinstance(self.arm, ReleaseSound)
        return tried and not (self.differences or self.rejected)

    def row(self, ended: ArmResult | None = None) -> MutantRow:
        """The mutant's row, as far as it is known. ``ended``: the arm that caught it."""
        outcome = None if ended is None else ended.outcome
        # A difference that something came of says more than one that was never read, and a tensor more than a book.
        best = min(self.differences, key=lambda each: (not each.read, each.kind in ("book", "trace")), default=None)
        signature = None if outcome is None else outcome.signature
        certain = outcome is not None or self.certain or bool(self.rejected)
        return MutantRow(
            id=self.mutant.id,
            file=self.mutant.path,
            function=self.mutant.function,
            line=self.mutant.line,
            operator=self.mutant.operator,
            diff=self.mutant.diff,
            effective=certain,
            caught=outcome is not None,
            signature=signature,
            scenario=None if ended is None or self.arm is None else self.arm.name,
            step=None if outcome is None else outcome.where_step,
            by_time=signature == "hang",
            rounding=best is not None and not certain,
            difference=self.differences[-1] if outcome is not None and self.differences else best,
            ran=self.ran,
            reached=self.reached,
            seconds=round(self.seconds, 2),
            rejected=self.rejected,
        )


@dataclass
class MutantSource:
    """Runs mutants, as a search's source. ``sound``: the arms, in the order in which they are tried.

    ``folder`` is where they are recorded; ``identity``: of all that decides what a mutant does and what is seen of it.
    A trial's one candidate is a mutant's id. Its result's ``besides`` holds the mutant's row, as text.
    """

    pool: WarmPool
    sound: Sequence[Sound]
    mutants: Sequence[Mutant]
    folder: Path
    identity: str

    def __post_init__(self) -> None:
        self._mutants: Mapping[str, Mutant] = {mutant.id: mutant for mutant in self.mutants}
        self._going: dict[str, _Going] = {}
        self.candidates = tuple(Candidate(mutant.id, mutant.function) for mutant in self.mutants)

    @property
    def capacity(self) -> int:
        return self.pool.capacity

    @property
    def rerun(self) -> int:
        return self.pool.rerun

    def start(self, trial: Trial) -> None:
        (name,) = trial.reverted
        mutant = self._mutants[name]
        arms = deque(sound for sound in self.sound if sound.reaches(mutant))
        self._next_arm(_Going(trial, mutant, arms, len(arms)))

    def wait(self) -> tuple[Trial, TrialResult]:
        """Return the next mutant that is decided. Raises as ``WarmPool.wait`` when there can be no workers."""
        while True:
            going, row = self._turn()
            if row is None and going.left and not going.idle:
                self._next_arm(going)
                continue
            if row is None and going.doubtful and not going.certain:
                self._look_again(going, None)
                continue
            row = row or going.row()
            besides = (row.to_text(),)
            if row.caught:
                return going.trial, TrialResult("fail", row.signature, row.seconds, row.diff, besides)
            return going.trial, TrialResult("pass", None, row.seconds, besides=besides)

    def close(self) -> None:
        self.pool.close()

    def _next_arm(self, going: _Going) -> None:
        going.arm = going.left.popleft()
        going.ran += 1
        key = f"{going.trial.number}/{going.arm.name}"
        folder = self.folder / str(going.trial.number)
        folder.mkdir()
        self._going[key] = going
        self.pool.start(going.arm.of(going.mutant, key, folder))

    def _look_again(self, going: _Going, mutant: Mutant | None) -> None:
        """Run an arm again, of the sound engine or with the mutant, and keep the tensors that are to be looked at."""
        arm, found = going.doubtful[0]
        folder = self._kept_in(going)[mutant is not None]
        folder.mkdir()
        self._going[folder.name] = going
        self.pool.start(arm.of(mutant, folder.name, folder, to_keep(found)))

    def _kept_in(self, going: _Going) -> tuple[Path, Path]:
        return self.folder / f"{going.trial.number}-sound", self.folder / f"{going.trial.number}-mutant"

    def _looked(self, going: _Going, run: MutantRun) -> tuple[_Going, MutantRow | None]:
        """Take in an arm that was run again: of the sound engine first, then with the mutant."""
        if run.patch is None:
            self._look_again(going, going.mutant)
            return self._turn()
        arm, found = going.doubtful.popleft()
        folders = self._kept_in(going)
        first = beyond_rounding(found, arm.run, *folders)
        for folder in folders:
            shutil.rmtree(folder)
        if first is not None:
            going.certain = True
            going.differences.insert(0, FirstDifference.of(arm.name, first, True))
        return going, None

    def _turn(self) -> tuple[_Going, MutantRow | None]:
        """Wait for an arm; its mutant, and the mutant's row if that arm caught it."""
        try:
            ended = self.pool.wait()
        except ArmAtFault as fault:
            return self._rejected(fault.run.key, str(fault)), None
        except ArmLost as lost:
            if lost.failure.cause not in ("memory", "killed"):
                raise
            return self._rejected(lost.run.key, str(lost)), None
        going = self._going.pop(ended.run.key)
        going.seconds += ended.outcome.metrics.processor_s or ended.outcome.metrics.wall_s
        assert isinstance(ended.run, MutantRun)
        if ended.run.keep:
            return self._looked(going, ended.run)
        assert going.arm is not None
        folder = self.folder / str(going.trial.number)
        found = going.arm.difference(folder, ended.outcome)
        shutil.rmtree(folder)
        if found.doubtful:
            going.doubtful.append((going.arm, found.doubtful))
        if found.first is not None:
            going.differences.append(found.first)
            going.certain = going.certain or found.certain
        return going, going.row(ended) if ended.outcome.verdict == "fail" else None

    def _rejected(self, key: str, why: str) -> _Going:
        going = self._going.pop(key)
        going.rejected = going.rejected or why
        for each in (str(going.trial.number), *self._kept_in(going)):
            shutil.rmtree(self.folder / each, ignore_errors=True)
        return going
