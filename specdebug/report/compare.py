"""Two arms side by side."""

import dataclasses
from functools import partial

from specdebug import __version__
from specdebug.campaign.loops.compare import Comparison, RequestDifference
from specdebug.campaign.loops.replay import Replay
from specdebug.campaign.loops.steplog import Recording
from specdebug.report.failed import failed_arms, head
from specdebug.report.parts import (
    CaseResult,
    Column,
    Line,
    Notice,
    Part,
    Plot,
    Report,
    Section,
    Styled,
    Table,
    columns,
    lines,
    table,
    verdict_of,
)
from specdebug.report.replay import accept_text, arm_sections, not_engine_lines, replay_report
from specdebug.report.words import not_engine_code, number
from specdebug.verdict.outcome import Outcome, RequestResult

MAX_REQUESTS = 40
MAX_GROUPS = 6


def compare_report(replay: Replay, comparison: Comparison, recording: Recording | None = None) -> Report:
    """The comparison of two arms of a replay."""
    names, (left, right) = comparison.names, comparison.outcomes
    rows = [(label, one, other) for (label, one), (_, other) in zip(*map(_measures, (left, right)), strict=True)]
    differing = frozenset(place for place, row in enumerate(rows) if row[1] != row[2])
    measures = Table([Column("", "key"), *columns(*names)], rows, replay.scenario.name, marked=differing)
    requests = _requests(comparison)
    named = zip(names, comparison.against, strict=False)
    against = [f"{name}: {told}" for name, one in named if one is not None for told in one.lines]
    both = list(zip(names, (left.not_engine_code, right.not_engine_code), strict=True))
    summary = comparison_line(comparison)
    where = replay.scenario.where_key("arms", names[1])
    title = f"specdebug: {replay.scenario.name}, {' and '.join(names)}"
    notice = Notice("unknown" if comparison.unavailable else "fail", title, summary, where)
    base, said = replay_report(replay, recording), "\n".join([summary, *not_engine_lines(replay.results)])
    case = CaseResult(" and ".join(names), verdict_of(comparison.exit_code), summary, said, replay.wall_s, out=said)
    return dataclasses.replace(
        base,
        command="compare",
        title=f"{replay.scenario.name}: {' and '.join(names)}",
        summary=summary,
        exit_code=comparison.exit_code,
        document={"specdebug": __version__, "exit_code": comparison.exit_code, **comparison.to_dict()},
        parts=(measures, requests, *lines(against), *lines(not_engine_code(both, short=True), "dim"), Line(summary)),
        chips=[_chip(comparison), *base.chips],
        facts=base.facts | {"exit code": str(comparison.exit_code)},
        page=partial(_page, measures, requests, replay, recording or Recording()),
        cases=[case],
        notices=[] if comparison.exit_code == 0 else [notice],
    )


def _measures(outcome: Outcome) -> list[tuple[str, str]]:
    metrics = outcome.metrics
    return [
        ("verdict", outcome.verdict),
        ("signature", outcome.signature or ""),
        ("accept length", accept_text(metrics)),
        ("cached tokens", str(metrics.cached_tokens)),
        ("generated tokens", str(metrics.generated_tokens)),
        ("engine steps", str(metrics.steps)),
        ("tokens/s", number(metrics.tokens_per_s, 0)),
        ("peak memory", f"{metrics.peak_rss_mb:.0f} MiB"),
        ("trace", outcome.trace_hash),
    ]


def comparison_line(comparison: Comparison) -> str:
    """The result of the comparison in one line: groups whose accept lengths differ, and arms that lost, too."""
    same = "; every step was the same" if comparison.same_trace else ""
    if comparison.unavailable:
        named = zip(comparison.names, comparison.outcomes, strict=True)
        return "; ".join(f"{name} cannot be run here: {o.detail}" for name, o in named if o.unavailable) + same
    differing = [request for request in comparison.requests if not request.same_output]
    closing = "outputs and verdicts agree" if comparison.agree else "the arms differ"
    if differing:
        closing += f": {len(differing)} of {len(comparison.requests)} requests have other outputs"
    elif not comparison.agree:
        closing += " in their verdict"
    left, right = comparison.names
    if apart := comparison.drafting_apart:
        told = (
            f"{group.group} {number(group.baseline, 2)} ({left}) and {number(group.got, 2)} ({right})"
            for group in apart[:MAX_GROUPS]
        )
        more = f" and {len(apart) - MAX_GROUPS} more groups (see --json)" if len(apart) > MAX_GROUPS else ""
        closing += f"; accept lengths differ: {', '.join(told)}{more}"
    if comparison.losing:
        closing += f"; {' and '.join(comparison.losing)} lost accept length against the baseline"
    return closing + same


def _requests(comparison: Comparison) -> Table:
    def output(request: RequestDifference) -> str:
        if request.left is None or request.right is None:
            return f"only in {comparison.names[0] if request.right is None else comparison.names[1]}"
        if request.position is None:
            return f"same {len(request.left.output_ids)} tokens"
        return f"token {request.position}: {request.left_text!r} | {request.right_text!r}"

    def accepted(request: RequestResult | None) -> str:
        if request is None:
            return ""
        cold = "" if request.cold_accept_mean is None else f" (cold {request.cold_accept_mean:.2f})"
        return number(request.accept_mean, 2) + cold

    (left, right), ranked = comparison.names, sorted(comparison.requests, key=lambda request: request.same_output)
    heads = (
        Column("request", "key", lambda request: request.rid),
        Column("output", "prose", output),
        Column(f"accept, {left}", "right", lambda request: accepted(request.left)),
        Column(f"accept, {right}", "right", lambda request: accepted(request.right)),
        Column(f"cached, {left}", "right", lambda request: request.left and request.left.cached_tokens),
        Column(f"cached, {right}", "right", lambda request: request.right and request.right.cached_tokens),
    )
    marked = frozenset(place for place, request in enumerate(ranked) if not request.same_output)
    return table(ranked, *heads, most=MAX_REQUESTS, more="more requests", marked=marked)


def _chip(comparison: Comparison) -> Styled:
    if comparison.unavailable:
        return Styled("cannot be compared here", "unknown")
    if comparison.losing:
        return Styled("accept length lost against the baseline", "fail")
    if not comparison.agree:
        return Styled("the arms differ", "fail")
    if comparison.drafting_apart:
        return Styled("the arms agree, but not in accept length")
    return Styled("the arms agree", "pass")


def _page(measures: Table, requests: Table, replay: Replay, recording: Recording) -> list[Part]:
    from specdebug.report.html.steps import accept_overlay

    steps = {result.run.arm: recording.of(result.run.key) for result in replay.results}
    overlay = accept_overlay(steps)
    keys = list(zip(steps, ("one", "two"), strict=False))
    plot = [] if overlay is None else [Plot(overlay, "Mean accept length of each step.", keys)]
    sides = Section("Side by side", [measures, *plot, requests])
    return [*head(failed_arms(replay)), sides, *arm_sections(replay, recording)]
