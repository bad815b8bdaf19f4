"""The page of one failure that a hunt found, to be pasted into an issue of the engine: all that it takes to see it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from specdebug import __version__
from specdebug.hunt.draw import ARM
from specdebug.hunt.evidence import SeenFailure
from specdebug.report.hunt import HuntAnswer, replaced_whole
from specdebug.report.local_paths import without_local_paths
from specdebug.report.words import counted
from specdebug.targets.installs.release import ENGINES

FINDINGS = 8
"""Findings that are told."""


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
    told = "\n".join([*head, *_versions(seen), *replaced_whole(answer), *_repeat(answer, seen, file)])
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
