"""Plant bugs of the kinds that SGLang's history has in a release of it, one at a time: which scenarios catch each?

    python benchmarks/planted_sglang.py                                   # every bug, every shipped scenario
    python benchmarks/planted_sglang.py --bug 950018 draft_positions      # one bug, one scenario
    python benchmarks/planted_sglang.py --target sglang==0.5.23 --keep runs.jsonl   # what that has is not run again

The bugs are toggles (``planted_sglang/toggles``): reverted, the bug is there. ``family`` is the stage that it is of,
stated before anything is run. A bug runs in every arm that is to pass on the release, cheapest first, in warm workers:
SGLang is imported once, its scheduler is built for each bug and arm. It is *effective* where its lines ran and, in
some arm, the verdict is a failure or the trace (steps, tokens, accept lengths, cached prefixes) is not the sound
engine's; else where some tensor that goes in or out of a stage is not. *Caught* is a verdict ``fail``. The stage is
right where the signature of the first failure, as ``replay`` locates it, is one of the stage's (:data:`STAGES`). Exit
code 1 if the sound engine does not pass, or if fewer than 20 of 21 effective bugs are caught or the stage of fewer than
18 of 21 is right.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, planned, run_arms
from specdebug.campaign.loops.warm import WarmPool
from specdebug.campaign.preload import PRELOAD
from specdebug.diverge.locate import Locator
from specdebug.diverge.run import recorded, unjudged
from specdebug.patching.toggles import Toggle
from specdebug.scenario.library import Library
from specdebug.scenario.workload import Common
from specdebug.targets.settings import parse_target
from specdebug.verdict.outcome import Outcome
from specdebug.workers.pool import WorkerPool

BUGS = Path(__file__).with_suffix("")
SOUND = 0
SLOWER, GRACE_S = 10.0, 60.0
"""A bug's run may take so many times as long as the sound engine's, and so many seconds more."""
CAUGHT, NAMED = 20 / 21, 18 / 21
STAGES: Mapping[str, tuple[str, ...]] = {
    "draft": ("*@draft.*", "*@draft_graph.*", "mismatch@draft_tree"),
    "tree": ("*@tree.*", "*@draft.organize.*", "mismatch@draft_tree"),
    "verify": ("*@verify.*",),
    "accept": ("*@accept.*", "mismatch@acceptance", "mismatch@target_kv", "pools@lengths"),
    "draft_extend": ("*@draft_extend.*", "mismatch@draft_state"),
    "draft_prefill": ("*@draft_prefill.*",),
    "relay": ("pools@relay",),
    "radix": ("pools@reuse", "pools@kept", "pools@locks", "pools@ownership"),
    "memory": ("pools@*",),
    "ends": ("ends@*",),
    "sampling": ("sampling@*", "mismatch@acceptance", "*@accept.*"),
}
"""By stage, the signatures that name it."""


@dataclass(frozen=True)
class Ran:
    """A run of a bug in an arm, or of none (``SOUND``). ``hits``: how often its lines ran. ``seconds``: of processor.
    ``located``: the signature of the place where the failure began, once that was looked for."""

    bug: int
    arm: str
    verdict: str
    signature: str | None
    step: int | None
    detail: str
    trace: str
    hits: int
    seconds: float
    wall_s: float
    warm: str
    located: str | None = None

    @classmethod
    def of(cls, bug: int, arm: str, outcome: Outcome) -> Ran:
        hits = sum(outcome.reverted_hits.get(str(bug), {}).values())
        facts = outcome.verdict, outcome.signature, outcome.where_step, outcome.detail, outcome.trace_hash, hits
        return cls(bug, arm, *facts, outcome.metrics.processor_s, outcome.metrics.wall_s, outcome.warm)


@dataclass(frozen=True)
class Judged:
    """A bug, and what came of it. ``effect``: the first arm that shows any, and what; empty of an ineffective one.
    ``caught``: the runs that failed, cheapest arm first."""

    number: int
    title: str
    stage: str
    effect: str
    caught: tuple[Ran, ...]

    @property
    def right(self) -> bool:
        """The first failure is at the stage."""
        said = (self.caught[0].located or "") if self.caught else ""
        return any(fnmatchcase(said, pattern) for pattern in STAGES[self.stage])

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "right": self.right}

    @property
    def row(self) -> str:
        if not self.caught:
            what = "**not caught**" if self.effect else "no effect"
            return f"| {self.number} | {self.title} | {self.stage} | {what} | | | |"
        first, names = self.caught[0], dict.fromkeys(each.arm.partition("/")[0] for each in self.caught)
        what = f"`{first.signature}`" + (f", at `{first.located}`" if first.located != first.signature else "")
        named, where = "yes" if self.right else "no", ", ".join(f"`{name}`" for name in names)
        return f"| {self.number} | {self.title} | {self.stage} | {what} | {named} | {first.seconds:.1f} | {where} |"


class Planting:
    """Runs bugs in arms, and keeps what came of them in a file, if there is one. ``pool`` is warm; recordings are made
    by ``others``."""

    def __init__(self, pool: WarmPool, others: WorkerPool, library: Library, keep: Path | None) -> None:
        self._pool, self._others, self._library = pool, others, library
        self._keep = keep
        lines = keep.read_text(encoding="utf-8").splitlines() if keep is not None and keep.exists() else []
        self._known = {(each.bug, each.arm): each for each in (Ran(**json.loads(line)) for line in lines)}

    def ran(self, bug: int, run: ArmRun) -> Ran:
        """Run an arm with a bug in it, unless that is known."""
        if (bug, run.key) not in self._known:
            self._pool.start(run)
            self._note(Ran.of(bug, run.key, self._pool.wait().outcome))
        return self._known[bug, run.key]

    def located(self, ran: Ran, run: ArmRun) -> Ran:
        """The run with the place where its failure began, as ``specdebug replay`` locates it."""
        if ran.located is None:
            outcome = Outcome(ran.verdict, ran.signature, None, ran.detail, ran.step)  # type: ignore[arg-type]
            (told,) = Locator(self._others, self._library).located([ArmResult(run, outcome)])
            self._note(dataclasses.replace(ran, located=told.outcome.signature))
        return self._known[ran.bug, ran.arm]

    def alike(self, run: ArmRun, other: ArmRun) -> bool:
        """All that goes in and out of the stages of two runs is the same."""
        with tempfile.TemporaryDirectory(prefix="specdebug-planted-") as folder:
            files = [Path(folder) / name for name in ("one", "other")]
            pair = zip((run, other), files, strict=True)
            jobs = [recorded(unjudged(each), file.name, hashes=str(file)) for each, file in pair]
            run_arms(self._others, self._library, jobs)
            return files[0].read_bytes() == files[1].read_bytes()

    def _note(self, ran: Ran) -> None:
        self._known[ran.bug, ran.arm] = ran
        print(f"{ran.bug or 'sound'} {ran.arm}: {ran.verdict} {ran.located or ran.signature or ''}", file=sys.stderr)
        if self._keep is not None:
            with self._keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(ran)) + "\n")


def sound_arms(library: Library, names: Sequence[str], target: str) -> Iterator[ArmRun]:
    """The arms of scenarios that are to pass on the release, with no fix reverted and no fault injected."""
    for scenario in library.gather(names):
        there = scenario.on(parse_target(target))
        arms = [name for name in there.arms if not there.arms[name].revert and not there.faults_of(name)]
        expected = {name: there.expectation_of(name) for name in arms}
        passing = tuple(name for name in arms if (each := expected[name]) is None or each.met_by("pass", None))
        if passing:
            choices = Choices(arms=passing, target=parse_target(target))
            for run in planned(scenario, choices, library).runs:
                yield dataclasses.replace(run, key=f"{scenario.path.stem}/{run.arm}")


def with_bug(run: ArmRun, bug: Toggle, sound: Ran) -> ArmRun:
    """The arm with a bug, ended when it takes far longer than the sound engine."""
    limits = dataclasses.replace(run.scenario.limits, timeout_s=SLOWER * sound.wall_s + GRACE_S, exceeded="hang")
    scenario = dataclasses.replace(run.scenario, limits=limits)
    return dataclasses.replace(run, scenario=scenario, toggles=(bug,))


def judge(
    planting: Planting, arms: Mapping[str, ArmRun], sound: Mapping[str, Ran], bug: Toggle, *, first: bool
) -> Judged:
    """Run a bug in every arm, or up to the ``first`` that catches it."""
    runs = {name: with_bug(run, bug, sound[name]) for name, run in arms.items()}
    found: list[Ran] = []
    for run in runs.values():
        found.append(planting.ran(bug.pr, run))
        if first and found[-1].verdict == "fail":
            break
    caught = tuple(each for each in found if each.verdict == "fail")
    if caught:
        caught = (planting.located(caught[0], runs[caught[0].arm]), *caught[1:])
    ran = [each for each in found if each.hits]
    other = (each for each in ran if each.verdict == "fail" or each.trace != sound[each.arm].trace)
    effect = next((f"{each.arm}: {each.signature or 'another trace'}" for each in other), "")
    if not effect:
        names = (each.arm for each in ran)
        effect = next((f"{name}: tensors" for name in names if not planting.alike(arms[name], runs[name])), "")
    return Judged(bug.pr, bug.title, bug.family, effect, caught)


def told(judged: Iterable[Judged], arms: Sequence[Ran]) -> list[str]:
    """The answer in Markdown."""
    every = list(judged)
    effective = [each for each in every if each.effect]
    caught, right = (sum(map(bool, some)) for some in zip(*((e.caught, e.right) for e in effective), strict=True))
    spent = [each.caught[0].seconds for each in effective if each.caught]
    return [
        "| bug | what the source does without it | stage | first failure | stage named | s | caught by |",
        "|---|---|---|---|---|---|---|",
        *(each.row for each in every),
        "",
        f"{len(every)} bugs, {len(effective)} effective; {caught} caught, the stage of {right} named by the first "
        f"failure; a catching run takes at most {max(spent, default=0):.1f} s of processor; {len(arms)} arms",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="files, names, folders; else all shipped")
    parser.add_argument("--bug", type=int, action="append", help="numbers of bugs; all, if none is")
    parser.add_argument("--target", default="sglang==0.5.13")
    parser.add_argument("--keep", type=Path, help="file of runs, a line each, that is added to and not run again")
    parser.add_argument("--first", action="store_true", help="run a bug no further than the first arm that catches it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the answer there, too")
    chosen = parser.parse_args(arguments)
    library = Library((BUGS,))
    planted = {
        each.pr: each for each in library.all_toggles(parse_target(chosen.target)) if each.path.parent.parent == BUGS
    }
    bugs = [planted[number] for number in chosen.bug or planted]
    shipped = BUGS.parents[1] / "scenarios"
    arms = list(sound_arms(library, chosen.scenarios or [str(shipped), str(shipped / "server")], chosen.target))
    first, *rest = [Common(run.scenario, (run.arm,), ()) for run in arms]
    with WarmPool(first.scenario, first.arms, also=rest) as pool, WorkerPool(1, PRELOAD) as others:
        planting = Planting(pool, others, library, chosen.keep)
        sound = {run.key: planting.ran(SOUND, run) for run in arms}
        loud = [each for each in sound.values() if each.verdict != "pass"]
        for each in loud:
            print(f"the sound engine: {each.arm}: {each.verdict} {each.signature or each.detail}")
        quiet = {
            run.key: run for run in sorted(arms, key=lambda run: sound[run.key].seconds) if sound[run.key] not in loud
        }
        judged = [judge(planting, quiet, sound, bug, first=chosen.first) for bug in bugs]
    print("\n".join(told(judged, list(sound.values()))))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([each.to_dict() for each in judged], indent=1), encoding="utf-8")
    effective = [each for each in judged if each.effect]
    enough = sum(bool(e.caught) for e in effective) >= CAUGHT * len(effective) - 1e-9
    named = sum(e.right for e in effective) >= NAMED * len(effective) - 1e-9
    return int(bool(loud) or not enough or not named)


if __name__ == "__main__":
    raise SystemExit(main())
