"""The findings of triage, for a person at a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug.apps.triage.candidates import CandidateFix, engine_of
from specdebug.apps.triage.run import Tried
from specdebug.logs.findings import Finding
from specdebug.logs.scan import Scan
from specdebug.report.foreign import shown

MAX_FINDINGS = 8


def render_triage(
    name: str, found: Scan, best: Sequence[CandidateFix], commands: Sequence[str], tried: Sequence[Tried] = ()
) -> RenderableType:
    """The signature, other findings, the candidates with their reasons, the commands to run next."""
    main = found.main
    next_steps = [Text("to run next:"), *(Text(f"  {shown(command)}") for command in commands)]
    if main is None:
        none = Text(shown(f"{name}: no failure found in {found.lines} lines"))
        hint = Text("what went wrong may stand in another log (the server's, beside the test's), or further up")
        over = [_finding(name, finding, named=True) for finding in found.ranked()[:MAX_FINDINGS]]
        passed = [Text("passed over, for it was tried again or what came later is sound:"), *over] if over else []
        return Group(none, *passed, hint, *next_steps)
    means = "" if main.signature.startswith(main.means) else f" ({shown(main.means)})"
    lines = [Text.assemble(f"{shown(name)}: ", (shown(main.signature), "bold red"), means), _finding(name, main)]
    others = [finding for finding in found.ranked() if finding is not main]
    if others:
        lines += [Text("also:"), *(_finding(name, finding, named=True) for finding in others[:MAX_FINDINGS])]
    if len(others) > MAX_FINDINGS:
        lines.append(Text(f"  and {len(others) - MAX_FINDINGS} more", "dim"))
    facts = {key: value for key, value in found.facts.to_dict().items() if value not in (None, [], {})}
    if facts:
        told = ", ".join(f"{key.replace('_', ' ')} {_plain(key, value)}" for key, value in facts.items())
        lines.append(Text(f"the log says: {shown(told)}", "dim"))
    unknown = "" if engine_of(found) else ", nor to the engine that wrote it"
    lines.append(Text("candidates:" if best else f"nothing in the log points to a known fix{unknown}"))
    for rank, candidate in enumerate(best, start=1):
        toggle = candidate.toggle
        lines.append(Text.assemble(f"  {rank}. ", (str(toggle.pr), "bold"), f" {shown(toggle.title)}"))
        lines += [Text(f"       {shown(reason)}", "dim") for reason in candidate.reasons]
    lines += next_steps
    if tried:
        lines.append(Text("tried:"))
    for one in tried:
        signature = f" ({one.outcome.signature})" if one.outcome.signature else ""
        lines.append(Text(shown(f"  {one.candidate.toggle.pr}: {one.verdict}{signature}")))
    return Group(*lines)


def _finding(name: str, finding: Finding, *, named: bool = False) -> Text:
    times = f", {finding.count} times" if finding.count > 1 else ""
    what = f"{finding.signature}  " if named else ""
    return Text.assemble(shown(f"  {what}"), (shown(f"{name}:{finding.line}{times}: {finding.text}"), "dim"))


def _plain(key: str, value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"--{name.replace('_', '-')} {given}" for name, given in value.items())
    if isinstance(value, list):
        return shlex.join(value) if key == "test" else ", ".join(map(str, value))
    return str(value)
