"""Reports of a hunt: they say what was searched and found, on a terminal, as data, and as a page for an issue."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug import __version__
from specdebug.hunt.draw import ARM
from specdebug.hunt.evidence import SeenFailure
from specdebug.hunt.record import HuntRecord, Judged
from specdebug.report.foreign import shown
from specdebug.report.next_steps import after_hunt
from specdebug.report.tables import Column, Listing, columns, line
from specdebug.report.words import NOT_ENGINE_CODE, counted, replaced

FOUND = (*columns("signature", key=True), *columns("scenarios", "first", right=True), Column("what", prose=True))
SHOWN = 6
"""Numbers of scenarios that are named of each failure."""


@dataclass(frozen=True)
class HuntAnswer:
    """A hunt so far. ``small``: by signature, the small scenario that was made. ``evidence``: by signature, what was
    seen of the first scenario when it was run by itself. ``words``: that go on with it."""

    record: HuntRecord
    target: str
    seed: int
    words: str
    small: Mapping[str, Path]
    evidence: Mapping[str, SeenFailure]
    reverts: tuple[int, ...] = ()
    interrupted: bool = False

    @property
    def again(self) -> list[str]:
        """Words behind a scenario that have it run as the hunt did."""
        reverts = ["--revert", ",".join(map(str, self.reverts))] if self.reverts else []
        return ["--target", self.target, *reverts]

    def file_of(self, signature: str) -> Path:
        """The scenario to show of a failure: the small one, if there is one."""
        first = self.record.findings[signature][0]
        return self.small.get(signature, self.record.folder / f"{first.number:05d}.yaml")

    def issue_of(self, signature: str) -> Path:
        """The page of a failure, to paste upstream."""
        return self.file_of(signature).with_suffix(".md")


def render_hunt(answer: HuntAnswer) -> RenderableType:
    """The count, and a row for each failure."""
    record = answer.record
    lines: list[RenderableType] = [line(_searched(answer))]
    if record.findings:
        rows = [
            (shown(signature), str(len(ones)), str(ones[0].number), shown(ones[0].detail))
            for signature, ones in _ranked(record)
        ]
        lines += [Text(), Listing(FOUND, rows), Text()]
        lines += [line(f"to paste upstream: {answer.issue_of(signature)}") for signature, _ in _ranked(record)]
    else:
        lines.append(line("nothing failed"))
    lines += [line(each, "dim") for each in replaced(record.not_engine_code)]
    lines.append(line(f"report: {record.folder / 'report.md'}"))
    lines.append(line(f"next: {after_hunt(answer)}"))
    return Group(*lines)


def hunt_document(answer: HuntAnswer, code: int) -> dict[str, Any]:
    record = answer.record
    return {
        "specdebug": __version__,
        "target": answer.target,
        "seed": answer.seed,
        "exit_code": code,
        "interrupted": answer.interrupted,
        "next": after_hunt(answer),
        "not_engine_code": record.not_engine_code,
        "searched": len(record.judged),
        "verdicts": {name: record.count(name) for name in ("pass", "fail", "unknown", "refused")},
        "findings": [
            {
                "signature": signature,
                "scenarios": [one.number for one in ones],
                "first": asdict(ones[0]),
                "small": None if signature not in answer.small else str(answer.small[signature]),
                "bundle": _bundle_of(answer, signature),
                "issue": str(answer.issue_of(signature)),
            }
            for signature, ones in _ranked(record)
        ],
    }


def _bundle_of(answer: HuntAnswer, signature: str) -> str | None:
    """The bundle of a failure; None where it did not fail so again, or was not run again."""
    seen = answer.evidence.get(signature)
    return str(answer.record.folder / seen.bundle) if seen is not None and seen.bundle else None


def hunt_page(answer: HuntAnswer) -> str:
    """Markdown: what was searched, and of each failure its words, how to see it, and which page tells all of it."""
    record = answer.record
    lines = [
        f"# Hunt on {answer.target}, seed {answer.seed}",
        "",
        f"specdebug {__version__}. {_searched(answer)}.",
        "",
        f"    {answer.words}",
        "",
        *replaced_whole(answer),
    ]
    for signature, ones in _ranked(record):
        lines += _finding(answer, signature, ones)
    if not record.findings:
        lines += ["Nothing failed.", ""]
    for verdict, what in (("unknown", "came to no verdict"), ("refused", "cannot be asked of this engine")):
        some = [one for one in record.judged.values() if one.verdict == verdict]
        if some:
            lines += [f"## {len(some)} {what}", ""]
            lines += [f"- {one.number}: {one.detail}" for one in some[:SHOWN]]
            lines += [f"- and {len(some) - SHOWN} more"] * (len(some) > SHOWN) + [""]
    return "\n".join(lines)


def replaced_whole(answer: HuntAnswer) -> list[str]:
    """All that is not the engine's own code, as a paragraph in Markdown, if anything is not."""
    parts = answer.record.not_engine_code
    return [f"What ran {NOT_ENGINE_CODE}: {'; '.join(parts)}.", ""] if parts else []


def _finding(answer: HuntAnswer, signature: str, ones: Sequence[Judged]) -> list[str]:
    first, file = ones[0], answer.file_of(signature)
    numbers = ", ".join(str(one.number) for one in ones[:SHOWN]) + (", ..." if len(ones) > SHOWN else "")
    return [
        f"## {signature}",
        "",
        f"{len(ones)} of {len(answer.record.judged)} scenarios: {numbers}.",
        "",
        f"> {' '.join(first.detail.split())}",
        "",
        f"    specdebug replay {shlex.join([file.name, '--arm', ARM, *answer.again])}",
        "",
        f"To paste upstream: {answer.issue_of(signature).name}.",
        "",
    ]


def _ranked(record: HuntRecord) -> list[tuple[str, list[Judged]]]:
    return sorted(record.findings.items(), key=lambda found: (-len(found[1]), found[0]))


def _searched(answer: HuntAnswer) -> str:
    record = answer.record
    counts = ", ".join(f"{record.count(name)} {word}" for name, word in (
        ("pass", "pass"), ("fail", "fail"), ("unknown", "come to no verdict"), ("refused", "cannot be asked of it"),
    ) if record.count(name))  # fmt: skip
    tokens = sum(one.tokens for one in record.judged.values())
    cut = "interrupted; " if answer.interrupted else ""
    scenarios = counted(len(record.judged), "scenario")
    return f"{cut}{scenarios} on {answer.target}, {tokens} tokens: {counts or 'none was run'}"
