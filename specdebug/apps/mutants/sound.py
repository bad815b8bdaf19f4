"""The arms that mutants are run in (of shipped scenarios, on the CPU, that revert and damage nothing and are to pass),
and what the sound engine does in each: its verdict, its record, the lines it runs. Which differences are no more than
rounding is told with the values in hand: both run again and keep those tensors; a release's worker has them at once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from specdebug.apps.mutants.find import Code, Mutant
from specdebug.apps.mutants.worker import (
    BOOKS,
    BUILT,
    HELD,
    LINES,
    PATCHED,
    TAPE,
    TARGET,
    Books,
    first_other,
    read_books,
)
from specdebug.base.abilities import DEFAULT
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.campaign.loops.replay import ArmRun, Choices, RunContent, plan, run_as
from specdebug.campaign.loops.warm import WarmPool
from specdebug.campaign.trials.campaign import as_they_end
from specdebug.diverge.align import Difference, in_lockstep, is_where
from specdebug.diverge.recording import RecordedStep, read
from specdebug.diverge.rounding import compared, tolerance
from specdebug.patching.source import Patch
from specdebug.reference.config import read_config
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.workload import Common
from specdebug.targets.registry import find_target
from specdebug.targets.settings import TargetChoice
from specdebug.verdict.outcome import Outcome
from specdebug.workers.home import Nest
from specdebug.workers.job import Job

LOOKED_AT = 24
"""Differences that are looked at of each site: the first, and others evenly over the run, for errors that grow."""

Keep = tuple[tuple[int, int, str], ...]  # step, call and site of the tensors to keep
Lines = Mapping[str, frozenset[int]]  # by file below the package
Moved = Callable[[int, int], None]


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
HASHES = "hashes"
NESTS = 16
"""Built engines that wait for a mutant; each holds about 100 MiB of its own."""
TRACED = 4.0  # times as long as it else may take is what a run may take that notes its lines


class NotSound(SpecDebugError):
    """The engine as it is does not pass: nothing can be measured against it."""

    exit_code = 1


@dataclass(frozen=True)
class MutantRun(ArmRun):
    """An arm run with a patch, or none, that is recorded in ``folder``. ``traced``: files whose lines are noted.
    ``keep``: tensors that are kept there in place of a record of all. Of a release: ``root`` is its package's folder,
    ``sound`` the sound engine's tape to hold it against, ``rebuilt`` says that the patch is of what building runs, so
    that no engine that is built already will do, and ``processor_s`` is the processor time that it may take."""

    patch: Patch | None = None
    folder: str = ""
    traced: tuple[str, ...] = ()
    keep: Keep = ()
    root: str = ""
    sound: str = ""
    rebuilt: bool = False
    processor_s: float = float("inf")

    def job_of(self, target: str, **more: Any) -> Job:
        record = {name: getattr(self, name) for name in ("folder", "traced", "keep", "root", "sound")}
        patch, shape = pickle.dumps(self.patch), pickle.dumps(self.shape)
        job = super().job_of(TARGET, **record, patch=patch, shape=shape, **more)
        return dataclasses.replace(job, processor_s=self.processor_s)

    def nest(self, payload: Mapping[str, Any]) -> Nest | None:
        found = super().nest(payload)
        if found is None or found.of is None:
            return found
        root = {"root": payload["root"]}
        patched = dataclasses.replace(found.of, target=PATCHED, argument=found.of.argument | root)
        whole = self.traced or self.rebuilt
        return patched if whole else dataclasses.replace(found, target=BUILT, of=patched, kept=NESTS)


@dataclass(frozen=True)
class Found:
    """The comparison of a mutant's record with the sound engine's. ``first``: the first difference, if there is one;
    ``certain``: it is no rounding; ``doubtful``: differences that have to be looked at to know."""

    first: FirstDifference | None = None
    certain: bool = True
    doubtful: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Sound(ABC):
    """The sound engine's run of an arm. ``seconds``: that it took, of processor time for a release. ``lines``: that
    ran, by file below the package. ``name``: scenario/arm."""

    run: ArmRun
    seconds: float
    trace_hash: str
    steps: int
    books: Books
    lines: Lines

    @property
    def name(self) -> str:
        return self.run.key

    @property
    @abstractmethod
    def cost(self) -> float:
        """What arms are ordered by, the cheapest first; no time, which would be another each time."""

    def reaches(self, mutant: Mutant) -> bool:
        return _runs(self.lines, mutant)

    @property
    def reached(self) -> Iterator[tuple[str, int]]:
        """The lines that it runs, by file."""
        return ((file, line) for file, ran in self.lines.items() for line in ran)

    @abstractmethod
    def of(self, mutant: Mutant | None, key: str, folder: Path, keep: Keep = ()) -> MutantRun:
        """The arm with a mutant, or none, recorded in a folder, and ended when it takes far longer than it should."""

    @abstractmethod
    def difference(self, folder: Path, outcome: Outcome | None) -> Found:
        """Where a mutant's record differs from this one."""

    def _limited(self, **more: Any) -> Scenario:
        limits = self.run.scenario.limits
        limited = dataclasses.replace(
            limits,
            **more,
            max_steps=min(limits.max_steps, STEPS_MORE * self.steps + GRACE_STEPS),
            exceeded="hang",
        )
        return dataclasses.replace(self.run.scenario, limits=limited)

    def _beside(self, book: tuple[int, str] | None, same_trace: bool) -> FirstDifference | None:
        """A difference that no tensor shows."""
        if book is not None:
            return FirstDifference("book", self.name, book[0], book[1])
        return None if same_trace else FirstDifference("trace", self.name, None, "what the run reported")


@dataclass(frozen=True)
class OwnSound(Sound):
    """Of our own engine, whose recordings are laid side by side."""

    recorded: Sequence[RecordedStep]

    @property
    def cost(self) -> float:
        """Rows of all tensors that passed a site."""
        return sum(sum(call.rows) for step in self.recorded for call in step.calls)

    def of(self, mutant: Mutant | None, key: str, folder: Path, keep: Keep = ()) -> MutantRun:
        patch = None if mutant is None else mutant.patch
        scenario = self._limited(timeout_s=min(self.run.scenario.limits.timeout_s, SLOWER * self.seconds + GRACE_S))
        facts: dict[str, Any] = {"key": key, "scenario": scenario, "patch": patch, "folder": str(folder)}
        return run_as(MutantRun, self.run, **facts, keep=keep)

    def difference(self, folder: Path, outcome: Outcome | None) -> Found:
        differences = in_lockstep(self.recorded, _steps(folder))
        # other slots for the same tokens are no other result
        differs = (each for each in differences if each.what != "value" or not is_where(each.site))
        found = list(islice(differs, LOOK_AHEAD))
        book = first_other(self.books, read_books(folder / BOOKS))
        same_trace = outcome is not None and outcome.trace_hash == self.trace_hash
        if not found:
            return Found(self._beside(book, same_trace))
        alone = all(each.what == "value" and each.site == found[0].site for each in found)
        read = not (alone and book is None and same_trace) or found[0].site.startswith(KEPT)
        soft = book is None and same_trace and all(each.soft for each in found)
        return Found(FirstDifference.of(self.name, found[0], read), not soft, chosen(found) if soft else ())


@dataclass(frozen=True)
class ReleaseSound(Sound):
    """Of a release, which a tape in ``folder`` was made of. ``building``: the lines that ran while it was built, which
    took ``building_s`` seconds."""

    folder: Path
    building: Lines
    building_s: float

    @property
    def cost(self) -> float:
        """Bytes that passed its sites."""
        return (self.folder / TAPE).stat().st_size

    def reaches(self, mutant: Mutant) -> bool:
        return super().reaches(mutant) or _runs(self.building, mutant)

    @property
    def reached(self) -> Iterator[tuple[str, int]]:
        yield from super().reached
        yield from ((file, line) for file, ran in self.building.items() for line in ran)

    def of(self, mutant: Mutant | None, key: str, folder: Path, keep: Keep = ()) -> MutantRun:
        assert mutant is not None
        rebuilt = _runs(self.building, mutant)
        most_s = SLOWER * self.seconds + GRACE_S + (self.building_s if rebuilt else 0.0)
        facts: dict[str, Any] = {"key": key, "scenario": self._limited(), "processor_s": most_s}
        facts |= {"patch": mutant.patch, "folder": str(folder), "sound": str(self.folder / TAPE), "rebuilt": rebuilt}
        return run_as(MutantRun, self.run, **facts)

    def difference(self, folder: Path, outcome: Outcome | None) -> Found:
        book = first_other(self.books, read_books(folder / BOOKS))
        same_trace = outcome is not None and outcome.trace_hash == self.trace_hash
        held = _json(folder / HELD) or {"first": None, "sites": []}
        beside = self._beside(book, same_trace)
        if held["first"] is None:
            return Found(beside)
        what, step, site, whose, text = held["first"]
        if what == "rounding" and beside is not None:
            return Found(beside)
        read = beside is not None or len(held["sites"]) > 1 or what != "value" or site.startswith(KEPT)
        first = FirstDifference(what, self.name, step, site, whose, text, read, tuple(held["before"]))
        return Found(first, what != "rounding")


@dataclass(frozen=True)
class FirstDifference:
    """The first difference. ``site``: a probe's, or the name of a book. ``request``: whose it is, if anybody's.

    ``read``: something else differed, too, or could later; else what is wrong there was never read. ``before``: of a
    release, sites of slots that were passed before it in its step.
    """

    kind: str
    scenario: str
    step: int | None
    site: str
    request: str | None = None
    text: str = ""
    read: bool = True
    before: tuple[str, ...] = ()

    @classmethod
    def of(cls, scenario: str, found: Difference, read: bool) -> FirstDifference:
        return cls(found.what, scenario, found.step, found.site, found.owner, found.text, read)


@dataclass(frozen=True)
class LeftOutArm:
    """An arm in which nothing can be measured, and why."""

    name: str
    why: str


def sound_arms(
    library: RunContent, scenarios: Sequence[Scenario], target: TargetChoice = DEFAULT
) -> tuple[list[ArmRun], list[LeftOutArm]]:
    """The arms that the sound engine must pass, each with its packs, and those that a release cannot be asked for.
    Raises SpecDebugError."""
    found, left_out = list[ArmRun](), list[LeftOutArm]()
    for scenario, name in ((each, name) for each in scenarios for name in each.arms if _is_sound(each, name)):
        key = f"{scenario.path.stem}/{name}"
        try:
            (run,) = plan(scenario, Choices(arms=(name,), target=None if target == DEFAULT else target), library)
            if target != DEFAULT:
                find_target(target).warm(run.options)
        except SpecDebugError as error:
            if target == DEFAULT:
                raise
            left_out.append(LeftOutArm(key, str(error)))
            continue
        if run.target == target and run.asked.device == "cpu":
            found.append(dataclasses.replace(run, key=key))
    return found, left_out


def commons(arms: Sequence[ArmRun]) -> list[Common]:
    """The arms by scenario, as workers are made ready for them."""
    scenarios = {str(run.scenario.path): run.scenario for run in arms}
    named = {path: tuple(run.arm for run in arms if str(run.scenario.path) == path) for path in scenarios}
    return [Common(scenario, named[path], ()) for path, scenario in scenarios.items()]


def measure_sound(
    pool: WarmPool, code: Code, arms: Sequence[ArmRun], files: Sequence[str], folder: Path, moved: Moved
) -> tuple[list[Sound], list[LeftOutArm]]:
    """Run the sound engine in every arm. ``moved`` is told how many are done, of how many.

    They come back in the order in which mutants are run in them, which does not depend on the machine, with the arms
    that a release as it is does not pass. Raises SpecDebugError when our own does not, or nothing can be run.
    """
    traced = tuple(str(code.root / file) for file in files)
    runs = [_recorded(code, run, folder, traced) for run in arms]
    own = all(run.target == DEFAULT for run in runs)
    found, left_out = (_own(pool, code, runs, moved), []) if own else _of_release(pool, code, runs, moved)
    found.sort(key=lambda each: (each.cost, each.name))
    return found if own else varied(found), left_out


def varied(found: Sequence[Sound]) -> list[Sound]:
    """Arms so that the first few run all lines that any does, then again those that follow, the cheapest that will do.

    Next is always the arm that runs the most lines for its cost of those that the arms before it have run the fewest
    times.
    """
    left, ordered, times = list(found), list[Sound](), Counter[tuple[str, int]]()
    every = {each.name: frozenset(each.reached) for each in found}
    while left:
        fewest = min(times[line] for each in left for line in every[each.name])
        gain = {each.name: sum(times[line] == fewest for line in every[each.name]) / (each.cost + 1) for each in left}
        best = max(left, key=lambda each: gain[each.name])
        left.remove(best)
        ordered.append(best)
        times.update(every[best.name])
    return ordered


def _recorded(code: Code, run: ArmRun, folder: Path, traced: tuple[str, ...]) -> MutantRun:
    place = folder / f"sound-{run.key.replace('/', '-')}"
    place.mkdir()
    return run_as(MutantRun, run, folder=str(place), traced=traced, root=str(code.root))


def _own(pool: WarmPool, code: Code, runs: Sequence[MutantRun], moved: Moved) -> list[Sound]:
    found = list[Sound]()
    for ended in as_they_end(pool, runs):
        if why := _why_not(ended.outcome):
            raise NotSound(f"the engine as it is does not pass {ended.run.key}: {why}; mend that first")
        assert isinstance(ended.run, MutantRun)
        folder, (_, lines) = Path(ended.run.folder), _lines(ended.run, code)
        facts, steps = (ended.outcome.metrics.wall_s, ended.outcome.trace_hash), _steps(folder)
        found.append(OwnSound(ended.run, *facts, len(steps), read_books(folder / BOOKS), lines, steps))
        moved(len(found), len(runs))
    return found


def _of_release(
    pool: WarmPool, code: Code, runs: Sequence[MutantRun], moved: Moved
) -> tuple[list[Sound], list[LeftOutArm]]:
    """Each arm twice: in a process that builds its engine, for its lines, and as mutants run, for its tape."""
    taped = [run_as(MutantRun, run, folder=f"{run.folder}/again", root=run.root) for run in runs]
    traced = [_longer(run) for run in runs]
    for run in taped:
        Path(run.folder).mkdir()
    ended = dict[str, Outcome]()
    for each in as_they_end(pool, (*traced, *taped)):
        ended[each.run.key] = each.outcome
        moved(len(ended), 2 * len(runs))
    found, left_out, known = list[Sound](), list[LeftOutArm](), dict[str, str]()
    for run, lined in zip(taped, traced, strict=True):
        one, other, folder = ended[lined.key], ended[run.key], Path(run.folder)
        why, books = _why_not(one) or _why_not(other), read_books(folder / BOOKS)
        if not why and (one.trace_hash != other.trace_hash or books != read_books(Path(lined.folder) / BOOKS)):
            why = "two runs of it are not alike"
        whole = "" if why else _digest((folder / TAPE, Path(lined.folder) / LINES))
        if not why and whole in known:
            why = f"it does what {known[whole]} does"
        if why:
            left_out.append(LeftOutArm(run.key, why))
            continue
        known[whole] = run.key
        building, lines = _lines(lined, code)
        facts = (run, other.metrics.processor_s, other.trace_hash, other.metrics.steps, books, lines)
        found.append(ReleaseSound(*facts, folder, building, one.metrics.processor_s))
    return found, left_out


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _longer(run: MutantRun) -> MutantRun:
    """The run under a key of its own, with the time that noting lines takes."""
    limits = dataclasses.replace(run.scenario.limits, timeout_s=run.scenario.limits.timeout_s * TRACED)
    scenario = dataclasses.replace(run.scenario, limits=limits)
    return dataclasses.replace(run, key=f"{run.key}, lines noted", scenario=scenario)


def _why_not(outcome: Outcome) -> str:
    """Why the sound engine does not pass an arm; empty if it does."""
    return "" if outcome.verdict == "pass" else outcome.signature or outcome.detail or str(outcome.verdict)


def _lines(run: MutantRun, code: Code) -> tuple[Lines, Lines]:
    """The lines that ran before the engine was built, where that is told apart, and those that ran then."""
    found = _json(Path(run.folder) / LINES)
    if found is None:
        raise CannotRunHere(f"the sound engine's run of {run.key} left no record in {run.folder}; is there room?")
    before, then = (
        {Path(file).relative_to(code.root).as_posix(): frozenset(ran) for file, ran in some.items()} for some in found
    )
    return before, then


def _json(path: Path) -> Any:
    """What a worker wrote; None if it did not come to that."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _runs(lines: Lines, mutant: Mutant) -> bool:
    first, last = mutant.lines
    return not lines.get(mutant.file, frozenset()).isdisjoint(range(first, last + 1))


def _is_sound(scenario: Scenario, arm: str) -> bool:
    expected = scenario.expect.get(arm)
    to_pass = expected is None or expected.met_by("pass", None)
    return to_pass and not scenario.arms[arm].revert and not scenario.faults_of(arm)


def _steps(folder: Path) -> list[RecordedStep]:
    path = folder / HASHES
    return read(path) if path.exists() else []
