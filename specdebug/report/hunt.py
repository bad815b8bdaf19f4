"""Reports of a hunt: they say what was searched and found, on a terminal, as data, and as a page for an issue."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdebug import __version__
from specdebug.apps.hunt.draw import ARM
from specdebug.apps.hunt.evidence import SeenFailure
from specdebug.apps.hunt.record import HuntRecord, Judged
from specdebug.report.parts import Column, Line, Report, lines, table
from specdebug.report.words import NOT_ENGINE_CODE, counted, replaced, without_local_paths
from specdebug.targets.installs.release import ENGINES
from specdebug.verdict.twins import TWIN

FOUND = (
    Column("signature", "key", lambda found: found[0]),
    Column("scenarios", "right", lambda found: len(found[1])),
    Column("first", "right", lambda found: found[1][0].number),
    Column("what", "prose", lambda found: found[1][0].detail),
)
SHOWN = 6
"""Numbers of scenarios that are named of each failure."""
FINDINGS = 8
"""Findings that an issue's page tells."""
_VERDICTS = {
    "pass": "pass",
    "fail": "fail",
    "unknown": "come to no verdict",
    "refused": "cannot be asked of it",
}


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
    def ranked(self) -> list[tuple[str, list[Judged]]]:
        """The failures, the most frequent first."""
        return sorted(self.record.findings.items(), key=lambda found: (-len(found[1]), found[0]))

    @property
    def searched(self) -> str:
        """What was searched, in one line."""
        record = self.record
        counts = ", ".join(f"{count} {word}" for name, word in _VERDICTS.items() if (count := record.count(name)))
        tokens = sum(one.tokens for one in record.judged.values())
        twins = sum(bool(one.twin) for one in record.judged.values())
        counts += f"; {twins} held against a twin" if twins else ""
        cut, scenarios = "interrupted; " if self.interrupted else "", counted(len(record.judged), "scenario")
        return f"{cut}{scenarios} on {self.target}, {tokens} tokens: {counts or 'none was run'}"

    def replay(self, signature: str, arm: str = ARM) -> str:
        """The command that runs the scenario of a failure as the hunt did."""
        words = [self.file_of(signature).name, "--arm", arm, "--target", self.target]
        words += ["--revert", ",".join(map(str, self.reverts))] if self.reverts else []
        return f"specdebug {'twins' if signature.startswith(TWIN) else 'replay'} {shlex.join(words)}"

    def file_of(self, signature: str) -> Path:
        """The scenario to show of a failure: the small one, if there is one."""
        first = self.record.findings[signature][0]
        return self.small.get(signature, self.record.folder / f"{first.number:05d}.yaml")

    def issue_of(self, signature: str) -> Path:
        """The page of a failure, to paste upstream."""
        return self.file_of(signature).with_suffix(".md")

    def bundle_of(self, signature: str) -> str | None:
        """The bundle of a failure; None where it did not fail so again, or was not run again."""
        seen = self.evidence.get(signature)
        return str(self.record.folder / seen.bundle) if seen is not None and seen.bundle else None


def hunt_report(answer: HuntAnswer, exit_code: int) -> Report:
    """A hunt so far: the count, and a row for each failure."""
    record, ranked = answer.record, answer.ranked
    pages = lines(f"to paste upstream: {answer.issue_of(name)}" for name, _ in ranked)
    return Report(
        command="hunt",
        title=f"{answer.target}, seed {answer.seed}",
        summary=answer.searched,
        exit_code=exit_code,
        document=_document(answer, exit_code),
        parts=(
            Line(answer.searched),
            *((table(ranked, *FOUND), *pages) if ranked else [Line("nothing failed")]),
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
        return f"specdebug {'twins' if first.startswith(TWIN) else 'replay'} {answer.file_of(first)}"
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
        "twins": sum(bool(one.twin) for one in record.judged.values()),
        "verdicts": {name: record.count(name) for name in _VERDICTS},
        "findings": [
            {
                "signature": signature,
                "scenarios": [one.number for one in ones],
                "first": asdict(ones[0]),
                "small": None if signature not in answer.small else str(answer.small[signature]),
                "bundle": answer.bundle_of(signature),
                "issue": str(answer.issue_of(signature)),
            }
            for signature, ones in answer.ranked
        ],
    }


def hunt_page(answer: HuntAnswer) -> str:
    """Markdown: what was searched, and of each failure its words, how to see it, and which page tells all of it."""
    record = answer.record
    told = [f"# Hunt on {answer.target}, seed {answer.seed}", "", f"specdebug {__version__}. {answer.searched}.", ""]
    told += [f"    {answer.words}", "", *_replaced_whole(answer)]
    for signature, ones in answer.ranked:
        numbers = ", ".join(str(one.number) for one in ones[:SHOWN]) + (", ..." if len(ones) > SHOWN else "")
        told += [f"## {signature}", "", f"{len(ones)} of {len(record.judged)} scenarios: {numbers}.", ""]
        told += [f"> {' '.join(ones[0].detail.split())}", "", f"    {answer.replay(signature)}", ""]
        told += [f"To paste upstream: {answer.issue_of(signature).name}.", ""]
    if not record.findings:
        told += ["Nothing failed.", ""]
    for verdict, what in (("unknown", "came to no verdict"), ("refused", "cannot be asked of this engine")):
        if some := [one for one in record.judged.values() if one.verdict == verdict]:
            told += [f"## {len(some)} {what}", "", *(f"- {one.number}: {one.detail}" for one in some[:SHOWN])]
            told += [f"- and {len(some) - SHOWN} more"] * (len(some) > SHOWN) + [""]
    return "\n".join(told)


def _replaced_whole(answer: HuntAnswer) -> list[str]:
    """All that is not the engine's own code, as a paragraph in Markdown, if anything is not."""
    parts = answer.record.not_engine_code
    return [f"What ran {NOT_ENGINE_CODE}: {'; '.join(parts)}.", ""] if parts else []


def issue_page(answer: HuntAnswer, signature: str) -> str:
    """Return the page in Markdown, without a path of this machine."""
    ones, seen, file = answer.record.findings[signature], answer.evidence.get(signature), answer.file_of(signature)
    drawn = counted(len(answer.record.judged), "scenario")
    head = [f"# {signature} on {answer.target}", "", *_what(seen, ones[0].detail), ""]
    head += [f"{len(ones)} of {drawn} that were drawn at random failed so.", ""]
    if seen is not None and not seen.found:
        head += [f"Its first scenario did not fail so again in {counted(seen.runs, 'run')}: it depends on chance.", ""]
    head += ["## Versions", ""]
    if seen is None or not seen.versions:
        head += [f"specdebug {__version__}", ""]
    else:
        rows = [f"| {name} | {version} |" for name, version in seen.versions]
        head += ["| what | version |", "|---|---|", *rows, ""]
    parts = [without_local_paths("\n".join([*head, *_replaced_whole(answer), *_repeat(answer, seen, signature)]))]
    text = file.read_text(encoding="utf-8").rstrip() if file.exists() else f"# {file.name} is not there any more"
    parts += ["## The scenario", "", *_code([text], "yaml"), ""]
    if seen is not None and seen.log:
        fence = "`" * 4  # a log may hold three
        summary = "<summary>The end of the server's log</summary>"
        parts.append(
            without_local_paths("\n".join(["<details>", summary, "", fence, seen.log, fence, "", "</details>", ""]))
        )
    return "\n".join(parts) + "\n"


def _what(seen: SeenFailure | None, detail: str) -> Iterator[str]:
    if seen is None or not seen.found:
        yield f"> {' '.join(detail.split())}"
        return
    if seen.located:
        yield f"- {seen.located}"
    for signature, step, what in seen.found[:FINDINGS]:
        at = "" if step is None else f" at step {step}"
        yield f"- `{signature}`{at}: {' '.join(what.split())}"
    if (more := len(seen.found) - FINDINGS) > 0:
        yield f"- and {more} more"


def _repeat(answer: HuntAnswer, seen: SeenFailure | None, signature: str) -> Iterator[str]:
    """The commands that show it again, from an empty machine on."""
    file = answer.file_of(signature)
    words = [f"pip install specdebug=={__version__}"]
    words += [f"specdebug engines install {answer.target}"] if answer.target.partition("==")[0] in ENGINES else []
    words.append(answer.replay(signature, seen.arm if seen is not None and seen.arm else ARM))
    yield from ("## To see it", "", f"With the scenario below as `{file.name}`:", "", *_code(words), "")
    if seen is not None and seen.bundle:
        bundle = f"`specdebug replay {seen.bundle}`"
        yield f"Or with the attached bundle, which holds the prompts as token ids, and every step: {bundle}."
        yield ""
    if seen is not None and seen.command:
        yield from ("The server was started as", "", *_code([seen.command]), "")
    yield from ("It was found by", "", *_code([answer.words]), "")


def _code(written: Sequence[str], language: str = "") -> list[str]:
    return [f"```{language}", *written, "```"]
