"""The measurement: draw mutants, run them, count. A function of its journal, like every search; but no mutant is chosen
by what became of others, so they are run as workers come free, and a slow one holds up none."""

import hashlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from specdebug.apps.mutants.find import OURS, Code, Mutant
from specdebug.apps.mutants.sound import LeftOutArm, NotSound, commons, measure_sound
from specdebug.apps.mutants.source import MutantRow, MutantSource, Score, score
from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult, trial_seed
from specdebug.campaign.loops.replay import ArmRun
from specdebug.campaign.loops.warm import WarmPool
from specdebug.campaign.trials.campaign import TrialSource, as_they_end, until_stopped
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.state import digest_of, engine_state

DECIDING = ("engine", "run", "reference", "verdict", "async_probe", "diverge", "apps/mutants")
"""Parts of the package that decide what a mutant does, and what is seen of it."""
OF_RELEASES = ("targets", "patching")
"""Such parts where the engine is a release's."""


@dataclass(frozen=True)
class Measured:
    """The rows by their number, as far as they are known, of so many ``planned``.

    ``unreached``: by file, the mutants whose line no arm runs, and all its mutants. ``reason``: of the end, as searches
    have it. ``left_out``: the arms in which nothing was measured.
    """

    rows: tuple[MutantRow, ...]
    planned: int
    unreached: Mapping[str, tuple[int, int]]
    left_out: tuple[LeftOutArm, ...] = ()
    resumed: int = 0
    rerun: int = 0
    reason: str = "done"
    trouble: SpecDebugError | None = None

    @property
    def total(self) -> Score:
        return score("all", self.rows)

    @property
    def survivors(self) -> tuple[MutantRow, ...]:
        return tuple(row for row in self.rows if row.survived)


class MutantWatcher(Protocol):
    """Is told how it goes."""

    def sound(self, done: int, of: int) -> None:
        """Take in how many arms the sound engine has run."""

    def counted(self, row: MutantRow, done: int, of: int, kept: bool) -> None:
        """Take in a mutant's row; ``kept``: it was in the journal."""


def draw(mutants: Sequence[Mutant], number: int, seed: int) -> list[Mutant]:
    """Draw mutants, from each file as many as are its due, in the order of their ids.

    Every so many-th of all is taken, in the order of files, and in an order by chance within each: every mutant is as
    likely as any other, and no file gets more than one above or below its share.
    """
    chance = random.Random(seed)
    keyed = sorted((mutant.file, chance.random(), mutant.id, mutant) for mutant in sorted(mutants, key=_by_id))
    if number >= len(keyed):
        return sorted(mutants, key=_by_id)
    start, every = chance.random(), len(keyed) / number
    return sorted((keyed[int((at + start) * every)][3] for at in range(number)), key=_by_id)


def identity_of(arms: Sequence[ArmRun], number: int, seed: int, globs: Sequence[str]) -> str:
    """A digest of all that a journal's trials belong to: engine, oracles, scenarios and draw."""
    return digest_of("mutants", *_deciding(arms), str(number), str(seed), *sorted(globs))


def _deciding(arms: Sequence[ArmRun]) -> tuple[str, ...]:
    """Digests of the code and scenarios that decide what a mutant does, and how much of it is seen."""
    digest = hashlib.blake2b(digest_size=16)
    released = arms[0].target != DEFAULT
    for part in (*DECIDING, *(OF_RELEASES if released else ())):
        for path in sorted((OURS.root / part).rglob("*.py")):
            digest.update(path.read_bytes())
    engine = [f"{name} {state}" for name, state in sorted(engine_state(arms[0].target).items())] if released else []
    texts = sorted({run.scenario.path.read_text(encoding="utf-8") for run in arms})
    return digest.hexdigest(), *engine, *texts, *sorted(run.key for run in arms)


Spread = Callable[[TrialSource, Callable[[], TrialSource]], TrialSource]
"""Puts a source's trials on a cluster, given what makes such a source there. Raises SpecDebugError if it cannot."""


class NodeSource(MutantSource):
    """Runs mutants one at a time on a node of a cluster, with workers of its own.

    The sound engine is measured there, too: another processor may round otherwise.
    """

    def __init__(self, code: Code, arms: Sequence[ArmRun], drawn: Sequence[Mutant]) -> None:
        self._own = tempfile.TemporaryDirectory(prefix="specdebug-mutants-")
        folder = Path(self._own.name)
        first, *rest = commons(arms)
        pool = WarmPool(first.scenario, first.arms, also=rest)
        try:
            files = sorted({mutant.file for mutant in drawn})
            sound, _ = measure_sound(pool, code, arms, files, folder, lambda done, of: None)
        except BaseException:
            pool.close()
            raise
        super().__init__(pool, sound, drawn, folder, digest_of(*_deciding(arms)))

    def close(self) -> None:
        super().close()
        self._own.cleanup()


@dataclass
class MutantSearch:
    """A measurement to make. ``number``: of mutants to draw; 0: all of them. ``jobs``: at a time, on this machine;
    ``spread``: puts them on a cluster; ``until``: on the monotonic clock, when no more is begun."""

    code: Code
    arms: Sequence[ArmRun]
    mutants: Sequence[Mutant]
    number: int
    seed: int
    jobs: int
    spread: Spread | None = None
    until: float = float("inf")

    def run(self, journal: Journal, watcher: MutantWatcher) -> Measured:
        """Measure, as far as it goes; what was known before stands where not even the sound engine could be run."""
        measured, trouble = until_stopped(lambda: self._run(journal, watcher))
        if isinstance(measured, Measured):
            return measured
        kept = [_row_of(result) for _, result in journal.trials.values() if result.besides]
        planned = self.number or len(self.mutants)
        return Measured(tuple(kept), planned, {}, resumed=len(kept), reason=measured, trouble=trouble)

    def _run(self, journal: Journal, watcher: MutantWatcher) -> Measured:
        first, *rest = commons(self.arms)
        with (
            tempfile.TemporaryDirectory(prefix="specdebug-mutants-") as folder,
            WarmPool(first.scenario, first.arms, jobs=self.jobs, also=rest) as pool,
        ):
            files = sorted({mutant.file for mutant in self.mutants})
            sound, left_out = measure_sound(pool, self.code, self.arms, files, Path(folder), watcher.sound)
            if not sound:
                raise NotSound(f"the engine passes no arm: {left_out[0].name}: {left_out[0].why}")
            reached = [mutant for mutant in self.mutants if any(arm.reaches(mutant) for arm in sound)]
            if not reached:
                raise SpecDebugError("no scenario runs any line that could be mutated there: nothing can be measured")
            drawn = draw(reached, self.number or len(reached), self.seed)
            source: TrialSource = MutantSource(pool, sound, drawn, Path(folder), digest_of(*_deciding(self.arms)))
            if self.spread is not None:
                pool.close()
                source = self.spread(source, partial(NodeSource, self.code, tuple(self.arms), tuple(drawn)))
            measured = self._measured(source, drawn, journal, watcher)
        every, within = (Counter(mutant.file for mutant in some) for some in (self.mutants, reached))
        unreached = {file: (count - within[file], count) for file, count in every.items()}
        return replace(measured, unreached=unreached, left_out=tuple(left_out))

    def _measured(
        self, source: TrialSource, drawn: Sequence[Mutant], journal: Journal, watcher: MutantWatcher
    ) -> Measured:
        rows: dict[int, MutantRow] = {}
        known = dict(journal.trials)
        trials = (
            Trial(number, frozenset({mutant.id}), trial_seed(self.seed, number))
            for number, mutant in enumerate(drawn)
            if number not in known
        )

        def counted(number: int, result: TrialResult, kept: bool) -> None:
            rows[number] = _row_of(result)
            watcher.counted(rows[number], len(rows), len(drawn), kept)

        def all_rows() -> str:
            for number, (_, result) in sorted(known.items()):
                counted(number, result, True)
            for trial, result in as_they_end(source, takewhile(lambda _: time.monotonic() < self.until, trials)):
                journal.record(trial, result)
                counted(trial.number, result, False)
            return "done"

        resumed = len(known)
        try:
            reason, trouble = until_stopped(all_rows)
        finally:
            source.close()
        ordered = tuple(rows[number] for number in sorted(rows))
        return Measured(ordered, len(drawn), {}, (), resumed, source.rerun, reason, trouble)


def _row_of(result: TrialResult) -> MutantRow:
    assert result.besides is not None
    return MutantRow.from_text(result.besides[0])


def _by_id(mutant: Mutant) -> tuple[str, int, str, int]:
    return mutant.file, mutant.line, mutant.operator, mutant.number
