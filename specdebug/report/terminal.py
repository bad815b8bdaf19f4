"""Results for a person at a terminal: one table, the evidence below it, one closing line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from specdebug.campaign.loops.baseline import lines_of
from specdebug.campaign.loops.compare import Comparison
from specdebug.campaign.loops.replay import ArmResult, Replay
from specdebug.report.explain import explain
from specdebug.report.foreign import shown
from specdebug.report.tables import Column, Listing, Prose, columns, line, unbroken
from specdebug.report.words import counted, ended, not_engine_code
from specdebug.verdict.outcome import Metrics, Outcome, RequestResult, Violation

PLAIN_WIDTH = 160
"""Columns where the output is no terminal: a table in a log should not be folded at 80."""

VERDICT_STYLE = {"pass": "green", "fail": "bold red", "unknown": "yellow"}
RESULTS = (
    *columns("arm", "verdict", "signature", key=True),
    Column("expected", prose=True),
    *columns("step", "accept length", "cached", "tokens/s", "time", right=True),
)
MAX_VIOLATIONS = 6
MAX_REQUESTS = 40
MAX_TIES = 6
MAX_INJECTIONS = 8
MAX_GROUPS = 6


def console(stream: IO[str] | None = None) -> Console:
    """A console on ``stream`` (stdout unless given)."""
    stream = stream or sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(file=stream, width=width, highlight=False, emoji=False, soft_wrap=False)


def render_replay(replay: Replay) -> RenderableType:
    """Table, evidence, closing line."""
    return Group(
        results_table(replay.scenario.name, replay.results),
        *(line(each, "dim") for each in stack_text(replay.results).splitlines()),
        *(line(each, "dim") for each in not_engine_lines(replay.results, short=True)),
        *(evidence(result) for result in replay.results if wants_evidence(result)),
        *(line(each) for each in lines_of(replay.results)),
        *(line(f"{arm.arm}: {arm.text}", "yellow") for arm in replay.left_out),
        line(closing_line(replay)),
    )


def results_table(title: str, results: Sequence[ArmResult]) -> Listing:
    """One row an arm."""
    rows = []
    for result in results:
        outcome, metrics = result.outcome, result.outcome.metrics
        rows.append(
            (
                result.run.arm,
                Text(outcome.verdict, VERDICT_STYLE[outcome.verdict]),
                outcome.signature or "",
                _met(result),
                step_text(outcome.where_step),
                accept_text(metrics),
                str(metrics.cached_tokens),
                _number(metrics.tokens_per_s, 0),
                f"{metrics.wall_s:.1f} s",
            )
        )
    return Listing(RESULTS, rows, title, bar=True)


def step_text(step: int | None) -> str:
    """The number; nothing without one."""
    return "" if step is None else str(step)


def accept_text(metrics: Metrics) -> str:
    """Mean accept length; where cache hits were served again cold, both: ``2.31 (hit 2.10, cold 2.31)``."""
    text = _number(metrics.accept_mean, 2)
    if metrics.accept_cold is not None:
        text += f" (hit {_number(metrics.accept_hit, 2)}, cold {metrics.accept_cold:.2f})"
    return text


def wants_evidence(result: ArmResult) -> bool:
    """Return True if an arm's story is more than its row: it failed, came to no verdict, or has something to note."""
    outcome = result.outcome
    told = (outcome.violations, outcome.reasons, outcome.notes, outcome.ties, outcome.injections, outcome.cannot_show)
    return any(told) or result.against is not None or explain(result) is not None


def evidence(result: ArmResult) -> RenderableType:
    """The findings of an arm, first things first."""
    outcome = result.outcome
    head = Text(shown(result.run.arm), "bold")
    if reverted := ", ".join(map(str, result.run.reverts)):
        head.append(f"  fixes reverted: {reverted}", "dim")
    lines = [_told(injection, "magenta") for injection in outcome.injections[:MAX_INJECTIONS]]
    if len(outcome.injections) > MAX_INJECTIONS:
        lines.append(_told(f"and {len(outcome.injections) - MAX_INJECTIONS} more injections (see --json)", "dim"))
    if outcome.located is not None:
        lines.append(_told(outcome.located.text, "bold"))
    lines += [_violation_line(v, first=n == 0) for n, v in enumerate(outcome.violations[:MAX_VIOLATIONS])]
    if len(outcome.violations) > MAX_VIOLATIONS:
        lines.append(_told(f"and {len(outcome.violations) - MAX_VIOLATIONS} more kinds (see --json)", "dim"))
    lines += [_told(each, "yellow") for each in (*outcome.reasons, *(f"unknown: {b}" for b in outcome.cannot_show))]
    lines += [_told(note, "dim") for note in outcome.notes]
    if (against := result.against) is not None:
        style = "yellow" if against.why or against.slower else "dim"
        lines += [_told(each, style) for each in against.lines]
    if outcome.ties:
        lines.append(_told(ties_text(outcome), "dim"))
    if (why := explain(result)) is not None:
        lines += [_told(each, "yellow") for each in why.findings]
        lines += [line(f"  {each}", "yellow", fold=False) for each in why.advice]
    if outcome.log_tail and any(_is_death(violation) for violation in outcome.violations):
        lines.append(_told("the worker's last words:", "dim"))
        lines += [_told(f"  {each}", "dim") for each in outcome.log_tail.strip().splitlines()[-12:]]
    return Group(Text(), head, *lines)


def _told(what: object, style: str) -> RenderableType:
    return line(f"  {what}", style)


def ties_text(outcome: Outcome) -> str:
    """The near-ties, widest first: tokens that are not the reference's choice but within the dtype's margin of it."""
    widest = sorted(outcome.ties, key=lambda each: each[1].used, reverse=True)
    named = [
        f"{rid} output {tie.position}: {tie.token} for {tie.preferred}, {tie.margin:.2g} of {tie.allowed:.2g}"
        for rid, tie in widest[:MAX_TIES]
    ]
    if len(widest) > MAX_TIES:
        named.append(f"{len(widest) - MAX_TIES} more (see --json)")
    count, listed = counted(len(widest), "near-tie"), "; ".join(named)
    return f"{count} went the other way than the reference (margin in logits, of what is allowed): {listed}"


def stack_text(results: Sequence[ArmResult]) -> str:
    """The devices of the arms, one phrase for all that share it; empty when all ran on the CPU as the file says."""
    phrases: dict[str, list[str]] = {}
    for result in results:
        stack = result.outcome.stack
        if stack and (stack["device"] != "cpu" or result.run.scenario.overrides):
            phrase = "{device} ({name}), {dtype}, {backend} by {executor}".format_map(stack)
            if stack["executor"] == "server":
                phrase = "a server ({name}), {dtype}, {backend}".format_map(stack)
            phrases.setdefault(phrase, []).append(result.run.arm)
    if len(phrases) == 1:
        return f"on {next(iter(phrases))}"
    return "\n".join(f"{', '.join(arms)}: on {phrase}" for phrase, arms in phrases.items())


def not_engine_lines(results: Sequence[ArmResult], *, short: bool = False) -> list[str]:
    """A line on what was not the engine's own code for all arms that share it."""
    return not_engine_code(((result.run.arm, result.outcome.not_engine_code) for result in results), short=short)


def closing_line(replay: Replay) -> str:
    """The meaning of the exit code, in words."""
    if replay.plain:
        answer = ", ".join(f"{r.run.arm} {ended(r.outcome.verdict, r.outcome.signature)}" for r in replay.results)
    else:
        answer = f"{sum(r.met is True for r in replay.results)} of {len(replay.results)} arms as expected"
    if replay.left_out:
        answer += f", {len(replay.left_out)} not run on {' and '.join({str(arm.target): 0 for arm in replay.left_out})}"
    return f"{replay.scenario.name}: {answer} ({replay.wall_s:.1f} s)"


def render_comparison(scenario: str, comparison: Comparison) -> RenderableType:
    """Metrics side by side, then the requests."""
    left, right = comparison.outcomes
    rows = [(label, value(left), value(right)) for label, value in COMPARED.items()]
    measures = Listing([Column("", key=True), *columns(*comparison.names)], rows, scenario)
    named = zip(comparison.names, comparison.against, strict=False)
    against = [line(f"{name}: {told}") for name, one in named if one is not None for told in one.lines]
    both = zip(comparison.names, (left.not_engine_code, right.not_engine_code), strict=True)
    parts = not_engine_code(both, short=True)
    told = (line(each, "dim") for each in parts)
    return Group(measures, Text(), _request_table(comparison), *against, *told, line(comparison_line(comparison)))


def comparison_line(comparison: Comparison) -> str:
    """The result of the comparison in one line."""
    differing = [request for request in comparison.requests if not request.same_output]
    closing = "outputs and verdicts agree" if comparison.agree else "the arms differ"
    if comparison.unavailable:
        named = zip(comparison.names, comparison.outcomes, strict=True)
        closing = "; ".join(f"{name} cannot be run here: {o.detail}" for name, o in named if o.unavailable)
    elif differing:
        closing += f": {len(differing)} of {len(comparison.requests)} requests have other outputs"
    elif not comparison.agree:
        closing += " in their verdict"
    if not comparison.unavailable:
        closing += _drafts_text(comparison)
    if comparison.same_trace:
        closing += "; every step was the same"
    return closing


def _drafts_text(comparison: Comparison) -> str:
    """The groups whose accept lengths differ, and the arms that lost against a baseline."""
    text, (left, right) = "", comparison.names
    if apart := comparison.drafting_apart:
        told = (
            f"{group.group} {_number(group.baseline, 2)} ({left}) and {_number(group.got, 2)} ({right})"
            for group in apart[:MAX_GROUPS]
        )
        more = f" and {len(apart) - MAX_GROUPS} more groups (see --json)" if len(apart) > MAX_GROUPS else ""
        text = f"; accept lengths differ: {', '.join(told)}{more}"
    if comparison.losing:
        text += f"; {' and '.join(comparison.losing)} lost accept length against the baseline"
    return text


COMPARED: dict[str, Callable[[Outcome], str]] = {
    "verdict": lambda outcome: outcome.verdict,
    "signature": lambda outcome: outcome.signature or "",
    "accept length": lambda outcome: accept_text(outcome.metrics),
    "cached tokens": lambda outcome: str(outcome.metrics.cached_tokens),
    "generated tokens": lambda outcome: str(outcome.metrics.generated_tokens),
    "engine steps": lambda outcome: str(outcome.metrics.steps),
    "tokens/s": lambda outcome: _number(outcome.metrics.tokens_per_s, 0),
    "peak memory": lambda outcome: f"{outcome.metrics.peak_rss_mb:.0f} MiB",
    "trace": lambda outcome: outcome.trace_hash,
}
"""The measures told of both sides of a comparison, and their formats."""


def _request_table(comparison: Comparison) -> RenderableType:
    numbers = [f"{what}, {name}" for what in ("accept", "cached") for name in comparison.names]
    heads = [Column("request", key=True), Column("output", prose=True), *columns(*numbers, right=True)]
    ranked = sorted(comparison.requests, key=lambda request: request.same_output)
    rows = []
    for request in ranked[:MAX_REQUESTS]:
        if request.left is None or request.right is None:
            output = f"only in {comparison.names[0] if request.right is None else comparison.names[1]}"
        elif request.position is None:
            output = f"same {len(request.left.output_ids)} tokens"
        else:
            output = f"token {request.position}: {request.left_text!r} | {request.right_text!r}"
        sides = (request.left, request.right)
        cached = ("" if side is None else str(side.cached_tokens) for side in sides)
        rows.append((request.rid, output, *map(_request_accept, sides), *cached))
    table = Listing(heads, rows)
    if len(ranked) <= MAX_REQUESTS:
        return table
    return Group(table, Text(f"{len(ranked) - MAX_REQUESTS} more requests with the same output", "dim"))


def _request_accept(request: RequestResult | None) -> str:
    if request is None:
        return ""
    cold = "" if request.cold_accept_mean is None else f" (cold {request.cold_accept_mean:.2f})"
    return _number(request.accept_mean, 2) + cold


def _met(result: ArmResult) -> Text:
    expectation = result.run.expectation
    if expectation is None:
        return Text()
    if result.met:
        return Text("yes", "green")
    wanted = f" with {' or '.join(expectation.signatures)}" if expectation.signatures else ""
    return Text(f"no: {shown(expectation.verdict + wanted)}", "bold red")


def _violation_line(violation: Violation, *, first: bool) -> RenderableType:
    told = Text("  " if first else "    then ")
    told.append(unbroken(shown(violation.signature)), "bold red" if first else "red")
    if violation.step is not None:
        told.append(f" at step {violation.step}", "dim")
    if violation.count > 1:
        told.append(f", {violation.count} in all", "dim")
    told.append(f"  {shown(violation.detail)}")
    return Prose(told, hang=6)


def _is_death(violation: Violation) -> bool:
    deadly = violation.kind in ("hang", "oom") or violation.kind.startswith("crash:") or violation.site == "worker"
    return deadly or bool(violation.data.get("lost"))


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
