"""How well the reader names failures of other people: precision and recall over public reports.

    python benchmarks/triage_corpus.py [--misses] [--cases DIR]

``tests/logs/corpus`` holds error lines of public issues with the answer that a person gives, half of them put aside
before the patterns were written. *Named* are reports for which a signature is given, *right* those of them that have
the expected one. Precision is right over named, recall right over those that have something to name. A *false reason*
is a fix that triage ranks where naming one would be a guess. ``--cases`` prints, of every ``*/log.txt`` in a folder,
what the ``triage.md`` beside it wants, the name that is given, the engine and the suspects. Needs no GPU and takes a
few seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from specdebug.apps.triage import candidates
from specdebug.logs.scan import scan_bytes
from specdebug.scenario.library import Library

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "logs" / "corpus"
HALVES = ("written-from", "held-out")


@dataclass(frozen=True)
class Report:
    """One report: what a person says it is, and what the reader says.

    Attributes:
        expected: a signature, shell wildcards allowed; None where there is nothing to name.
        may_rank: whether a known fix could be missing there.
        ranked: the fixes that triage names.
    """

    name: str
    expected: str | None
    may_rank: bool
    named: str | None
    ranked: tuple[int, ...]

    @property
    def right(self) -> bool:
        """Whether the reader says what a person does."""
        if self.expected is None or self.named is None:
            return self.expected is self.named
        return self.named == self.expected or fnmatchcase(self.named, self.expected)


def reports(half: str, library: Library) -> Iterator[Report]:
    """Read every report of a half."""
    for file in sorted((CORPUS / half).glob("*.txt")):
        _source, expect, fixes, *lines = file.read_text("utf-8").splitlines()
        found = scan_bytes("\n".join(lines).encode())
        expected = expect.removeprefix("# expect: ")
        yield Report(
            name=file.stem,
            expected=None if expected == "none" else expected,
            may_rank=fixes == "# fixes: may",
            named=None if found.main is None else found.main.signature,
            ranked=tuple(one.toggle.pr for one in candidates(found, library)),
        )


def row(half: str, found: Sequence[Report]) -> str:
    """A line of the table."""
    named = [one for one in found if one.named is not None]
    right = [one for one in named if one.right]
    able = [one for one in found if one.expected is not None]
    false = [one for one in found if one.ranked and not one.may_rank]
    ranked = [one for one in found if one.ranked]
    return (
        f"| {half} | {len(found)} | {len(named)} | {len(right)} | {len(right) / len(named):.1%} | "
        f"{len(right) / len(able):.1%} | {len(ranked)} | {len(false)} |"
    )


def cases(folder: Path, library: Library) -> Iterator[str]:
    """The lines of a table of the logs in a folder."""
    yield "| log | wanted | named | engine | suspects |"
    yield "|---|---|---|---|---|"
    for log in sorted(folder.glob("*/log.txt")):
        found = scan_bytes(log.read_bytes())
        told = log.with_name("triage.md").read_text("utf-8").splitlines()
        wanted = next((line.removeprefix("Wanted: ") for line in told if line.startswith("Wanted: ")), "")
        name = "none" if found.main is None else found.main.signature
        suspects = ", ".join(str(one.toggle.pr) for one in candidates(found, library)) or "none"
        yield f"| {log.parent.name} | {wanted} | `{name}` | {found.facts.engine} | {suspects} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--misses", action="store_true", help="List what is not as expected.")
    parser.add_argument("--cases", type=Path, metavar="DIR", help="Print the logs of a folder instead.")
    wanted = parser.parse_args()
    library = Library()
    if wanted.cases is not None:
        print("\n".join(cases(wanted.cases, library)))
        return
    print("| reports | all | named | right | precision | recall | fixes ranked | false reasons |")
    print("|---|---|---|---|---|---|---|---|")
    halves = {half: list(reports(half, library)) for half in HALVES}
    for half, found in halves.items():
        print(row(half, found))
    if wanted.misses:
        for half, found in halves.items():
            for one in found:
                if not one.right or (one.ranked and not one.may_rank):
                    print(f"{half}/{one.name}: expected {one.expected}, named {one.named}, ranked {one.ranked}")


if __name__ == "__main__":
    main()
