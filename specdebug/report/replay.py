"""A replay: of one scenario, of several, and each of its arms."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from specdebug import __version__
from specdebug.campaign.loops.baseline import lines_of
from specdebug.campaign.loops.replay import ArmResult, Replay, as_it_should
from specdebug.campaign.loops.replays import Replays
from specdebug.campaign.loops.steplog import EngineStep, Recording
from specdebug.report.explain import explain
from specdebug.report.failed import anchor_of, failed_arms, head, what_was_seen
from specdebug.report.parts import (
    CaseResult,
    Column,
    FactList,
    FindingList,
    Line,
    Notice,
    Part,
    Plot,
    Preformatted,
    Report,
    Section,
    Styled,
    Table,
    ToldFinding,
    lines,
    plain,
    table,
)
from specdebug.report.words import NOT_ENGINE_CODE, counted, dash, ended, not_engine_code, number
from specdebug.verdict.outcome import Metrics, Outcome, Tie, Violation

MAX_FINDINGS = 6
MAX_TIES = 6
MAX_TOGETHER = 5
"""Arms in one plot of accept lengths: so many colours there are."""
MAX_INJECTIONS = 8
MAX_LOG_LINES = 12
MAX_SPANS = 100
"""Rows of the table that stands for the plots."""
OPEN_REQUESTS = 20
"""Requests that a page shows without being asked."""


def accept_text(metrics: Metrics) -> str:
    """Mean accept length; where cache hits were served again cold, both: ``2.31 (hit 2.10, cold 2.31)``."""
    text = number(metrics.accept_mean, 2)
    if metrics.accept_cold is not None:
        text += f" (hit {number(metrics.accept_hit, 2)}, cold {metrics.accept_cold:.2f})"
    return text


def _met(result: ArmResult) -> Styled | str:
    if (expectation := result.run.expectation) is None:
        return ""
    wanted = f" with {' or '.join(expectation.signatures)}" if expectation.signatures else ""
    return Styled("yes", "pass") if result.met else Styled(f"no: {expectation.verdict}{wanted}", "fail")


def _as_it_should_not(replay: Replay) -> list[Styled]:
    wrong = [(each.run.shown, each.outcome) for each in replay.results if not as_it_should(each)]
    told = [Styled(f"{arm}: {ended(what.verdict, what.signature)}", what.verdict) for arm, what in wrong]
    return told + [Styled(f"{arm.arm}: {arm.text}", "unknown") for arm in replay.left_out]


def _right(replay: Replay) -> str:
    return f"{sum(map(as_it_should, replay.results))} of {len(replay.results)}" if replay.results else ""


RESULTS = (
    Column("arm", "key", lambda each: each.run.shown),
    Column("verdict", "key", lambda each: Styled(each.outcome.verdict, "pass" if each.met else each.outcome.verdict)),
    Column("signature", "key", lambda each: each.outcome.signature),
    Column("expected", "prose", _met),
    Column("step", "right", lambda each: each.outcome.where_step),
    Column("accept length", "right", lambda each: accept_text(each.outcome.metrics)),
    Column("cached", "right", lambda each: each.outcome.metrics.cached_tokens),
    Column("tokens/s", "right", lambda each: number(each.outcome.metrics.tokens_per_s, 0)),
    Column("time", "right", lambda each: f"{each.outcome.metrics.wall_s:.1f} s"),
)
WRONG = (
    Column("scenario", "key", lambda replay: replay.scenario.name),
    Column("arms", "right", _right),
    Column("time", "right", lambda replay: f"{replay.wall_s:.1f} s"),
    Column("what did not do as it should", of=_as_it_should_not),
)
INJECTIONS = (
    Column("#", "right", lambda placed: f"i{placed[0]}"),
    Column("fault", of=lambda placed: placed[1].fault),
    Column("step", of=lambda placed: placed[1].step),
    Column("request", of=lambda placed: dash(placed[1].request)),
    Column("site", of=lambda placed: dash(placed[1].site)),
    Column("where", of=lambda placed: _damaged(placed[1])),
    Column("before", of=lambda placed: str(placed[1].before)),
    Column("after", of=lambda placed: f"{placed[1].after}{'' if placed[1].changed else ' (nothing changed)'}"),
)
SPANS = (
    Column("steps", of=lambda span: span.name),
    Column("phase", of=lambda span: span.kind),
    Column("batch", "right", lambda span: span.batch),
    Column("accept length", "right", lambda span: number(span.accept, 2)),
    Column("tokens", "right", lambda span: span.emitted),
    Column("longest step", "right", lambda span: f"{1000 * span.seconds:.1f} ms"),
    Column("finished", "right", lambda span: len(span.finished) or None),
    Column("retracted", "right", lambda span: len(span.retracted) or None),
)
REQUESTS = (
    Column("request", of=lambda request: request.rid),
    Column("group", of=lambda request: request.group),
    Column("prompt", "right", lambda request: request.prompt_tokens),
    Column("cached", "right", lambda request: request.cached_tokens),
    Column("output", "right", lambda request: len(request.output_ids)),
    Column("accept length", "right", lambda request: number(request.accept_mean, 2)),
    Column("cold", "right", lambda request: number(request.cold_accept_mean, 2)),
    Column("near-ties", "right", lambda request: len(request.ties) or None),
    Column("ended", of=lambda request: request.finish_reason or "not finished"),
)
TIES = (
    Column("request", of=lambda named: named[0]),
    Column("output", "right", lambda named: named[1].position),
    Column("token", "right", lambda named: named[1].token),
    Column("reference's", "right", lambda named: named[1].preferred),
    Column("margin in logits", "right", lambda named: f"{named[1].margin:.2g}"),
    Column("allowed", "right", lambda named: f"{named[1].allowed:.2g}"),
)


def replay_report(
    replay: Replay, recording: Recording | None = None, again: tuple[Sequence[str], Any] = ((), {})
) -> Report:
    """One scenario's replay. ``again``: of a bundle, how it came out beside what was recorded, in words and as data."""
    results, (said, data), summary = replay.results, again, closing_line(replay)
    left_out = [f"{arm.arm}: {arm.text}" for arm in replay.left_out]
    seeds = {result.run.seed for result in results} or {replay.scenario.seed}
    told = [result for result in results if _has_a_story(result)]
    steps = recording or Recording()
    return Report(
        command="replay",
        title=replay.scenario.name,
        summary=summary,
        exit_code=replay.exit_code,
        document=replay_document(replay) | data,
        parts=(
            table(results, *RESULTS, title=replay.scenario.name, bar=True),
            *lines(_stack_lines(results), "dim"),
            *lines(not_engine_lines(results, short=True), "dim"),
            *map(evidence, told),
            *lines(lines_of(results)),
            *lines(left_out, "unknown"),
            Line(summary),
            *lines(said, fold=False),
            *lines(what_was_seen(replay)),
        ),
        chips=[head_chip(result) for result in results],
        facts={
            "scenario": str(replay.scenario.path),
            "seed": ", ".join(map(str, sorted(seeds))),
            "duration": f"{replay.wall_s:.1f} s",
            "exit code": str(replay.exit_code),
            "not run": "; ".join(left_out),
        },
        page=lambda: _page(replay, steps),
        cases=(
            *map(_case, results),
            *(CaseResult(arm.arm, "unknown", arm.text, "", 0.0) for arm in replay.left_out),
        ),
        notices=[_notice(replay, result) for result in results if not as_it_should(result)],
        trace=None if recording is None else partial(_trace, replay, recording),
        seconds=replay.wall_s,
    )


def replays_report(answer: Replays, recording: Recording | None = None) -> Report:
    """Several scenarios: the whole story of each that did not do as it should, then a row for each."""
    inner = [replay_report(replay, recording) for replay in answer.replays]
    summary = _replays_line(answer)
    return Report(
        command="replay",
        title=counted(len(inner), "scenario"),
        summary=summary,
        exit_code=answer.exit_code,
        document={
            "specdebug": __version__,
            **plain(answer, "exit_code interrupted missing"),
            "trouble": None if answer.trouble is None else str(answer.trouble),
            "wall_s": round(answer.wall_s, 3),
            "scenarios": [each.document for each in inner],
        },
        parts=(
            *(part for each in inner if each.exit_code != 0 for part in (*each.parts, Line(""))),
            table(answer.replays, *WRONG, bar=True),
            *lines(lines_of(result for replay in answer.replays for result in replay.results)),
            Line(summary),
        ),
        inner=inner,
        seconds=answer.wall_s,
    )


def replay_document(replay: Replay) -> dict[str, Any]:
    """A replay as plain data."""
    return {
        "specdebug": __version__,
        "scenario": replay.scenario.name,
        "path": str(replay.scenario.path),
        **plain(replay, "exit_code interrupted"),
        "wall_s": round(replay.wall_s, 3),
        "arms": [arm_document(result) for result in replay.results],
        "not_run": [arm.to_dict() for arm in replay.left_out],
    }


def arm_document(result: ArmResult) -> dict[str, Any]:
    """One arm: the run, the expectation, the outcome."""
    run, why = result.run, explain(result)
    overridden = {"overridden": sorted(run.scenario.overrides)}
    return {
        **plain(run, "arm shown seed"),
        "reverted": list(run.reverts),
        "engine": plain(run.asked, "device dtype attention_backend") | overridden,
        "expected": None if run.expectation is None else run.expectation.to_dict(),
        "met": result.met,
        "explanation": None if why is None else why.to_dict(),
        **({} if result.against is None else {"baseline": result.against.to_dict()}),
        **result.outcome.to_dict(),
    }


def _has_a_story(result: ArmResult) -> bool:
    """An arm's story is more than its row: it failed, came to no verdict, or has something to note."""
    outcome = result.outcome
    told = (outcome.violations, outcome.reasons, outcome.notes, outcome.ties, outcome.injections, outcome.cannot_show)
    return any(told) or result.against is not None or explain(result) is not None


def evidence(result: ArmResult) -> Section:
    """The findings of an arm, first things first."""
    outcome = result.outcome
    reverted = ", ".join(map(str, result.run.reverts))
    parts: list[Part] = list(lines(map(str, outcome.injections[:MAX_INJECTIONS]), "injected"))
    if len(outcome.injections) > MAX_INJECTIONS:
        parts.append(Line(f"and {len(outcome.injections) - MAX_INJECTIONS} more injections (see --json)", "dim"))
    if outcome.located is not None:
        parts.append(Line(outcome.located.text, "bold"))
    parts += [*_findings(outcome), *_remarks(result)]
    if outcome.ties:
        parts.append(Line(_ties_text(outcome), "dim"))
    if (why := explain(result)) is not None:
        parts += [*lines(why.findings, "unknown"), *lines(why.advice, "unknown", fold=False)]
    if outcome.log_tail and any(map(_is_death, outcome.violations)):
        last = outcome.log_tail.strip().splitlines()[-MAX_LOG_LINES:]
        parts += [Line("the worker's last words:", "dim"), *lines((f"  {each}" for each in last), "dim")]
    return Section(result.run.shown, parts, note=f"fixes reverted: {reverted}" if reverted else "")


def _is_death(violation: Violation) -> bool:
    deadly = violation.kind in ("hang", "oom") or violation.kind.startswith("crash:") or violation.site == "worker"
    return deadly or bool(violation.data.get("lost"))


def _widest_ties(outcome: Outcome) -> list[tuple[str, Tie]]:
    return sorted(outcome.ties, key=lambda named: named[1].used, reverse=True)


def _ties_text(outcome: Outcome) -> str:
    """The near-ties, widest first: tokens that are not the reference's choice but within the dtype's margin of it."""
    widest = _widest_ties(outcome)
    named = [
        f"{rid} output {tie.position}: {tie.token} for {tie.preferred}, {tie.margin:.2g} of {tie.allowed:.2g}"
        for rid, tie in widest[:MAX_TIES]
    ]
    if len(widest) > MAX_TIES:
        named.append(f"{len(widest) - MAX_TIES} more (see --json)")
    count, listed = counted(len(widest), "near-tie"), "; ".join(named)
    return f"{count} went the other way than the reference (margin in logits, of what is allowed): {listed}"


def _stack_lines(results: Sequence[ArmResult]) -> list[str]:
    """The devices of the arms, one phrase for all that share it; none when all ran on the CPU as the file says."""
    phrases: dict[str, list[str]] = {}
    for result in results:
        stack = result.outcome.stack
        if stack and (stack["device"] != "cpu" or result.run.scenario.overrides):
            phrase = "{device} ({name}), {dtype}, {backend} by {executor}".format_map(stack)
            if stack["executor"] == "server":
                phrase = "a server ({name}), {dtype}, {backend}".format_map(stack)
            phrases.setdefault(phrase, []).append(result.run.shown)
    if len(phrases) == 1:
        return [f"on {next(iter(phrases))}"]
    return [f"{', '.join(arms)}: on {phrase}" for phrase, arms in phrases.items()]


def not_engine_lines(results: Sequence[ArmResult], *, short: bool = False) -> list[str]:
    """A line on what was not the engine's own code for all arms that share it."""
    return not_engine_code(((result.run.shown, result.outcome.not_engine_code) for result in results), short=short)


def closing_line(replay: Replay) -> str:
    """The meaning of the exit code, in words."""
    if replay.plain:
        answer = ", ".join(f"{r.run.shown} {ended(r.outcome.verdict, r.outcome.signature)}" for r in replay.results)
    else:
        answer = f"{sum(r.met is True for r in replay.results)} of {len(replay.results)} arms as expected"
    if replay.left_out:
        answer += f", {len(replay.left_out)} not run on {' and '.join({str(arm.target): 0 for arm in replay.left_out})}"
    return f"{replay.scenario.name}: {answer} ({replay.wall_s:.1f} s)" + (", interrupted" if replay.interrupted else "")


def _replays_line(answer: Replays) -> str:
    codes = [replay.exit_code for replay in answer.replays if replay.results]
    good, bad = codes.count(0), codes.count(1)
    counts = {"not": bad, "without a verdict": len(codes) - good - bad}
    parts = [f"{good} as they should", *(f"{count} {what}" for what, count in counts.items() if count)]
    if without := sum(len(replay.left_out) for replay in answer.replays):
        parts.append(f"{counted(without, 'arm')} not run on {'its' if without == 1 else 'their'} target")
    line = f"{counted(len(codes), 'scenario')}: {', '.join(parts)} ({answer.wall_s:.1f} s)"
    if answer.missing:
        line += f"; {counted(answer.missing, 'arm')} did not run"
    return f"{line}; interrupted" if answer.interrupted else line


def head_chip(result: ArmResult) -> Styled:
    """An arm in the head of a page. Its colour shows if that is as it should be: a failure may be expected."""
    verdict, said = result.outcome.verdict, f"{result.run.shown}: {result.outcome.verdict}"
    if result.met is True and verdict != "pass":
        return Styled(f"{said}, as expected", "pass")
    if result.met is False and verdict == "pass":
        return Styled(f"{said}, not as expected", "fail")
    return Styled(said, verdict)


def _trace(replay: Replay, recording: Recording) -> dict[str, Any]:
    from specdebug.report.perfetto import trace_of

    return trace_of(replay, recording)


def _remarks(result: ArmResult) -> Iterator[Line]:
    """The reasons, notes, and what a baseline says of an arm."""
    outcome, against = result.outcome, result.against
    yield from lines(outcome.reasons, "unknown")
    yield from lines((f"unknown: {each}" for each in outcome.cannot_show), "unknown")
    yield from lines(outcome.notes, "dim")
    if against is not None:
        yield from lines(against.lines, "unknown" if against.why or against.slower else "dim")


def _findings(outcome: Outcome) -> list[FindingList]:
    found = [ToldFinding(v.signature, v.step, v.count, v.detail) for v in outcome.violations]
    return [FindingList(found, MAX_FINDINGS)] if found else []


def _case(result: ArmResult) -> CaseResult:
    outcome, metrics = result.outcome, result.outcome.metrics
    found = [f"{v.signature} (step {v.step}, {v.count} in all): {v.detail}" for v in outcome.violations]
    if outcome.located is not None:
        found.insert(0, outcome.located.text)
    if (why := explain(result)) is not None:
        found += why.lines
    unknown = outcome.verdict == "unknown"
    told = [
        f"verdict {outcome.verdict}",
        f"trace {outcome.trace_hash}",
        f"steps {metrics.steps}",
        f"generated tokens {metrics.generated_tokens}",
        f"cached tokens {metrics.cached_tokens}",
        *([] if metrics.accept_mean is None else [f"mean accept length {metrics.accept_mean:.3f}"]),
        *([_ties_text(outcome)] if outcome.ties else []),
        *not_engine_lines([result]),
        *(each.text for each in _remarks(result)),
    ]
    return CaseResult(
        name=result.run.shown,
        verdict="pass" if as_it_should(result) else "unknown" if unknown else "fail",
        message=outcome.detail if unknown else outcome.signature or "pass, where a failure was expected",
        detail="" if unknown else "\n".join(found or [outcome.detail]),
        seconds=metrics.wall_s,
        out="\n".join(told),
        log=outcome.log_tail,
    )


def _notice(replay: Replay, result: ArmResult) -> Notice:
    outcome, expectation = result.outcome, result.run.expectation
    what = outcome.signature or outcome.verdict
    message = "" if outcome.where_step is None else f"step {outcome.where_step}: "
    message += outcome.detail or "nothing was found"
    if expectation is not None:
        message += f"; expected was {ended(expectation.verdict, ' or '.join(expectation.signatures))}"
    where = replay.scenario.where_key("arms", result.run.arm)
    title = f"specdebug: {replay.scenario.name}, arm {result.run.shown}: {what}"
    return Notice("unknown" if outcome.verdict == "unknown" else "fail", title, message, where)


def _page(replay: Replay, steps: Recording) -> list[Part]:
    about = [Section("Scenario", [Line(replay.scenario.description)])] if replay.scenario.description else []
    return [*head(failed_arms(replay)), *about, *_together(replay, steps), *arm_sections(replay, steps)]


def _together(replay: Replay, recording: Recording) -> Iterator[Section]:
    """The accept lengths of all arms in one plot; nothing of one arm alone."""
    arms = {each.run.shown: recording.of(each.run.key) for each in replay.results}
    verified = [(name, steps) for name, steps in arms.items() if any(step.lengths for step in steps)]
    shown = dict(verified[:MAX_TOGETHER])
    if len(shown) < 2:
        return
    from specdebug.report.html.steps import accept_overlay

    if (overlay := accept_overlay(shown, "culprit c")) is not None:
        keys = [(name, f"c{place}") for place, name in enumerate(shown, 1)]
        yield Section("Accept lengths", [Plot(overlay, "Mean accept length of each step, by arm.", keys)])


def arm_sections(replay: Replay, recording: Recording) -> list[Section]:
    """All of each arm, for a page."""
    arms = len(replay.results)
    return [
        _arm_section(result, recording.of(result.run.key), arms, anchor_of(place))
        for place, result in enumerate(replay.results)
    ]


def _arm_section(result: ArmResult, steps: Sequence[EngineStep], arms: int, anchor: str) -> Section:
    """All of one of so many arms. ``steps``: as recorded; without any there are no plots."""
    outcome, expectation = result.outcome, result.run.expectation
    parts: list[Part] = [*lines(filter(None, (outcome.signature, outcome.detail)), "bold"), FactList(_facts(result))]
    if outcome.located is not None:
        parts.append(Line(f"{outcome.located.text}; seen as {outcome.located.seen}"))
    parts += _findings(outcome)
    if outcome.injections:
        parts.append(table(enumerate(outcome.injections, 1), *INJECTIONS, title="Injected faults"))
    parts += lines(each.text for each in _remarks(result))
    if (why := explain(result)) is not None:
        parts += lines(why.lines)
    parts += _plots(steps, outcome, arms)
    if outcome.requests:
        folded = len(outcome.requests) > OPEN_REQUESTS
        listed = table(outcome.requests, *REQUESTS, lights=True)
        parts.append(Section(f"Requests ({len(outcome.requests)})", [listed], folded=folded))
    # The verdict has no colour where the expectation stands beside it in another.
    other = result.met is not None and result.met != (outcome.verdict == "pass")
    chips = [Styled(outcome.verdict, "" if other else outcome.verdict)]
    if expectation is not None:
        expected = f"expected {ended(expectation.verdict, ' or '.join(expectation.signatures))}"
        chips.append(Styled("as expected", "pass") if result.met else Styled(expected, "fail"))
    return Section(result.run.shown, [*parts, *_folded(outcome)], chips=chips, anchor=anchor)


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
        NOT_ENGINE_CODE: "; ".join(outcome.not_engine_code),
    }
    if stack:
        libraries = ("torch", "triton", "flashinfer", "flash_attn", "flash_attn_3")
        facts["ran on"] = f"{stack['name']}, {stack['dtype']}, {stack['backend']} by {stack['executor']}"
        facts["with"] = ", ".join(f"{name} {stack[name]}" for name in libraries if stack.get(name))
    return facts


def _damaged(injection: Any) -> str:
    index = list(injection.index) if injection.index else ""
    return f"{injection.tensor}{index}" + (f" and {injection.count - 1} more" if injection.count > 1 else "")


def _plots(steps: Sequence[EngineStep], outcome: Outcome, arms: int) -> Iterator[Part]:
    if not steps:
        return
    from specdebug.report.html.steps import accept_plot, kinds_of, spans, timeline_plot

    if (accept := accept_plot(steps, outcome, arms)) is not None:
        said = "Accept length over steps: thin lines are requests, the thick one is the mean of each step."
        said += " Dashed lines are findings, numbered as in the table." if outcome.violations else ""
        said += " Solid lines are injected faults." if outcome.injections else ""
        yield Plot(accept, said)
    ends = (("request finished", "finished"), ("request retracted", "retracted"))
    keys = [*((kind, kind) for kind in kinds_of(steps)), *ends]
    yield Plot(timeline_plot(steps, outcome, arms), "Timeline of the engine's steps.", keys)
    yield Section("The plots as a table", [table(spans(steps, MAX_SPANS), *SPANS)], folded=True)


def _folded(outcome: Outcome) -> Iterator[Section]:
    """What a page shows when it is asked for it: near-ties, counts of lines and probes, the log."""
    times = Column("times", "right")
    if outcome.ties:
        title = f"Near-ties that went the other way than the reference ({len(outcome.ties)})"
        yield Section(title, [table(_widest_ties(outcome), *TIES)], folded=True)
    if hits := [(pr, edit, str(n)) for pr, edits in outcome.reverted_hits.items() for edit, n in edits.items()]:
        ran = Table([Column("fix"), Column("edit"), times], hits)
        yield Section("How often the reverted lines ran", [ran], folded=True)
    if sites := outcome.reached_sites:
        counts = [(site, str(count or "never")) for site, count in sorted(sites.items())]
        title = f"Probes reached ({sum(map(bool, sites.values()))} of {len(sites)} sites)"
        yield Section(title, [Table([Column("site"), times], counts)], folded=True)
    if outcome.log_tail:
        log = Preformatted(outcome.log_tail, "log")
        yield Section("End of the worker's log", [log], folded=outcome.verdict == "pass")
