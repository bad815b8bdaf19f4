"""Plant bugs of the kinds that SGLang's history has in a release of it, one at a time: which scenarios catch each?

    python benchmarks/planted_sglang.py                                   # every bug, every shipped scenario
    python benchmarks/planted_sglang.py --bug 950018 draft_positions      # one bug, one scenario
    python benchmarks/planted_sglang.py --first --keep runs.jsonl         # what that file has is not run again

The bugs are toggles (``planted_sglang/toggles``): reverted, the bug is there. ``family`` is the stage that it is of,
stated before anything is run. As ``specdebug mutants`` does, the sound engine is run in every arm that is to pass, and
its lines, tensors and books are noted; a bug runs in the arms that run its lines, cheapest first, in a fork of the
built engine, or of one built anew where building runs them. It is *effective* where in some arm a tensor, a book or the
trace (steps, tokens, accept lengths, cached prefixes) is not the sound engine's, or it fails; *caught* where a verdict
is ``fail``. The stage is right where the first failure's signature is one of the stage's (:data:`STAGES`), located as
``replay`` does: of what was found in outputs or stored state, by the first tensor that is not the sound engine's. Exit
code 1 if the sound engine does not pass, or if fewer than 20 of 21 effective bugs are caught or the stage of fewer than
18 of 21 is right.
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from packaging.specifiers import SpecifierSet

from specdebug.apps.mutants.find import Code, Mutant, code_of
from specdebug.apps.mutants.sound import FirstDifference, Sound, commons, measure_sound, sound_arms
from specdebug.campaign.loops.warm import WarmPool
from specdebug.patching.match import place
from specdebug.patching.source import Patch
from specdebug.patching.toggles import Toggle
from specdebug.scenario.library import Library
from specdebug.targets.settings import ReleasedEngine, parse_target
from specdebug.verdict.outcome import Outcome
from specdebug.verdict.signatures import OUTPUTS, SCHEDULE, may_have_begun_before

FOLDER = Path(__file__).with_suffix("")
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
class Bug:
    """A bug in one function of a release. ``file``: below its package; ``lines``: first and last of the statement."""

    number: int
    title: str
    stage: str
    patch: Patch
    file: str
    lines: tuple[int, int]

    @classmethod
    def of(cls, toggle: Toggle, code: Code, version: str) -> Bug | None:
        """The bug that reverting a toggle puts into a release; None where it has no patch for that."""
        ranges = toggle.foreign[code.package].items()
        found = next((each for held, each in ranges if SpecifierSet(held).contains(version)), None)
        if found is None:
            return None
        (patch,) = found
        file = patch.module.partition(".")[2].replace(".", "/") + ".py"
        source = code.source(file)
        at = place(source, patch, patch.edits[0], 0)
        around = [
            (each.lineno, each.end_lineno or each.lineno)
            for each in ast.walk(source.tree)
            if isinstance(each, ast.stmt) and each.lineno <= at.start and (each.end_lineno or 0) >= at.stop
        ]
        return cls(toggle.pr, toggle.title, toggle.family, patch, file, max(around, default=(at.start, at.stop)))


@dataclass(frozen=True)
class Ran:
    """A bug's run in an arm. ``located``: the signature of the place where the failure began. ``differs``: the first
    thing that is not the sound engine's, in words. ``seconds``: of processor."""

    bug: int
    arm: str
    verdict: str
    signature: str | None
    located: str | None
    differs: str
    detail: str
    seconds: float
    warm: str

    @classmethod
    def of(cls, bug: int, arm: str, outcome: Outcome, found: FirstDifference | None) -> Ran:
        signature, differs = outcome.signature, "" if found is None else f"{found.kind} at {found.site or 'schedule'}"
        located = None if signature is None else _located(outcome, found)
        seconds = outcome.metrics.processor_s
        return cls(bug, arm, outcome.verdict, signature, located, differs, outcome.detail, seconds, outcome.warm)


def _located(outcome: Outcome, found: FirstDifference | None) -> str:
    """The signature under which ``replay`` reports a failure whose run first parts from the sound one's there."""
    seen = outcome.signature or ""
    if found is None or found.kind in ("book", "trace", "rounding", "end") or not may_have_begun_before(outcome):
        return seen
    kind, _, site = seen.partition("@")
    if kind not in OUTPUTS and (found.kind != "value" or (found.step == outcome.where_step and site in found.before)):
        return seen
    return f"mismatch@{found.site or SCHEDULE}" if f"{kind}@{found.site}" != seen else seen


@dataclass(frozen=True)
class Judged:
    """A bug, and what came of it. ``effect``: the first arm that shows any, and what; empty of an ineffective one.
    ``caught``: the runs that failed, cheapest arm first. ``ran``: arms that it was run in."""

    number: int
    title: str
    stage: str
    effect: str
    caught: tuple[Ran, ...]
    ran: int

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
            what = f"**not caught** ({self.effect})" if self.effect else f"no effect in {self.ran} arms"
            return f"| {self.number} | {self.title} | {self.stage} | {what} | | | |"
        first, names = self.caught[0], dict.fromkeys(each.arm.partition("/")[0] for each in self.caught)
        what = f"`{first.signature}`" + (f", at `{first.located}`" if first.located != first.signature else "")
        where = ", ".join(f"`{name}`" for name in names)
        right = "yes" if self.right else "no"
        return f"| {self.number} | {self.title} | {self.stage} | {what} | {right} | {first.seconds:.1f} | {where} |"


class Planting:
    """Runs bugs in arms of which the sound engine's runs are known, and keeps what came of them in a file, if there is
    one."""

    def __init__(self, pool: WarmPool, folder: Path, keep: Path | None) -> None:
        self._pool, self._folder, self._keep = pool, folder / "bug", keep
        lines = keep.read_text(encoding="utf-8").splitlines() if keep is not None and keep.exists() else []
        self._known = {(each.bug, each.arm): each for each in (Ran(**json.loads(line)) for line in lines)}

    def judge(self, bug: Bug, arms: Iterable[Sound], *, first: bool) -> Judged:
        """Run a bug in the arms that run its lines, or up to the ``first`` that catches it."""
        found: list[Ran] = []
        for arm in arms:
            if arm.reaches(cast(Mutant, bug)) and not (first and any(each.verdict == "fail" for each in found)):
                found.append(self._ran(bug, arm))
        caught = tuple(each for each in found if each.verdict == "fail")
        other = (each for each in found if each.verdict == "fail" or each.differs)
        effect = next((f"{each.arm}: {each.differs or each.signature}" for each in other), "")
        return Judged(bug.number, bug.title, bug.stage, effect, caught, len(found))

    def differs_at(self, bug: Bug, arm: str) -> str:
        """The site of the first tensor that is not the sound engine's in a run that was made, as a signature; empty
        where there is none."""
        ran = self._known.get((bug.number, arm))
        site = "" if ran is None or not ran.differs.startswith("value at ") else ran.differs.removeprefix("value at ")
        return f"mismatch@{site}" if site else ""

    def differs(self, bug: Bug, arm: Sound) -> bool:
        """Return True if a run that was made there is not the sound engine's."""
        ran = self._known.get((bug.number, arm.name))
        return ran is not None and bool(ran.differs)

    def _ran(self, bug: Bug, arm: Sound) -> Ran:
        if (bug.number, arm.name) not in self._known:
            self._folder.mkdir()
            self._pool.start(arm.of(cast(Mutant, bug), f"{bug.number}/{arm.name}", self._folder))
            outcome = self._pool.wait().outcome
            found = arm.difference(self._folder, outcome)
            shutil.rmtree(self._folder)
            self._note(Ran.of(bug.number, arm.name, outcome, found.first if found.certain else None))
        return self._known[bug.number, arm.name]

    def _note(self, ran: Ran) -> None:
        self._known[ran.bug, ran.arm] = ran
        said = " at ".join(dict.fromkeys(filter(None, (ran.signature, ran.located)))) or ran.differs
        print(f"{ran.bug} {ran.arm}: {ran.verdict} {said}", file=sys.stderr)
        if self._keep is not None:
            with self._keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(ran)) + "\n")


def told(judged: Sequence[Judged], arms: int) -> list[str]:
    """The answer in Markdown."""
    effective = [each for each in judged if each.effect]
    caught = [each for each in effective if each.caught]
    most, right = max((each.caught[0].seconds for each in caught), default=0.0), sum(each.right for each in effective)
    return [
        "| bug | what the source does without it | stage | first failure | stage named | s | caught by |",
        "|---|---|---|---|---|---|---|",
        *(each.row for each in judged),
        "",
        f"{len(judged)} bugs, {len(effective)} effective; {len(caught)} caught, the stage of {right} named by the "
        f"first failure; a run that catches one takes at most {most:.1f} s of processor; {arms} arms",
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
    target = parse_target(chosen.target)
    assert isinstance(target, ReleasedEngine)
    library, code = Library((FOLDER,)), code_of(target)
    toggles = [each for each in library.all_toggles(target) if each.path.parent.parent == FOLDER]
    wanted = [each for each in toggles if not chosen.bug or each.pr in chosen.bug]
    bugs = list(filter(None, (Bug.of(each, code, target.named.version or "") for each in wanted)))
    scenarios = library.gather(chosen.scenarios or [str(FOLDER.parents[1] / "scenarios")])
    arms, refused = sound_arms(library, scenarios, target)
    first, *rest = commons(arms)
    with (
        tempfile.TemporaryDirectory(prefix="specdebug-planted-") as folder,
        WarmPool(first.scenario, first.arms, also=rest) as pool,
    ):
        files = sorted({each.file for each in bugs})
        tell = lambda done, of: print(f"the sound engine: {done} of {of}", file=sys.stderr)  # noqa: E731
        sound, loud = measure_sound(pool, code, arms, files, Path(folder), tell)
        sound.sort(key=lambda each: each.cost)
        planting = Planting(pool, Path(folder), chosen.keep)
        judged = [planting.judge(bug, sound, first=chosen.first) for bug in bugs]
    print("\n".join(told(judged, len(sound))))
    for each in (*refused, *loud):
        print(f"left out: {each.name}: {each.why}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([each.to_dict() for each in judged], indent=1), encoding="utf-8")
    effective = [each for each in judged if each.effect]
    enough = sum(bool(each.caught) for each in effective) >= CAUGHT * len(effective) - 1e-9
    return int(not enough or sum(each.right for each in effective) < NAMED * len(effective) - 1e-9)


if __name__ == "__main__":
    raise SystemExit(main())
