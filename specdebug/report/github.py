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

from specdebug.campaign.loops.compare import Comparison
from specdebug.campaign.loops.last_failed import as_it_should
from specdebug.campaign.loops.replay import ArmResult, Replay
from specdebug.report.explain import explain
from specdebug.report.foreign import shown, shown_lines
from specdebug.report.terminal import COMPARED, accept_text, closing_line, comparison_line, not_engine_lines, step_text
from specdebug.report.words import ended

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
    """An error for each arm that did not do as it should, or a warning where it came to no verdict, at its line."""
    return [_annotation(replay, result, environment) for result in replay.results if not as_it_should(result)]


def comparison_annotations(
    replay: Replay, comparison: Comparison, environment: Mapping[str, str] = os.environ
) -> list[Annotation]:
    """One at the second arm's line, unless the two agree."""
    if comparison.exit_code == 0:
        return []
    level: Literal["error", "warning"] = "warning" if comparison.unavailable else "error"
    path, line = _place(replay, comparison.names[1], environment)
    title = f"specdebug: {replay.scenario.name}, {' and '.join(comparison.names)}"
    return [Annotation(level, title, comparison_line(comparison), path, line)]


def replay_summary(replay: Replay) -> str:
    """The results as Markdown: a table of arms, then the findings in those that failed."""
    rows = [
        (
            result.run.arm,
            _verdict(result),
            result.outcome.signature or "",
            step_text(result.outcome.where_step),
            accept_text(result.outcome.metrics),
            f"{result.outcome.metrics.wall_s:.1f} s",
        )
        for result in replay.results
    ]
    lines = _table(("arm", "verdict", "signature", "step", "accept length", "time"), rows)
    for result in replay.results:
        lines += _findings(result)
    lines += [f"- {plain(each)}" for each in not_engine_lines(replay.results)]
    lines += [f"- {plain(f'{arm.arm}: {arm.text}')}" for arm in replay.left_out]
    sign = {0: "✅", 1: "❌", 2: "❌"}.get(replay.exit_code, "❔")
    return _summary(sign, f"replay: {plain(replay.scenario.name)}", closing_line(replay), lines)


def comparison_summary(replay: Replay, comparison: Comparison) -> str:
    """The same for two arms side by side."""
    sign = "✅" if comparison.exit_code == 0 else "❔" if comparison.unavailable else "❌"
    rows = [(name, *map(tell, comparison.outcomes)) for name, tell in COMPARED.items()]
    lines = _table(("", *comparison.names), rows)
    lines += [f"- {plain(each)}" for each in not_engine_lines(replay.results)]
    return _summary(sign, f"compare: {plain(replay.scenario.name)}", comparison_line(comparison), lines)


def text_summary(command: str, exit_code: int, text: str) -> str:
    """The same for the text of a command, its first line being the verdict."""
    sign = {0: "✅", 1: "❌"}.get(exit_code, "❔")
    verdict, _, rest = text.partition("\n")
    lines = [f"<pre>{html.escape(shown_lines(rest)).replace(chr(10), '<br>')}</pre>", ""] if rest else []
    return _summary(sign, plain(command), verdict, lines)


def _summary(sign: str, title: str, verdict: str, lines: Sequence[str]) -> str:
    return "\n".join((f"### {sign} specdebug {title}", "", plain(verdict), "", *lines)) + "\n"


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
    where = "" if outcome.where_step is None else f"step {outcome.where_step}: "
    message = where + (outcome.detail or "nothing was found")
    if expectation is not None:
        message += f"; expected was {ended(expectation.verdict, ' or '.join(expectation.signatures))}"
    return Annotation(level, title, message, path, line)


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
    outcome, against, why = result.outcome, result.against, explain(result)
    if not outcome.violations and not outcome.reasons and against is None and why is None:
        return []
    lines = ["", f"<details><summary>{plain(result.run.arm)}: what was found</summary>", ""]
    if outcome.located is not None:
        lines += [plain(outcome.located.text), ""]
    if outcome.violations:
        told = outcome.violations[:MAX_FINDINGS]
        rows = [(found.signature, step_text(found.step), found.detail) for found in told]
        lines += _table(("signature", "step", "what"), rows)
        if len(outcome.violations) > MAX_FINDINGS:
            lines += ["", f"and {len(outcome.violations) - MAX_FINDINGS} more"]
    said = (*outcome.reasons, *(against.lines if against else ()), *(why.lines if why is not None else ()))
    lines += [f"- {plain(reason)}" for reason in said]
    return [*lines, "", "</details>"]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return [row([plain(head) for head in heads]), row(["---"] * len(heads)), *(row([*map(plain, r)]) for r in rows), ""]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
