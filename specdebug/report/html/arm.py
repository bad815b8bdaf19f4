"""One arm's part of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from specdebug.campaign.loops.replay import ArmResult, Replay
from specdebug.campaign.loops.steplog import EngineStep, Recording
from specdebug.report.explain import explain
from specdebug.report.html.accept import accept_plot
from specdebug.report.html.page import Chip
from specdebug.report.html.series import Span, spans
from specdebug.report.html.timeline import kinds_of, timeline_plot
from specdebug.report.terminal import accept_text, step_text
from specdebug.report.words import NOT_ENGINE_CODE, ended
from specdebug.verdict.outcome import Outcome, Tie

MAX_FOLDED = 100
"""Rows of the table that stands for the plots."""


@dataclass(frozen=True)
class ArmView:
    """The parts of an arm's page that the template fills in. ``kinds``: the phases that its steps were in.
    ``ties``: of ``outcome``, the widest first."""

    name: str
    outcome: Outcome
    verdict: Chip
    expected: Chip | None
    facts: dict[str, str]
    remarks: Sequence[str]
    accept: Markup | None
    timeline: Markup | None
    kinds: Sequence[str]
    spans: Sequence[Span]
    ties: Sequence[tuple[str, Tie]]


def arm_views(replay: Replay, recording: Recording) -> list[ArmView]:
    """The views of all arms of a replay."""
    return [arm_view(result, recording.of(result.run.key), len(replay.results)) for result in replay.results]


def arm_view(result: ArmResult, steps: Sequence[EngineStep], arms: int) -> ArmView:
    """The view of one of so many arms. ``steps``: as recorded; without any there are no plots."""
    outcome, against, why = result.outcome, result.against, explain(result)
    return ArmView(
        name=result.run.arm,
        outcome=outcome,
        verdict=verdict_chip(result),
        expected=_expected(result),
        facts=_facts(result),
        remarks=[
            *outcome.reasons,
            *outcome.notes,
            *(against.lines if against else ()),
            *(why.lines if why is not None else ()),
        ],
        accept=accept_plot(steps, outcome, arms),
        timeline=timeline_plot(steps, outcome, arms),
        kinds=kinds_of(steps),
        spans=spans(steps, MAX_FOLDED),
        ties=sorted(outcome.ties, key=lambda named: named[1].used, reverse=True),
    )


def head_chip(result: ArmResult) -> Chip:
    """An arm in the head of a page. Its colour shows if that is as it should be: a failure may be expected."""
    verdict, said = result.outcome.verdict, f"{result.run.arm}: {result.outcome.verdict}"
    if result.met is True and verdict != "pass":
        return Chip(f"{said}, as expected", "pass")
    if result.met is False and verdict == "pass":
        return Chip(f"{said}, not as expected", "fail")
    return Chip(said, verdict)


def verdict_chip(result: ArmResult) -> Chip:
    """The verdict as a chip, without a colour where the expectation stands beside it in another."""
    verdict = result.outcome.verdict
    return Chip(verdict, "plain" if result.met is not None and result.met != (verdict == "pass") else verdict)


def _expected(result: ArmResult) -> Chip | None:
    expectation = result.run.expectation
    if expectation is None:
        return None
    if result.met:
        return Chip("as expected", "pass")
    return Chip(f"expected {ended(expectation.verdict, ' or '.join(expectation.signatures))}", "fail")


def _facts(result: ArmResult) -> dict[str, str]:
    run, outcome = result.run, result.outcome
    metrics, stack = outcome.metrics, outcome.stack
    facts = {
        "seed": str(run.seed),
        "fixes reverted": ", ".join(map(str, run.reverts)) or "none",
        "site": outcome.site or "",
        "first at step": step_text(outcome.where_step),
        "accept length": accept_text(metrics),
        "generated tokens": str(metrics.generated_tokens),
        "cached tokens": str(metrics.cached_tokens),
        "engine steps": str(metrics.steps),
        "tokens/s": "" if metrics.tokens_per_s is None else f"{metrics.tokens_per_s:.0f}",
        "time": f"{metrics.wall_s:.1f} s",
        "peak memory": f"{metrics.peak_rss_mb:.0f} MiB",
        "trace": outcome.trace_hash,
        NOT_ENGINE_CODE: "; ".join(outcome.not_engine_code),
    }
    if stack:
        libraries = ("torch", "triton", "flashinfer", "flash_attn", "flash_attn_3")
        facts["ran on"] = f"{stack['name']}, {stack['dtype']}, {stack['backend']} by {stack['executor']}"
        facts["with"] = ", ".join(f"{name} {stack[name]}" for name in libraries if stack.get(name))
    return {name: value for name, value in facts.items() if value}
