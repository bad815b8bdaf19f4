"""One arm's part of a page: verdict, findings, plots, requests, probes, log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from specdebug.faults.model import Injection
from specdebug.loops.replay import ArmResult
from specdebug.loops.steplog import EngineStep
from specdebug.report.explain import explain
from specdebug.report.html.accept import accept_plot
from specdebug.report.html.page import Chip
from specdebug.report.html.series import Span, spans
from specdebug.report.html.timeline import timeline_plot
from specdebug.report.terminal import accept_text
from specdebug.verdict.outcome import RequestResult, Tie, Violation

MAX_ROWS = 500
"""Rows of a table; the JSON document has them all."""

MAX_FOLDED = 100
"""Rows of the table that stands for the plots."""


@dataclass(frozen=True)
class ArmView:
    """The parts of an arm's page that the template fills in."""

    name: str
    verdict: Chip
    expected: Chip | None
    signature: str
    detail: str
    facts: dict[str, str]
    findings: Sequence[Violation]
    injections: Sequence[Injection]
    more_injections: int
    remarks: Sequence[str]
    accept: Markup | None
    timeline: Markup | None
    spans: Sequence[Span]
    requests: Sequence[RequestResult]
    more_requests: int
    ties: Sequence[tuple[str, Tie]]
    more_ties: int
    sites: Sequence[tuple[str, int]]
    reverts: Sequence[tuple[str, str, int]]
    log: str


def arm_view(result: ArmResult, steps: Sequence[EngineStep], arms: int) -> ArmView:
    """The view of what became of one of so many arms. ``steps``: as recorded; without any there are no plots."""
    outcome, why = result.outcome, explain(result)
    ties = sorted(outcome.ties, key=lambda named: named[1].used, reverse=True)
    return ArmView(
        name=result.run.arm,
        verdict=verdict_chip(result),
        expected=_expected(result),
        signature=outcome.signature or "",
        detail=outcome.detail,
        facts=_facts(result),
        findings=outcome.violations[:MAX_ROWS],
        injections=outcome.injections[:MAX_ROWS],
        more_injections=max(0, len(outcome.injections) - MAX_ROWS),
        remarks=[*outcome.reasons, *outcome.notes, *(why.lines if why is not None else ())],
        accept=accept_plot(steps, outcome, arms),
        timeline=timeline_plot(steps, outcome, arms),
        spans=spans(steps, MAX_FOLDED),
        requests=outcome.requests[:MAX_ROWS],
        more_requests=max(0, len(outcome.requests) - MAX_ROWS),
        ties=ties[:MAX_ROWS],
        more_ties=max(0, len(ties) - MAX_ROWS),
        sites=sorted(outcome.reached_sites.items()),
        reverts=[
            (number, edit, count) for number, edits in outcome.reverted_hits.items() for edit, count in edits.items()
        ],
        log=outcome.log_tail,
    )


def head_chip(result: ArmResult) -> Chip:
    """An arm in the head of a page. Its colour says whether that is as it should be: a failure may be expected."""
    verdict, said = result.outcome.verdict, f"{result.run.arm}: {result.outcome.verdict}"
    if result.met is True and verdict != "pass":
        return Chip(f"{said}, as expected", "pass")
    if result.met is False and verdict == "pass":
        return Chip(f"{said}, not as expected", "fail")
    return Chip(said, verdict)


def verdict_chip(result: ArmResult) -> Chip:
    """The verdict as a chip, without a colour where what was expected is said beside it in another."""
    verdict = result.outcome.verdict
    return Chip(verdict, "plain" if result.met is not None and result.met != (verdict == "pass") else verdict)


def _expected(result: ArmResult) -> Chip | None:
    expectation = result.run.expectation
    if expectation is None:
        return None
    if result.met:
        return Chip("as expected", "pass")
    wanted = " or ".join(expectation.signatures)
    return Chip(f"expected {expectation.verdict}{f' {wanted}' if wanted else ''}", "fail")


def _facts(result: ArmResult) -> dict[str, str]:
    run, outcome = result.run, result.outcome
    metrics, stack = outcome.metrics, outcome.stack
    facts = {
        "seed": str(run.seed),
        "fixes reverted": ", ".join(map(str, run.reverts)) or "none",
        "site": outcome.site or "",
        "first at step": "" if outcome.where_step is None else str(outcome.where_step),
        "accept length": accept_text(metrics),
        "generated tokens": str(metrics.generated_tokens),
        "cached tokens": str(metrics.cached_tokens),
        "engine steps": str(metrics.steps),
        "tokens/s": "" if metrics.tokens_per_s is None else f"{metrics.tokens_per_s:.0f}",
        "time": f"{metrics.wall_s:.1f} s",
        "peak memory": f"{metrics.peak_rss_mb:.0f} MiB",
        "trace": outcome.trace_hash,
    }
    if stack:
        libraries = ("torch", "triton", "flashinfer", "flash_attn", "flash_attn_3")
        versions = ", ".join(f"{name} {stack[name]}" for name in libraries if stack.get(name))
        facts["ran on"] = f"{stack['name']}, {stack['dtype']}, {stack['backend']} by {stack['executor']}"
        facts["with"] = versions
    return {name: value for name, value in facts.items() if value}
