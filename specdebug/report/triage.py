"""The findings of triage."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from specdebug.apps.triage.candidates import CandidateFix, engine_of
from specdebug.apps.triage.run import Tried
from specdebug.logs.findings import Finding
from specdebug.logs.scan import Scan
from specdebug.report.parts import Line, Report, lines

MAX_FINDINGS = 8


def triage_report(
    log: str,
    name: str,
    found: Scan,
    best: Sequence[CandidateFix],
    commands: Sequence[str],
    tried: Sequence[Tried],
    exit_code: int,
) -> Report:
    """The signature, other findings, the candidates with their reasons, the commands to run next. ``name``: the log's,
    fit to be shown."""
    main = found.main
    if main is None:
        summary = f"{name}: no failure found in {found.lines} lines"
        told = _without_failure(name, found)
    else:
        means = "" if main.signature.startswith(main.means) else f" ({main.means})"
        summary = f"{name}: {main.signature}{means}"
        told = _failure(name, found, main, best)
    parts = [Line(summary, "" if main is None else "fail", fold=False), *told]
    parts += [Line("to run next:"), *lines((f"  {command}" for command in commands), fold=False)]
    if tried:
        parts.append(Line("tried:"))
    for one in tried:
        signature = f" ({one.outcome.signature})" if one.outcome.signature else ""
        parts.append(Line(f"  {one.candidate.toggle.pr}: {one.verdict}{signature}", fold=False))
    return Report("triage", name, summary, exit_code, _document(log, found, best, commands, tried), parts)


def _without_failure(name: str, found: Scan) -> Iterator[Line]:
    if over := [_finding(name, finding, named=True) for finding in found.ranked()[:MAX_FINDINGS]]:
        yield Line("passed over, for it was tried again or what came later is sound:")
        yield from over
    yield Line("what went wrong may stand in another log (the server's, beside the test's), or further up")


def _failure(name: str, found: Scan, main: Finding, best: Sequence[CandidateFix]) -> Iterator[Line]:
    yield _finding(name, main)
    others = [finding for finding in found.ranked() if finding is not main]
    if others:
        yield Line("also:")
        yield from (_finding(name, finding, named=True) for finding in others[:MAX_FINDINGS])
    if len(others) > MAX_FINDINGS:
        yield Line(f"  and {len(others) - MAX_FINDINGS} more", "dim")
    if facts := {key: value for key, value in found.facts.to_dict().items() if value not in (None, [], {})}:
        told = ", ".join(f"{key.replace('_', ' ')} {_plain(key, value)}" for key, value in facts.items())
        yield Line(f"the log says: {told}", "dim", fold=False)
    unknown = "" if engine_of(found) else ", nor to the engine that wrote it"
    yield Line("candidates:" if best else f"nothing in the log points to a known fix{unknown}")
    for rank, candidate in enumerate(best, start=1):
        yield Line(f"  {rank}. {candidate.toggle.pr} {candidate.toggle.title}", fold=False)
        yield from lines((f"       {reason}" for reason in candidate.reasons), "dim", fold=False)


def _document(
    name: str, found: Scan, best: Sequence[CandidateFix], commands: Sequence[str], tried: Sequence[Tried]
) -> dict[str, Any]:
    return {
        "log": name,
        "lines": found.lines,
        "bytes": found.size,
        "signature": None if found.main is None else found.main.signature,
        "findings": [finding.to_dict() for finding in found.ranked()],
        "facts": found.facts.to_dict(),
        "candidates": [
            {
                "pr": candidate.toggle.pr,
                "title": candidate.toggle.title,
                "scenario": candidate.toggle.detected_by.scenario,
                "arm": candidate.arm,
                "points": candidate.points,
                "exact": candidate.exact,
                "reasons": list(candidate.reasons),
            }
            for candidate in best
        ],
        "commands": list(commands),
        "tried": [one.to_dict() for one in tried],
    }


def _finding(name: str, finding: Finding, *, named: bool = False) -> Line:
    times = f", {finding.count} times" if finding.count > 1 else ""
    what = f"{finding.signature}  " if named else ""
    return Line(f"  {what}{name}:{finding.line}{times}: {finding.text}", fold=False)


def _plain(key: str, value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"--{name.replace('_', '-')} {given}" for name, given in value.items())
    if isinstance(value, list):
        return shlex.join(value) if key == "test" else ", ".join(map(str, value))
    return str(value)
