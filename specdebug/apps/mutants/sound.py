"""The arms that mutants are run in (of shipped scenarios, on the CPU, that revert and damage nothing and are to pass),
and what the sound engine does in each: its verdict, its record, the lines it runs. Which differences are no more than
rounding is told with the values in hand: both run again and keep those tensors."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from specdebug.apps.mutants.find import ROOT, Mutant
from specdebug.apps.mutants.worker import TARGET, Books, first_other, read_books
from specdebug.base.abilities import DEFAULT
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, RunContent, plan, run_as
from specdebug.campaign.loops.warm import WarmPool
from specdebug.campaign.trials.campaign import as_they_end
from specdebug.diverge.align import Difference, in_lockstep, is_where
from specdebug.diverge.recording import RecordedStep, read
from specdebug.diverge.rounding import compared, tolerance
from specdebug.patching.source import Patch
from specdebug.reference.config import read_config
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.workload import Common
from specdebug.verdict.outcome import Outcome
from specdebug.workers.job import Job

LOOKED_AT = 24
"""Differences that are looked at of each site: the first, and others evenly over the run, for errors that grow."""

Keep = tuple[tuple[int, int, str], ...]  # step, call and site of the tensors to keep


def chosen(found: Sequence[Difference]) -> tuple[Difference, ...]:
    by_site = groupby(sorted(found, key=lambda each: each.site), key=lambda each: each.site)
    sites = [list(some) for _, some in by_site]
    return tuple(
        some[int(at * max(1.0, len(some) / LOOKED_AT))] for some in sites for at in range(min(len(some), LOOKED_AT))
    )


def to_keep(found: Iterable[Difference]) -> Keep:
    """The tensors that hold their values; both runs make the same calls, or more than values would differ."""
    shares = [each.left for each in found if each.left is not None]
    return tuple(sorted({(share.step, share.call, share.descriptor.site) for share in shares}))


def beyond_rounding(found: Iterable[Difference], run: ArmRun, sound: Path, mutant: Path) -> Difference | None:
    """The first difference that is wider than rounding makes it, by the tensors kept in two folders."""
    shape = run.shape
    model = read_config(checkpoint_path(shape.model))
    for each in sorted(found, key=lambda each: each.step):
        seen = compared(each, sound, mutant)
        allowed = tolerance(each.site, shape.dtype, model.num_layers, model.hidden_size)
        if seen is not None and seen.gap > allowed:
            return each
    return None


SLOWER, GRACE_S = 10.0, 5.0  # a mutant may take so many times as long as the sound engine, and so many seconds more
STEPS_MORE, GRACE_STEPS = 10, 64  # so many times the steps, and so many more: without any accepted draft it takes fewer
LOOK_AHEAD = 5000  # differences of a run that are looked at, to tell whether anybody read what was wrong
KEPT = ("kv_pool.write", "draft.bonus", "draft_extend.topk", "draft_extend.logits")
"""Sites whose values are kept for later steps, which may be none that these scenarios make."""
HASHES, BOOKS, LINES = "hashes", "books.json", "lines.json"


class NotSound(SpecDebugError):
    """The engine as it is does not pass: nothing can be measured against it."""

    exit_code = 1


@dataclass(frozen=True)
class MutantRun(ArmRun):
    """An arm run with a patch, or none, that is recorded in ``folder``. ``traced``: files whose lines are noted.
    ``keep``: tensors that are kept there in place of a record of all."""

    patch: Patch | None = None
    folder: str = ""
    traced: tuple[str, ...] = ()
    keep: Keep = ()

    def job_of(self, target: str, **more: Any) -> Job:
        record = {"patch": pickle.dumps(self.patch), "folder": self.folder, "traced": self.traced, "keep": self.keep}
        return super().job_of(TARGET, **record, **more)


@dataclass(frozen=True)
class Sound:
    """The sound engine's run of an arm. ``lines``: that ran, by file below the package. ``name``: scenario/arm."""

    run: ArmRun
    seconds: float
    trace_hash: str
    steps: Sequence[RecordedStep]
    books: Books
    lines: Mapping[str, frozenset[int]]

    @property
    def name(self) -> str:
        return self.run.key

    @property
    def rows(self) -> int:
        """Rows of all tensors that passed a site: the arm's cost."""
        return sum(sum(call.rows) for step in self.steps for call in step.calls)

    def reaches(self, mutant: Mutant) -> bool:
        first, last = mutant.lines
        return not self.lines.get(mutant.file, frozenset()).isdisjoint(range(first, last + 1))

    def of(self, mutant: Mutant | None, key: str, folder: Path, keep: Keep = ()) -> MutantRun:
        """The arm with a mutant, or none, recorded in a folder, and ended when it takes far longer than it should."""
        limits = self.run.scenario.limits
        limited = dataclasses.replace(
            limits,
            timeout_s=min(limits.timeout_s, SLOWER * self.seconds + GRACE_S),
            max_steps=min(limits.max_steps, STEPS_MORE * len(self.steps) + GRACE_STEPS),
            exceeded="hang",
        )
        scenario = dataclasses.replace(self.run.scenario, limits=limited)
        patch = None if mutant is None else mutant.patch
        return run_as(MutantRun, self.run, key=key, scenario=scenario, patch=patch, folder=str(folder), keep=keep)

    def difference(
        self, folder: Path, outcome: Outcome | None
    ) -> tuple[FirstDifference | None, tuple[Difference, ...]]:
        """Where a mutant's record first differs from this one, None: nowhere; and differences that have to be looked
        at, for all of them could be rounding."""
        differences = in_lockstep(self.steps, _steps(folder))
        # other slots for the same tokens are no other result
        differs = (each for each in differences if each.what != "value" or not is_where(each.site))
        found = list(islice(differs, LOOK_AHEAD))
        book = first_other(self.books, read_books(folder / BOOKS))
        same_trace = outcome is not None and outcome.trace_hash == self.trace_hash
        if found:
            alone = all(each.what == "value" and each.site == found[0].site for each in found)
            read = not (alone and book is None and same_trace) or found[0].site.startswith(KEPT)
            soft = book is None and same_trace and all(each.soft for each in found)
            return FirstDifference.of(self.name, found[0], read), chosen(found) if soft else ()
        if book is not None:
            return FirstDifference("book", self.name, book[0], book[1]), ()
        return None if same_trace else FirstDifference("trace", self.name, None, "what the run reported"), ()


@dataclass(frozen=True)
class FirstDifference:
    """The first difference. ``site``: a probe's, or the name of a book. ``request``: whose it is, if anybody's.

    ``read``: something else differed, too, or could later; else what is wrong there was never read.
    """

    kind: str
    scenario: str
    step: int | None
    site: str
    request: str | None = None
    text: str = ""
    read: bool = True

    @classmethod
    def of(cls, scenario: str, found: Difference, read: bool) -> FirstDifference:
        return cls(found.what, scenario, found.step, found.site, found.owner, found.text, read)


def sound_arms(library: RunContent, scenarios: Sequence[Scenario]) -> list[ArmRun]:
    """The arms that the sound engine must pass, each with its packs."""
    found: list[ArmRun] = []
    for scenario in scenarios:
        names = [name for name in scenario.arms if _is_sound(scenario, name)]
        for run in plan(scenario, Choices(arms=tuple(names)), library) if names else ():
            if run.target == DEFAULT and run.asked.device == "cpu":
                found.append(dataclasses.replace(run, key=f"{scenario.path.stem}/{run.arm}"))
    return found


def commons(arms: Sequence[ArmRun]) -> list[Common]:
    """The arms by scenario, as workers are made ready for them."""
    scenarios = {str(run.scenario.path): run.scenario for run in arms}
    named = {path: tuple(run.arm for run in arms if str(run.scenario.path) == path) for path in scenarios}
    return [Common(scenario, named[path], ()) for path, scenario in scenarios.items()]


def measure_sound(
    pool: WarmPool, arms: Sequence[ArmRun], files: Sequence[str], folder: Path, moved: Callable[[int, int], None]
) -> list[Sound]:
    """Run the sound engine in every arm. ``moved`` is told how many are done, of how many.

    They come back in the order of their cost, as far as that does not depend on the machine.
    Raises SpecDebugError when it does not pass or cannot be run.
    """
    traced = tuple(str(ROOT / file) for file in files)

    def recorded() -> Iterator[MutantRun]:
        for number, run in enumerate(arms):
            place = folder / f"sound-{number}"
            place.mkdir()
            yield run_as(MutantRun, run, folder=str(place), traced=traced)

    found = list[Sound]()
    for ended in as_they_end(pool, recorded()):
        found.append(_sound(ended))
        moved(len(found), len(arms))
    return sorted(found, key=lambda each: (each.rows, each.name))


def _sound(ended: ArmResult) -> Sound:
    run, outcome = ended.run, ended.outcome
    if outcome.verdict != "pass":
        said = outcome.signature or outcome.detail or outcome.verdict
        raise NotSound(f"the engine as it is does not pass {run.key}: {said}; mend that first")
    assert isinstance(run, MutantRun)
    folder = Path(run.folder)
    try:
        lines = json.loads((folder / LINES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CannotRunHere(f"the sound engine's run of {run.key} left no record in {folder}; is there room?") from None
    return Sound(
        run,
        outcome.metrics.wall_s,
        outcome.trace_hash,
        _steps(folder),
        read_books(folder / BOOKS),
        {Path(file).relative_to(ROOT).as_posix(): frozenset(ran) for file, ran in lines.items()},
    )


def _is_sound(scenario: Scenario, arm: str) -> bool:
    expected = scenario.expect.get(arm)
    to_pass = expected is None or expected.met_by("pass", None)
    return to_pass and not scenario.arms[arm].revert and not scenario.faults_of(arm)


def _steps(folder: Path) -> list[RecordedStep]:
    path = folder / HASHES
    return read(path) if path.exists() else []
