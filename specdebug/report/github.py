"""Results where GitHub Actions shows them: a step summary in Markdown, and annotations at lines of the repository.

Formats: "Workflow commands for GitHub Actions", GitHub Docs.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specdebug.loops.compare import Comparison
from specdebug.loops.replay import ArmResult, Replay
from specdebug.report.explain import explain
from specdebug.report.foreign import shown, shown_lines
from specdebug.report.terminal import COMPARED, accept_text, closing_line, comparison_line
from specdebug.verdict.outcome import Outcome

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
ACTIONS_VARIABLE = "GITHUB_ACTIONS"

MAX_FINDINGS = 20
"""Rows of findings an arm; the step summary is a summary."""

MAX_MESSAGE = 2000
"""Characters of an annotation's message."""

_SIGNS = {"pass": "✅", "fail": "❌", "unknown": "❔"}
_SPECIAL = re.compile(r"[\\`*_\[\]#|~$@]")


@dataclass(frozen=True)
class Annotation:
    """A message at a line of a file, or at none where ``path`` is empty."""

    level: Literal["error", "warning"]
    title: str
    message: str
    path: str = ""
    line: int = 0

    def command(self) -> str:
        """The line that a workflow prints."""
        properties = {"file": self.path, "line": str(self.line or ""), "title": self.title}
        listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value)
        return f"::{self.level} {listed}::{_data(shown_lines(self.message[:MAX_MESSAGE]))}"


def replay_annotations(replay: Replay, environment: Mapping[str, str] = os.environ) -> list[Annotation]:
    """One for each arm that did not do what it should: an error, or a warning where it came to no verdict. It stands at
    the arm's line of the scenario's file."""
    return [_annotation(replay, result, environment) for result in replay.results if not _as_it_should(result)]


def comparison_annotations(
    replay: Replay, comparison: Comparison, environment: Mapping[str, str] = os.environ
) -> list[Annotation]:
    """One at the second arm's line, unless the two agree."""
    if comparison.agree:
        return []
    level: Literal["error", "warning"] = "warning" if comparison.unavailable else "error"
    path, line = _place(replay, comparison.names[1], environment)
    title = f"specdebug: {replay.scenario.name}, {' and '.join(comparison.names)}"
    return [Annotation(level, title, comparison_line(comparison), path, line)]


def replay_summary(replay: Replay) -> str:
    """The results as Markdown: a table of arms, then what was found in those that failed."""
    sign = "✅" if replay.exit_code == 0 else "❔" if replay.exit_code not in (1, 2) else "❌"
    lines = [f"### {sign} specdebug replay: {plain(replay.scenario.name)}", "", plain(closing_line(replay)), ""]
    rows = [
        (
            result.run.arm,
            _verdict(result),
            result.outcome.signature or "",
            "" if result.outcome.where_step is None else str(result.outcome.where_step),
            accept_text(result.outcome.metrics),
            f"{result.outcome.metrics.wall_s:.1f} s",
        )
        for result in replay.results
    ]
    lines += _table(("arm", "verdict", "signature", "step", "accept length", "time"), rows)
    for result in replay.results:
        lines += _findings(result)
    return "\n".join(lines) + "\n"


def comparison_summary(replay: Replay, comparison: Comparison) -> str:
    """The same for two arms side by side."""
    sign = "✅" if comparison.agree else "❔" if comparison.unavailable else "❌"
    lines = [f"### {sign} specdebug compare: {plain(replay.scenario.name)}", "", plain(comparison_line(comparison)), ""]
    left, right = comparison.outcomes
    lines += _table(("", *comparison.names), [(name, tell(left), tell(right)) for name, tell in COMPARED.items()])
    return "\n".join(lines) + "\n"


def text_summary(command: str, exit_code: int, text: str) -> str:
    """The same for what a command says as text, its first line being the verdict."""
    sign = {0: "✅", 1: "❌"}.get(exit_code, "❔")
    verdict, _, rest = text.partition("\n")
    lines = [f"### {sign} specdebug {plain(command)}", "", plain(verdict), ""]
    if rest:
        lines += [f"<pre>{html.escape(shown_lines(rest)).replace(chr(10), '<br>')}</pre>", ""]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Text that is shown as it is, on one line: nothing in it is markup."""
    escaped = html.escape(shown(" ".join(text.split())))
    return _SPECIAL.sub(lambda special: f"&#{ord(special[0])};", escaped)


def _annotation(replay: Replay, result: ArmResult, environment: Mapping[str, str]) -> Annotation:
    outcome, expectation = result.outcome, result.run.expectation
    level: Literal["error", "warning"] = "warning" if outcome.verdict == "unknown" else "error"
    path, line = _place(replay, result.run.arm, environment)
    what = outcome.signature or outcome.verdict
    title = f"specdebug: {replay.scenario.name}, arm {result.run.arm}: {what}"
    message = _where(outcome) + (outcome.detail or "nothing was found")
    if expectation is not None:
        wanted = " or ".join(expectation.signatures)
        message += f"; expected was {expectation.verdict}{f' {wanted}' if wanted else ''}"
    return Annotation(level, title, message, path, line)


def _where(outcome: Outcome) -> str:
    return "" if outcome.where_step is None else f"step {outcome.where_step}: "


def _as_it_should(result: ArmResult) -> bool:
    return result.outcome.verdict == "pass" if result.met is None else result.met


def _place(replay: Replay, arm: str, environment: Mapping[str, str]) -> tuple[str, int]:
    """File, as GitHub knows it, and line of an arm."""
    where = replay.scenario.where_key("arms", arm)
    path = Path(where.path).absolute()
    workspace = Path(environment.get("GITHUB_WORKSPACE") or ".").absolute()
    shown = path.relative_to(workspace) if path.is_relative_to(workspace) else path
    return str(shown), where.line or 1


def _verdict(result: ArmResult) -> str:
    met = {None: "", True: ", as expected", False: ", not as expected"}[result.met]
    return f"{_SIGNS[result.outcome.verdict]} {result.outcome.verdict}{met}"


def _findings(result: ArmResult) -> list[str]:
    outcome = result.outcome
    why = explain(result)
    if not outcome.violations and not outcome.reasons and why is None:
        return []
    lines = ["", f"<details><summary>{plain(result.run.arm)}: what was found</summary>", ""]
    if outcome.violations:
        shown = outcome.violations[:MAX_FINDINGS]
        rows = [(found.signature, "" if found.step is None else str(found.step), found.detail) for found in shown]
        lines += _table(("signature", "step", "what"), rows)
        if len(outcome.violations) > MAX_FINDINGS:
            lines += ["", f"and {len(outcome.violations) - MAX_FINDINGS} more"]
    lines += [f"- {plain(reason)}" for reason in (*outcome.reasons, *(why.lines if why is not None else ()))]
    return [*lines, "", "</details>"]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return [row([plain(head) for head in heads]), row(["---"] * len(heads)), *(row([*map(plain, r)]) for r in rows), ""]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
