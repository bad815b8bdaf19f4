"""Plant bugs of the kinds of upstream's fixes in its releases, one at a time: are they seen, and placed?

    python benchmarks/planted_twins.py                                # every bug
    python benchmarks/planted_twins.py --only 960101                  # one bug
    python benchmarks/planted_twins.py --keep runs --json found.json  # what that folder has is not run again

The bugs are toggles (``planted_twins/toggles``): reverted, the bug is there. ``family`` has the dimension and the stage
that it is of, stated before anything is run, and ``url`` what of upstream's it is modelled on. As ``planted_sglang``
does, the sound engine is run in each arm (of ``scenarios/twins``), and its lines and tensors are noted. A bug runs in
the arms that run its lines, cheapest first, under all oracles, laws and probes there are. One that none of these sees
is looked for by twins: the arm is served in the other ways, and both sides have the bug. A bug is *effective* where a
tensor, a book or the trace is not the sound engine's, or a twin is broken. The stage is right where what is told first
is one of the stage's (:data:`STAGES`): a signature, or the first tensor that differs, from the sound engine's or
between twins. Exit code 1 if fewer than 52 of 60 effective bugs are caught, or the stage of fewer than 45 is right."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from planted_sglang import STAGES as OF_EAGLE
from planted_sglang import Bug, Planting

from specdebug.apps.mutants.find import Code, Mutant
from specdebug.apps.mutants.sound import Sound, commons, measure_sound, sound_arms
from specdebug.apps.twins.plan import plan_twins
from specdebug.apps.twins.run import TwinResult, TwinRunner, processor_seconds
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.replay import Choices, plan, run_arms
from specdebug.campaign.loops.warm import WarmPool
from specdebug.campaign.preload import PRELOAD
from specdebug.diverge.locate import Locator
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.targets.installs.fit import source_of
from specdebug.targets.registry import find_target
from specdebug.targets.settings import ReleasedEngine, parse_target
from specdebug.verdict.signatures import OUTPUTS
from specdebug.workers.pool import WorkerPool

FOLDER = Path(__file__).with_suffix("")
TARGETS = ("sglang==0.5.23", "vllm==0.32.0", "vllm/v2==0.32.0")
CAUGHT, NAMED = 52 / 60, 45 / 60
ROUNDS = (
    ("cold", "alone", "order", "again", "interrupted", "retracted"),
    ("plain", "chunks", "eager", "overlap", "page", "backend"),
    ("reference",),
)
"""Relations, those first that need no other engine; a bug that a round sees is not run in the next."""
STAGES: Mapping[str, tuple[str, ...]] = {
    **OF_EAGLE,
    "draft": (*OF_EAGLE["draft"], "*@ngram.*", "*@block.*"),
    "context": ("*@context.*", "*@kv_pool.write.loc", "*@draft_prefill.*", "*@draft_extend.*"),
    "verify": (*OF_EAGLE["verify"], "*@target_*"),
    "accept": (*OF_EAGLE["accept"], "pools@reserve", "*@commit.target_kv"),
    "relay": (*OF_EAGLE["relay"], "*@relay.*", "*@draft.bonus", "*@block.input_ids"),
    "memory": (*OF_EAGLE["memory"], "*@kv_pool.*", "*@*.kv_pool.*", "*@*.out_cache_loc"),
    "radix": (*OF_EAGLE["radix"], "*block_pool*", "*@prefix.*"),
    "state": ("*@commit.state", "*@prefix.state"),
    "snapshot": ("*@snapshot.*",),
    "prefix": ("*@prefix.*",),
    "ends": (*OF_EAGLE["ends"], "twin@*: stop reasons"),
    "logprobs": ("twin@*: log probabilities", "*@logprobs.*"),
}
"""By stage, what names it: a signature, or a twin with what is broken where no tensor is another."""


@dataclass(frozen=True)
class Paired:
    """A bug's twins in an arm, of one round. ``seen``: the relation that is broken first, what of it, and the first
    tensor that differs between the two; empty where all hold."""

    bug: int
    arm: str
    round: int
    seen: str
    located: str
    detail: str
    seconds: float

    @classmethod
    def of(cls, bug: int, arm: str, number: int, results: Sequence[TwinResult]) -> Paired:
        seconds = sum(processor_seconds(results).values())
        broken = next((each for each in results if each.verdict == "broken"), None)
        if broken is None:
            return cls(bug, arm, number, "", "", "", seconds)
        seen = f"{broken.signature}: {broken.judged.breaks[0].what}"
        first = None if broken.place is None else broken.place.first
        site = "" if first is None or not first.site else f"mismatch@{first.site}"
        return cls(bug, arm, number, seen, site, broken.words, seconds)


@dataclass(frozen=True)
class Found:
    """A bug, and what came of it. ``by``: what saw it first, in ``arm``; ``told``: the place that was told; ``effect``:
    what differs from the sound engine, empty where nothing does."""

    number: int
    dimension: str
    stage: str
    title: str
    model: str
    effect: str
    by: str = ""
    arm: str = ""
    told: str = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return any(fnmatchcase(self.told, pattern) for pattern in STAGES[self.stage])

    @property
    def row(self) -> str:
        what = f"`{self.by}`" + (f", at `{self.told}`" if self.told != self.by else "") if self.by else "**missed**"
        what = what if self.by or self.effect else "no effect"
        right = ("yes" if self.right else "no") if self.by else ""
        arm = f"`{self.arm}`" if self.arm else self.effect
        cells = (f"{self.number} ({self.model}): {self.title}", self.stage, what, right, f"{self.seconds:.1f}", arm)
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Replayed:
    """A bug's failure as ``replay`` reports it: what was found, and the signature of where that began."""

    bug: int
    arm: str
    seen: str
    told: str
    detail: str


class Runs:
    """Replays bugs and runs their twins, and keeps what came of them."""

    def __init__(
        self,
        pool: WorkerPool,
        library: Library,
        target: ReleasedEngine,
        scenarios: Sequence[Scenario],
        keep: Path | None,
    ) -> None:
        self._pool, self._library, self._target, self._keep = pool, library, target, keep
        self._scenarios = scenarios
        paired = [Paired(**each) for each in _lines(self._file("twins"))]
        self._known = {(each.bug, each.arm, each.round): each for each in paired}
        replayed = [Replayed(**each) for each in _lines(self._file("replays"))]
        self._replayed = {(each.bug, each.arm): each for each in replayed}

    def look(self, bug: Bug, arms: Iterable[Sound], rounds: Iterable[int]) -> Paired | None:
        """The first round of the first arm that is broken; None where none is."""
        every = list(arms)
        for number in rounds:
            for arm in every:
                found = self._ran(bug, arm, number)
                if found.seen:
                    return found
        return None

    def replayed(self, bug: Bug, name: str) -> Replayed | None:
        """An arm's failure as ``replay`` locates it: it hears the sites of probes, too. None where it does not fail."""
        if (bug.number, name) not in self._replayed:
            scenario, _, arm = name.partition("/")
            (found,) = [each for each in self._scenarios if each.path.stem == scenario]
            choices = Choices(arms=(arm,), reverts=(bug.number,), target=self._target)
            results, _ = run_arms(self._pool, self._library, plan(found, choices, self._library))
            (result,) = Locator(self._pool, self._library).located(results)
            outcome = result.outcome
            seen = outcome.signature if outcome.located is None else outcome.located.seen
            told = Replayed(bug.number, name, seen or "", outcome.signature or "", outcome.detail)
            self._replayed[bug.number, name] = told
            self._note(self._file("replays"), told)
        told = self._replayed[bug.number, name]
        return told if told.seen else None

    def _ran(self, bug: Bug, arm: Sound, number: int) -> Paired:
        known = self._known.get((bug.number, arm.name, number))
        if known is None:
            known = self._pairs(bug, arm, number)
            print(f"{bug.number} {arm.name} {number}: {known.seen} {known.located}", file=sys.stderr)
            self._known[bug.number, arm.name, number] = known
            self._note(self._file("twins"), known)
        return known

    def _file(self, what: str) -> Path | None:
        return None if self._keep is None else self._keep.with_name(f"{self._keep.name}-{what}.jsonl")

    def _note(self, path: Path | None, told: Paired | Replayed) -> None:
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(told)) + "\n")

    def _pairs(self, bug: Bug, arm: Sound, number: int) -> Paired:
        scenario, name = arm.run.scenario, arm.run.arm
        scenario = self._library.gather([str(scenario.path)])[0]
        broken = scenario.on(self._target).broken_twins(name)
        choices = Choices(arms=(name,), reverts=(bug.number,), target=self._target)
        has = scenario.twins.relations or ROUNDS[number]  # others may be broken by right
        wanted = [each for each in ROUNDS[number] if each in has and each not in broken]
        if not wanted:
            return Paired(bug.number, arm.name, number, "", "", "", 0.0)
        try:
            planned = plan_twins(scenario, choices, wanted, self._library)
            results = TwinRunner(self._pool, self._library).results(planned.pairs)
        except SpecDebugError as error:
            return Paired(bug.number, arm.name, number, "", "", str(error), 0.0)
        return Paired.of(bug.number, arm.name, number, results)


def _lines(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def judge(bug: Bug, model: str, planting: Planting, runs: Runs, sound: Sequence[Sound]) -> Found:
    dimension, _, stage = bug.stage.partition(": ")
    judged = planting.judge(bug, sound, first=True)
    found = Found(bug.number, dimension, stage, bug.title, model, judged.effect)
    if judged.caught:
        first = judged.caught[0]
        told, seen = first.located or first.signature or "", first.signature or ""
        if told != seen and seen.partition("@")[0] not in OUTPUTS and (again := runs.replayed(bug, first.arm)):
            told, seen = again.told, again.seen
        more: dict[str, Any] = {"arm": first.arm, "detail": first.detail, "seconds": first.seconds}
        return replace(found, by=seen, told=told, **more)
    reached = [arm for arm in sound if arm.reaches(cast(Mutant, bug))]
    if other := [arm for arm in reached if planting.differs(bug, arm)]:
        pair = runs.look(bug, other[:2], range(len(ROUNDS)))
    else:  # its lines, or what they do, may show with log probabilities, or where the engine is another
        pair = runs.look(bug, (reached or sound)[:1], (1, 0))
    if pair is None:
        return found
    told = pair.located or planting.differs_at(bug, pair.arm) or pair.seen
    more = {"arm": pair.arm, "detail": pair.detail, "seconds": pair.seconds}
    return replace(found, effect=found.effect or pair.seen, by=pair.seen, told=told, **more)


def of_target(named: str, only: Sequence[int], scenarios: Sequence[str], keep: Path | None) -> list[Found]:
    """What comes of the bugs of a release. Raises SpecDebugError."""
    target = parse_target(named)
    assert isinstance(target, ReleasedEngine)
    library, (package, _, runner) = Library((FOLDER,)), named.partition("=")[0].partition("/")
    engine: Any = find_target(target)
    code = Code(package, source_of(engine.installed()).folder, ("**/*.py",))
    toggles = [each for each in library.all_toggles(target) if each.path.parent.parent == FOLDER]
    toggles = [each for each in toggles if ("V2" in (each.family or "")) == (runner == "v2")]
    toggles = [each for each in toggles if not only or each.pr in only]
    every = [(Bug.of(each, code, target.named.version or ""), _model(each.url)) for each in toggles]
    bugs = [(bug, model) for bug, model in every if bug is not None]
    if not bugs:
        return []
    chosen = library.gather(list(scenarios))
    arms, _ = sound_arms(library, chosen, target)
    first, *rest = commons(arms)
    with (
        tempfile.TemporaryDirectory(prefix="specdebug-planted-") as folder,
        WarmPool(first.scenario, first.arms, also=rest) as warm,
        WorkerPool(1, PRELOAD) as pool,
    ):
        files = sorted({bug.file for bug, _ in bugs})
        tell = lambda done, of: print(f"the sound engine: {done} of {of}", file=sys.stderr)  # noqa: E731
        sound, loud = measure_sound(warm, code, arms, files, Path(folder), tell)
        sound.sort(key=lambda each: each.cost)
        for each in loud:
            print(f"left out: {each.name}: {each.why}", file=sys.stderr)
        planting = Planting(warm, Path(folder), None if keep is None else keep / f"{package}{runner}-runs.jsonl")
        runs = Runs(pool, library, target, chosen, None if keep is None else keep / f"{package}{runner}")
        return [judge(bug, model, planting, runs, sound) for bug, model in bugs]


def _model(url: str | None) -> str:
    """``#27338`` of the address of a pull request."""
    return f"#{(url or '').rpartition('/')[2]}" if url else "-"


def told(found: Sequence[Found]) -> list[str]:
    """The answer in Markdown."""
    lines = []
    for dimension in dict.fromkeys(each.dimension for each in found):
        some = [each for each in found if each.dimension == dimension]
        lines += [f"### {dimension}: {count(some)}", ""]
        lines += ["| bug | stage | seen by | stage named | s | in |", "|---|---|---|---|---|---|"]
        lines += [*(each.row for each in some), ""]
    return [*lines, f"all: {count(found)}"]


def count(found: Sequence[Found]) -> str:
    caught = [each for each in found if each.by]
    effective = sum(bool(each.effect) for each in found)
    right = sum(each.right for each in caught)
    return f"{len(found)} bugs, {effective} effective, {len(caught)} caught, the stage of {right} named"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="files, names, folders; else scenarios/twins")
    parser.add_argument("--only", type=int, action="append", help="numbers of bugs; all, if none is")
    parser.add_argument("--target", action="append", help=f"{', '.join(TARGETS)}, if none is")
    parser.add_argument("--keep", type=Path, help="folder of runs, which are added to and not run again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the answer there, too")
    chosen = parser.parse_args(arguments)
    if chosen.keep is not None:
        chosen.keep.mkdir(parents=True, exist_ok=True)
    scenarios = chosen.scenarios or [str(FOLDER.parents[1] / "scenarios" / "twins")]
    found = [
        each
        for target in chosen.target or TARGETS
        for each in of_target(target, chosen.only or (), scenarios, chosen.keep)
    ]
    print("\n".join(told(found)))
    if chosen.json is not None:
        answer = [{**asdict(each), "right": each.right} for each in found]
        chosen.json.write_text(json.dumps(answer, indent=1), encoding="utf-8")
    effective = [each for each in found if each.effect]
    enough = sum(bool(each.by) for each in effective) >= CAUGHT * len(effective) - 1e-9
    return int(not enough or sum(each.right for each in effective if each.by) < NAMED * len(effective) - 1e-9)


if __name__ == "__main__":
    raise SystemExit(main())
