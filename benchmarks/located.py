"""Measure whether a failure's signature names the stage that is broken, and stays the same whatever the seed.

``python benchmarks/located.py [--mutants FILE] [--sample 30] [--seeds 20] [--jobs 2] [--out FILE]``. Without a file it
looks at the shipped scenarios' arms that are to fail; ``--mutants`` names what ``specdebug mutants --json`` printed, of
which it takes as many as ``--sample`` says of those that were caught, each in the arm that caught it. Every arm runs
with as many seeds, and what fails is located as ``specdebug replay`` locates it.

A signature is right if it names a stage that the changed file is part of, or the one after. Files that are part of
every stage, such as the KV pools, are counted apart: any stage would be right. So are exceptions that such a file
raised: no stage is named, though the traceback has it. ``--out`` gets a line of JSON an arm.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import specdebug
from specdebug.apps.mutants.find import all_mutants
from specdebug.base.trial import trial_seed
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, plan, run_arms
from specdebug.campaign.preload import PRELOAD
from specdebug.diverge.locate import Locator
from specdebug.patching.toggles import NOTHING, Toggle
from specdebug.scenario.library import Library
from specdebug.workers.pool import WorkerPool

PACKAGE = Path(specdebug.__file__).parent
STAGES_OF = {
    "engine/textbook/scheduler.py": ("schedule",),
    "engine/textbook/memory/radix_cache.py": ("schedule",),
    "engine/textbook/memory/prefix_cache.py": ("schedule",),
    "engine/textbook/memory/allocator.py": ("schedule",),
    "engine/textbook/target_worker.py": ("target_prefill", "target_decode"),
    "engine/textbook/sampler.py": ("sampler", "accept"),
    "engine/textbook/speculative/tree.py": ("draft", "tree"),
    "engine/workers/frozen_kv*.py": ("draft",),
    "engine/workers/mtp*.py": ("draft_prefill", "draft_extend", "draft"),
    "engine/textbook/speculative/verify.py": ("verify",),
    "engine/textbook/speculative/accept.py": ("accept", "commit"),
    "engine/textbook/speculative/draft.py": ("draft_prefill", "draft_extend", "draft"),
    "engine/graph/tables.py": ("draft", "verify", "draft_extend", "target_decode"),
    "engine/kernels/accept.py": ("accept", "commit"),
    "engine/kernels/trees.py": ("tree", "verify"),
    "engine/kernels/cache_locs.py": ("draft", "verify"),
    "engine/kernels/merge_pair.py": ("draft_prefill", "draft_extend"),
    "engine/kernels/logits.py": ("draft_prefill", "draft_extend", "draft"),
}
"""The stages that each of these files is part of. Other files are part of all."""

AFTER = {
    "schedule": ("target_prefill", "target_decode", "draft"),
    "target_prefill": ("draft_prefill", "sampler"),
    "sampler": ("schedule", "draft_prefill", "draft", "target_decode"),
    "draft_prefill": ("draft",),
    "draft": ("tree",),
    "tree": ("verify",),
    "verify": ("accept",),
    "accept": ("commit",),
    "commit": ("draft_extend",),
    "draft_extend": ("draft", "schedule"),
    "target_decode": ("sampler",),
}
"""The stages that may come next."""

BELONGS = {
    "draft_graph": "draft",
    "draft_extend_graph": "draft_extend",
    "mtp_draft": "draft",
    "mtp_extend": "draft_extend",
    "mtp_graph": "draft_extend",
    "move_kv_cache": "commit",
    "prefix_cache": "schedule",
    "req_to_token": "schedule",
    "books": "schedule",
    "draft_tree": "tree",
    "liveness": "schedule",
    "ownership": "schedule",
    "rows": "schedule",
    "locks": "schedule",
    "order": "schedule",
    "kept": "schedule",
    "reuse": "schedule",
    "flush_cache": "schedule",
}
"""The stage of sites that do not begin with its name."""


@dataclass(frozen=True)
class Broken:
    """An arm that is to fail, and the files in which it is broken."""

    name: str
    run: ArmRun
    files: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """The signatures of an arm over all seeds. ``right``: None where any stage would be."""

    name: str
    files: tuple[str, ...]
    seeds: int
    failed: int
    signatures: dict[str, int]
    right: bool | None

    @property
    def same(self) -> int:
        """The failures that have the commonest signature."""
        return max(self.signatures.values(), default=0)


def stages_of(file: str) -> tuple[str, ...]:
    """The stages that a file below the package is part of; none for one that is part of all."""
    return next((stages for glob, stages in STAGES_OF.items() if fnmatchcase(file, glob)), ())


def stages_named(result: ArmResult) -> tuple[str, ...]:
    """The stages that a failure's signature names, several where it names a file that is part of these; none for an
    exception in code that all stages share."""
    located, violations = result.outcome.located, result.outcome.violations
    caller = next((each.data.get("caller") for each in violations[:1]), None)
    site = located.stage or located.site if located is not None else caller or result.outcome.site or ""
    parts = site.partition("->")[0].split(".")
    for end in range(len(parts), 0, -1):  # an exception names the function that raised it
        file = f"engine/{'/'.join(parts[:end])}.py"
        if located is None and (PACKAGE / file).is_file():
            return stages_of(file)
    return (BELONGS.get(parts[0], parts[0]),)


def is_right(named: Sequence[str], files: Sequence[str]) -> bool | None:
    """True if a stage that is named is one that some file is part of, or comes next; None if a file, or where the
    failure came to light, is part of all."""
    stages = [stages_of(file) for file in files]
    if not named or not all(stages):
        return None
    own = {each for some in stages for each in some}
    return any(stage in own or any(stage in AFTER.get(each, ()) for each in own) for stage in named)


def shipped(library: Library) -> Iterator[Broken]:
    """The arms of shipped scenarios that are to fail."""
    for scenario in library.scenarios():
        for run in plan(scenario, Choices(), library):
            expected = run.expectation
            if run.toggles and expected is not None and expected.verdict == "fail":
                patches = [patch for toggle in run.toggles for patch in toggle.patches]
                yield Broken(f"{scenario.name}/{run.arm}", run, tuple(sorted({_file(each.module) for each in patches})))


def caught(library: Library, document: Path, sample: int, seed: int) -> Iterator[Broken]:
    """Mutants that were caught, each in the arm that caught it."""
    rows = [row for row in json.loads(document.read_text())["mutants"] if row["caught"] and not row["by_time"]]
    mutants = {mutant.id: mutant for mutant in all_mutants()}
    by_stem = {scenario.path.stem: scenario for scenario in library.scenarios()}  # of packs, too
    for row in random.Random(seed).sample(rows, min(sample, len(rows))):
        mutant, (scenario, _, arm) = mutants[row["id"]], row["scenario"].rpartition("/")
        (run,) = plan(by_stem[Path(scenario).stem], Choices(arms=(arm,)), library)
        toggle = Toggle(1, (), mutant.id, "", "", "", "", NOTHING, (mutant.patch,), {}, Path(mutant.file))
        broken = dataclasses.replace(run, toggles=(toggle,), expectation=None)
        yield Broken(mutant.id, broken, (mutant.file,))


def judge(pool: WorkerPool, library: Library, broken: Broken, seeds: int) -> tuple[Judged, bool]:
    """Run an arm with each seed; True as well if a signal cut that short."""
    first = broken.run.seed
    numbers = [first, *(trial_seed(first, number) for number in range(1, seeds))]
    runs = [dataclasses.replace(broken.run, seed=number, key=f"{broken.name} {number}") for number in numbers]
    results, interrupted = run_arms(pool, library, runs)
    locator = Locator(pool, library)
    failed = [each for each in locator.located(results) if each.outcome.verdict == "fail"]
    counts = Counter(each.outcome.signature or "" for each in failed)
    commonest = next((each for each in failed if each.outcome.signature == max(counts, key=counts.__getitem__)), None)
    right = None if commonest is None else is_right(stages_named(commonest), broken.files)
    judged = Judged(broken.name, broken.files, seeds, len(failed), dict(counts.most_common()), right)
    return judged, interrupted or locator.interrupted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=Path, help="what specdebug mutants --json printed")
    parser.add_argument("--sample", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--seeds", type=int, default=20, help="that each arm runs with")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    library = Library()
    some = caught(library, asked.mutants, asked.sample, asked.seed) if asked.mutants else shipped(library)
    found: list[Judged] = []
    with WorkerPool(asked.jobs, PRELOAD) as pool:
        for broken in some:
            judged, interrupted = judge(pool, library, broken, asked.seeds)
            found.append(judged)
            print(f"{judged.name}: {judged.signatures}, right: {judged.right}", file=sys.stderr)
            if interrupted:
                break
    if asked.out is not None:
        asked.out.write_text("".join(json.dumps(dataclasses.asdict(each)) + "\n" for each in found))
    show(found, asked.seeds)
    return 0


def show(found: Sequence[Judged], seeds: int) -> None:
    """Print the table, and the two counts."""
    table = Table("arm", "failed", "same signature", "the commonest", "stage")
    words: dict[Any, str] = {True: "right", False: "WRONG", None: "any"}
    for each in found:
        commonest = next(iter(each.signatures), "")
        table.add_row(each.name, f"{each.failed} of {each.seeds}", str(each.same), commonest, words[each.right])
    console = Console(width=160)
    console.print(table)
    failed = [each for each in found if each.failed]
    told = [each.right for each in failed if each.right is not None]
    steady = [each.same / each.failed >= 0.95 for each in failed]
    console.print(
        f"the stage is right in {sum(told)} of {len(told)}; {len(failed) - len(told)} more are part of every stage"
    )
    console.print(f"the signature is the same in at least 19 of 20 failures in {sum(steady)} of {len(steady)}")
    failures, same = sum(each.failed for each in failed), sum(each.same for each in failed)
    console.print(f"{same} of {failures} failures have their arm's commonest signature")


def _file(module: str) -> str:
    return module.removeprefix("specdebug.").replace(".", "/") + ".py"


if __name__ == "__main__":
    sys.exit(main())
