"""Reports of a hunt: they say what was searched and found, on a terminal, as data, and as a page for an issue."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdebug import __version__
from specdebug.apps.hunt.draw import ARM
from specdebug.apps.hunt.evidence import SeenFailure
from specdebug.apps.hunt.record import HuntRecord, Judged
from specdebug.report.local_paths import without_local_paths
from specdebug.report.parts import Column, Line, Part, Report, Table, columns, lines
from specdebug.report.words import NOT_ENGINE_CODE, counted, replaced
from specdebug.targets.installs.release import ENGINES

FOUND = (*columns("signature", key=True), *columns("scenarios", "first", right=True), Column("what", prose=True))
SHOWN = 6
"""Numbers of scenarios that are named of each failure."""
FINDINGS = 8
"""Findings that an issue's page tells."""


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


def hunt_report(answer: HuntAnswer, exit_code: int) -> Report:
    """A hunt so far: the count, and a row for each failure."""
    record, summary = answer.record, _searched(answer)
    ranked = _ranked(record)
    rows = [(signature, str(len(ones)), str(ones[0].number), ones[0].detail) for signature, ones in ranked]
    found: list[Part] = [Line("nothing failed")]
    if ranked:
        found = [Table(FOUND, rows), *(Line(f"to paste upstream: {answer.issue_of(name)}") for name, _ in ranked)]
    return Report(
        command="hunt",
        title=f"{answer.target}, seed {answer.seed}",
        summary=summary,
        exit_code=exit_code,
        document=_document(answer, exit_code),
        parts=(
            Line(summary),
            *found,
            *lines(replaced(record.not_engine_code), "dim"),
            Line(f"report: {record.folder / 'report.md'}"),
            Line(f"next: {next_step(answer)}"),
        ),
    )


def next_step(answer: HuntAnswer) -> str:
    """The next step: a command to run."""
    record = answer.record
    if answer.interrupted:
        return f"{answer.words}   # goes on"
    if record.findings:
        first = max(record.findings, key=lambda one: len(record.findings[one]))
        return f"specdebug replay {answer.file_of(first)}"
    if not record.count("pass"):
        first_one = f"{record.folder}/{min(record.judged, default=0):05d}.yaml"
        return f"specdebug replay {first_one}   # why nothing could be judged"
    return f"{answer.words} with a larger --count, or another --seed"


def _document(answer: HuntAnswer, code: int) -> dict[str, Any]:
    record = answer.record
    return {
        "specdebug": __version__,
        "target": answer.target,
        "seed": answer.seed,
        "exit_code": code,
        "interrupted": answer.interrupted,
        "next": next_step(answer),
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
        *_replaced_whole(answer),
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


def _replaced_whole(answer: HuntAnswer) -> list[str]:
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


def issue_page(answer: HuntAnswer, signature: str) -> str:
    """Return the page in Markdown, without a path of this machine."""
    ones, seen, file = answer.record.findings[signature], answer.evidence.get(signature), answer.file_of(signature)
    again = seen is not None and bool(seen.bundle)
    head = [
        f"# {signature} on {answer.target}",
        "",
        *_what(seen, ones[0].detail),
        "",
        f"{len(ones)} of {counted(len(answer.record.judged), 'scenario')} that were drawn at random failed so.",
        "",
    ]
    if seen is not None and not again:
        head += [f"Its first scenario did not fail so again in {counted(seen.runs, 'run')}: it depends on chance.", ""]
    told = "\n".join([*head, *_versions(seen), *_replaced_whole(answer), *_repeat(answer, seen, file)])
    parts = [without_local_paths(told), *_scenario(file)]
    if seen is not None and seen.log:
        parts += [without_local_paths(_folded("The end of the server's log", seen.log))]
    return "\n".join(parts) + "\n"


def _what(seen: SeenFailure | None, detail: str) -> list[str]:
    """What was found, the failure itself first."""
    if seen is None or not seen.found:
        return [f"> {' '.join(detail.split())}"]
    lines = [] if not seen.located else [f"- {seen.located}"]
    for signature, step, what in seen.found[:FINDINGS]:
        at = "" if step is None else f" at step {step}"
        lines.append(f"- `{signature}`{at}: {' '.join(what.split())}")
    more = len(seen.found) - FINDINGS
    return [*lines, *([f"- and {more} more"] * (more > 0))]


def _versions(seen: SeenFailure | None) -> list[str]:
    if seen is None or not seen.versions:
        return ["## Versions", "", f"specdebug {__version__}", ""]
    rows = [f"| {name} | {version} |" for name, version in seen.versions]
    return ["## Versions", "", "| what | version |", "|---|---|", *rows, ""]


def _repeat(answer: HuntAnswer, seen: SeenFailure | None, file: Path) -> list[str]:
    """The commands that show it again, from an empty machine on."""
    engine = answer.target.partition("==")[0]
    words = [f"pip install specdebug=={__version__}"]
    words += [f"specdebug engines install {answer.target}"] if engine in ENGINES else []
    arm = seen.arm if seen is not None and seen.arm else ARM
    words.append(f"specdebug replay {shlex.join([file.name, '--arm', arm, *answer.again])}")
    lines = ["## To see it", "", f"With the scenario below as `{file.name}`:", "", *_code(words), ""]
    if seen is not None and seen.bundle:
        bundle = f"specdebug replay {seen.bundle}"
        lines += [f"Or with the attached bundle, which holds the prompts as token ids, and every step: `{bundle}`.", ""]
    if seen is not None and seen.command:
        lines += ["The server was started as", "", *_code([seen.command]), ""]
    return [*lines, "It was found by", "", *_code([answer.words]), ""]


def _scenario(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8").rstrip() if file.exists() else f"# {file.name} is not there any more"
    return ["## The scenario", "", "```yaml", text, "```", ""]


def _code(lines: Sequence[str]) -> list[str]:
    return ["```", *lines, "```"]


def _folded(title: str, text: str) -> str:
    fence = "`" * 4  # a log may hold three
    return "\n".join(["<details>", f"<summary>{title}</summary>", "", fence, text, fence, "", "</details>", ""])
