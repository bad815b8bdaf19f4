"""A replay: of one scenario, of several, and each of its arms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from specdebug import __version__
from specdebug.campaign.loops.baseline import lines_of
from specdebug.campaign.loops.replay import ArmResult, Replay, as_it_should
from specdebug.campaign.loops.replays import Replays
from specdebug.campaign.loops.steplog import EngineStep, Recording
from specdebug.report.explain import explain
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
    columns,
    lines,
)
from specdebug.report.words import NOT_ENGINE_CODE, counted, dash, ended, not_engine_code, number
from specdebug.verdict.outcome import Metrics, Outcome, RequestResult, Violation

MAX_FINDINGS = 6
MAX_TIES = 6
MAX_INJECTIONS = 8
MAX_LOG_LINES = 12
MAX_SPANS = 100
"""Rows of the table that stands for the plots."""
OPEN_REQUESTS = 20
"""Requests that a page shows without being asked."""

RESULTS = (
    *columns("arm", "verdict", "signature", key=True),
    Column("expected", prose=True),
    *columns("step", "accept length", "cached", "tokens/s", "time", right=True),
)
WRONG = (
    Column("scenario", key=True),
    *columns("arms", "time", right=True),
    Column("what did not do as it should"),
)


def replay_report(
    replay: Replay, recording: Recording | None = None, again: tuple[Sequence[str], Any] = ((), {})
) -> Report:
    """One scenario's replay. ``again``: of a bundle, how it came out beside what was recorded, in words and as data."""
    results, (said, data) = replay.results, again
    summary = closing_line(replay)
    against, left_out = lines_of(results), [Line(f"{arm.arm}: {arm.text}", "unknown") for arm in replay.left_out]
    return Report(
        command="replay",
        title=replay.scenario.name,
        summary=summary,
        exit_code=replay.exit_code,
        document=replay_document(replay) | data,
        parts=(
            results_table(replay.scenario.name, results),
            *lines(stack_text(results).splitlines(), "dim"),
            *lines(not_engine_lines(results, short=True), "dim"),
            *(evidence(result) for result in results if wants_evidence(result)),
            *lines(against),
            *left_out,
            Line(summary),
            *lines(said, fold=False),
        ),
        chips=[head_chip(result) for result in results],
        facts=scenario_facts(replay),
        page=partial(_page, replay, recording or Recording()),
        cases=(*(_case(result) for result in results), *(_skipped(arm.arm, arm.text) for arm in replay.left_out)),
        notices=[_notice(replay, result) for result in results if not as_it_should(result)],
        trace=None if recording is None else partial(_trace, replay, recording),
        seconds=replay.wall_s,
    )


def replays_report(answer: Replays, recording: Recording | None = None) -> Report:
    """Several scenarios: the whole story of each that did not do as it should, then a row for each."""
    inner = [replay_report(replay, recording) for replay in answer.replays]
    summary = replays_line(answer)
    return Report(
        command="replay",
        title=counted(len(inner), "scenario"),
        summary=summary,
        exit_code=answer.exit_code,
        document={
            "specdebug": __version__,
            "exit_code": answer.exit_code,
            "interrupted": answer.interrupted,
            "missing": answer.missing,
            "trouble": None if answer.trouble is None else str(answer.trouble),
            "wall_s": round(answer.wall_s, 3),
            "scenarios": [each.document for each in inner],
        },
        parts=(
            *(part for each in inner if each.exit_code != 0 for part in (*each.parts, Line(""))),
            Table(WRONG, [_wrong_row(replay) for replay in answer.replays], bar=True),
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
        "exit_code": replay.exit_code,
        "interrupted": replay.interrupted,
        "wall_s": round(replay.wall_s, 3),
        "arms": [arm_document(result) for result in replay.results],
        "not_run": [arm.to_dict() for arm in replay.left_out],
    }


def arm_document(result: ArmResult) -> dict[str, Any]:
    """One arm: the run, the expectation, the outcome."""
    expectation, asked = result.run.expectation, result.run.asked
    return {
        "arm": result.run.arm,
        "seed": result.run.seed,
        "reverted": list(result.run.reverts),
        "engine": {
            "device": asked.device,
            "dtype": asked.dtype,
            "attention_backend": asked.attention_backend,
            "overridden": sorted(result.run.scenario.overrides),
        },
        "expected": None if expectation is None else expectation.to_dict(),
        "met": result.met,
        "explanation": None if (why := explain(result)) is None else why.to_dict(),
        **({} if result.against is None else {"baseline": result.against.to_dict()}),
        **result.outcome.to_dict(),
    }


def results_table(title: str, results: Sequence[ArmResult]) -> Table:
    """One row an arm."""
    rows = [
        (
            result.run.arm,
            Styled(result.outcome.verdict, result.outcome.verdict),
            result.outcome.signature or "",
            _met(result),
            step_text(result.outcome.where_step),
            accept_text(result.outcome.metrics),
            str(result.outcome.metrics.cached_tokens),
            number(result.outcome.metrics.tokens_per_s, 0),
            f"{result.outcome.metrics.wall_s:.1f} s",
        )
        for result in results
    ]
    return Table(RESULTS, rows, title, bar=True)


def step_text(step: int | None) -> str:
    """The number; nothing without one."""
    return "" if step is None else str(step)


def accept_text(metrics: Metrics) -> str:
    """Mean accept length; where cache hits were served again cold, both: ``2.31 (hit 2.10, cold 2.31)``."""
    text = number(metrics.accept_mean, 2)
    if metrics.accept_cold is not None:
        text += f" (hit {number(metrics.accept_hit, 2)}, cold {metrics.accept_cold:.2f})"
    return text


def wants_evidence(result: ArmResult) -> bool:
    """Return True if an arm's story is more than its row: it failed, came to no verdict, or has something to note."""
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
    if outcome.violations:
        parts.append(_findings(outcome))
    parts += _remarks(result)
    if outcome.ties:
        parts.append(Line(ties_text(outcome), "dim"))
    if (why := explain(result)) is not None:
        parts += [*lines(why.findings, "unknown"), *lines(why.advice, "unknown", fold=False)]
    if outcome.log_tail and any(map(_is_death, outcome.violations)):
        last = outcome.log_tail.strip().splitlines()[-MAX_LOG_LINES:]
        parts += [Line("the worker's last words:", "dim"), *lines((f"  {each}" for each in last), "dim")]
    return Section(result.run.arm, parts, note=f"fixes reverted: {reverted}" if reverted else "")


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
    return f"{replay.scenario.name}: {answer} ({replay.wall_s:.1f} s)" + (", interrupted" if replay.interrupted else "")


def replays_line(answer: Replays) -> str:
    """The meaning of the exit code, in words."""
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
    verdict, said = result.outcome.verdict, f"{result.run.arm}: {result.outcome.verdict}"
    if result.met is True and verdict != "pass":
        return Styled(f"{said}, as expected", "pass")
    if result.met is False and verdict == "pass":
        return Styled(f"{said}, not as expected", "fail")
    return Styled(said, verdict)


def scenario_facts(replay: Replay) -> dict[str, str]:
    """The facts in the head of a page about a replay."""
    seeds = {result.run.seed for result in replay.results} or {replay.scenario.seed}
    return {
        "scenario": str(replay.scenario.path),
        "seed": ", ".join(map(str, sorted(seeds))),
        "duration": f"{replay.wall_s:.1f} s",
        "exit code": str(replay.exit_code),
        "not run": "; ".join(f"{arm.arm}: {arm.text}" for arm in replay.left_out),
    }


def arm_sections(replay: Replay, recording: Recording) -> list[Section]:
    """All of each arm, for a page."""
    arms = len(replay.results)
    return [arm_section(result, recording.of(result.run.key), arms) for result in replay.results]


def arm_section(result: ArmResult, steps: Sequence[EngineStep], arms: int) -> Section:
    """All of one of so many arms, for a page. ``steps``: as recorded; without any there are no plots."""
    outcome = result.outcome
    parts: list[Part] = [*lines(filter(None, (outcome.signature, outcome.detail)), "bold"), FactList(_facts(result))]
    if outcome.located is not None:
        parts.append(Line(f"{outcome.located.text}; seen as {outcome.located.seen}"))
    if outcome.violations:
        parts.append(_findings(outcome))
    if outcome.injections:
        parts.append(_injections(outcome))
    parts += lines(each.text for each in _remarks(result))
    if (why := explain(result)) is not None:
        parts += lines(why.lines)
    parts += _plots(steps, outcome, arms)
    if outcome.requests:
        shown = len(outcome.requests) <= OPEN_REQUESTS
        parts.append(Section(f"Requests ({len(outcome.requests)})", [_requests(outcome)], folded=not shown))
    parts += _folded(outcome)
    return Section(result.run.arm, parts, chips=[_verdict_chip(result), *_expected(result)])


def _page(replay: Replay, recording: Recording) -> list[Part]:
    described = [Line(replay.scenario.description)] if replay.scenario.description else []
    return [*described, *arm_sections(replay, recording)]


def _trace(replay: Replay, recording: Recording) -> dict[str, Any]:
    from specdebug.report.perfetto import trace_of

    return trace_of(replay, recording)


def _met(result: ArmResult) -> Styled | str:
    expectation = result.run.expectation
    if expectation is None:
        return ""
    if result.met:
        return Styled("yes", "pass")
    wanted = f" with {' or '.join(expectation.signatures)}" if expectation.signatures else ""
    return Styled(f"no: {expectation.verdict}{wanted}", "fail")


def _remarks(result: ArmResult) -> Iterator[Line]:
    """The reasons, notes, and what a baseline says of an arm."""
    outcome, against = result.outcome, result.against
    yield from lines(outcome.reasons, "unknown")
    yield from lines((f"unknown: {each}" for each in outcome.cannot_show), "unknown")
    yield from lines(outcome.notes, "dim")
    if against is not None:
        yield from lines(against.lines, "unknown" if against.why or against.slower else "dim")


def _findings(outcome: Outcome) -> FindingList:
    return FindingList([ToldFinding(v.signature, v.step, v.count, v.detail) for v in outcome.violations], MAX_FINDINGS)


def _is_death(violation: Violation) -> bool:
    deadly = violation.kind in ("hang", "oom") or violation.kind.startswith("crash:") or violation.site == "worker"
    return deadly or bool(violation.data.get("lost"))


def _wrong_row(replay: Replay) -> tuple[Any, ...]:
    right = sum(map(as_it_should, replay.results))
    wrong = [
        Styled(f"{each.run.arm}: {ended(each.outcome.verdict, each.outcome.signature)}", each.outcome.verdict)
        for each in replay.results
        if not as_it_should(each)
    ]
    wrong += [Styled(f"{arm.arm}: {arm.text}", "unknown") for arm in replay.left_out]
    told = f"{right} of {len(replay.results)}" if replay.results else ""
    return replay.scenario.name, told, f"{replay.wall_s:.1f} s", wrong


def _case(result: ArmResult) -> CaseResult:
    outcome = result.outcome
    found = [f"{v.signature} (step {v.step}, {v.count} in all): {v.detail}" for v in outcome.violations]
    if outcome.located is not None:
        found.insert(0, outcome.located.text)
    if (why := explain(result)) is not None:
        found += why.lines
    unknown = outcome.verdict == "unknown"
    return CaseResult(
        name=result.run.arm,
        verdict="pass" if as_it_should(result) else "unknown" if unknown else "fail",
        message=outcome.detail if unknown else outcome.signature or "pass, where a failure was expected",
        detail="" if unknown else "\n".join(found or [outcome.detail]),
        seconds=outcome.metrics.wall_s,
        out="\n".join(_told(result)),
        log=outcome.log_tail,
    )


def _told(result: ArmResult) -> Iterator[str]:
    outcome, metrics = result.outcome, result.outcome.metrics
    yield f"verdict {outcome.verdict}"
    yield f"trace {outcome.trace_hash}"
    yield f"steps {metrics.steps}"
    yield f"generated tokens {metrics.generated_tokens}"
    yield f"cached tokens {metrics.cached_tokens}"
    if metrics.accept_mean is not None:
        yield f"mean accept length {metrics.accept_mean:.3f}"
    if outcome.ties:
        yield ties_text(outcome)
    yield from not_engine_lines([result])
    yield from (each.text for each in _remarks(result))


def _skipped(arm: str, why: str) -> CaseResult:
    return CaseResult(arm, "unknown", why, "", 0.0)


def _notice(replay: Replay, result: ArmResult) -> Notice:
    outcome, expectation = result.outcome, result.run.expectation
    what = outcome.signature or outcome.verdict
    message = "" if outcome.where_step is None else f"step {outcome.where_step}: "
    message += outcome.detail or "nothing was found"
    if expectation is not None:
        message += f"; expected was {ended(expectation.verdict, ' or '.join(expectation.signatures))}"
    where = replay.scenario.where_key("arms", result.run.arm)
    title = f"specdebug: {replay.scenario.name}, arm {result.run.arm}: {what}"
    return Notice("unknown" if outcome.verdict == "unknown" else "fail", title, message, where)


def _verdict_chip(result: ArmResult) -> Styled:
    """The verdict, without a colour where the expectation stands beside it in another."""
    verdict = result.outcome.verdict
    return Styled(verdict, "" if result.met is not None and result.met != (verdict == "pass") else verdict)


def _expected(result: ArmResult) -> list[Styled]:
    expectation = result.run.expectation
    if expectation is None:
        return []
    if result.met:
        return [Styled("as expected", "pass")]
    return [Styled(f"expected {ended(expectation.verdict, ' or '.join(expectation.signatures))}", "fail")]


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
    return facts


def _injections(outcome: Outcome) -> Table:
    heads = (*columns("#", right=True), *columns("fault", "step", "request", "site", "where", "before", "after"))
    rows = [
        (
            f"i{place}",
            each.fault,
            str(each.step),
            dash(each.request),
            dash(each.site),
            f"{each.tensor}{list(each.index) if each.index else ''}"
            + (f" and {each.count - 1} more" if each.count > 1 else ""),
            str(each.before),
            f"{each.after}{'' if each.changed else ' (nothing changed)'}",
        )
        for place, each in enumerate(outcome.injections, 1)
    ]
    return Table(heads, rows, "Injected faults")


def _plots(steps: Sequence[EngineStep], outcome: Outcome, arms: int) -> Iterator[Part]:
    if not steps:
        return
    from specdebug.report.html.accept import accept_plot
    from specdebug.report.html.series import spans
    from specdebug.report.html.timeline import kinds_of, timeline_plot

    if (accept := accept_plot(steps, outcome, arms)) is not None:
        said = "Accept length over steps: thin lines are requests, the thick one is the mean of each step."
        said += " Dashed lines are findings, numbered as in the table." if outcome.violations else ""
        said += " Solid lines are injected faults." if outcome.injections else ""
        yield Plot(accept, said)
    if (timeline := timeline_plot(steps, outcome, arms)) is not None:
        ends = (("request finished", "finished"), ("request retracted", "retracted"))
        yield Plot(timeline, "Timeline of the engine's steps.", [*((kind, kind) for kind in kinds_of(steps)), *ends])
    numbers = ("batch", "accept length", "tokens", "longest step", "finished", "retracted")
    rows = [
        (
            span.name,
            span.kind,
            str(span.batch),
            number(span.accept, 2),
            str(span.emitted),
            f"{1000 * span.seconds:.1f} ms",
            str(len(span.finished) or ""),
            str(len(span.retracted) or ""),
        )
        for span in spans(steps, MAX_SPANS)
    ]
    yield Section("The plots as a table", [Table([*columns("steps", "phase"), *columns(*numbers, right=True)], rows)],
                  folded=True)  # fmt: skip


def _requests(outcome: Outcome) -> Table:
    numbers = ("prompt", "cached", "output", "accept length", "cold", "near-ties")
    rows = [_request_row(request) for request in outcome.requests]
    heads = (*columns("request", "group"), *columns(*numbers, right=True), Column("ended"))
    return Table(heads, rows, lights=True)


def _request_row(request: RequestResult) -> tuple[str, ...]:
    return (
        request.rid,
        request.group,
        str(request.prompt_tokens),
        str(request.cached_tokens),
        str(len(request.output_ids)),
        number(request.accept_mean, 2),
        number(request.cold_accept_mean, 2),
        str(len(request.ties) or ""),
        request.finish_reason or "not finished",
    )


def _folded(outcome: Outcome) -> Iterator[Section]:
    """What a page shows when it is asked for it: near-ties, counts of lines and probes, the log."""
    if outcome.ties:
        widest = sorted(outcome.ties, key=lambda named: named[1].used, reverse=True)
        rows = [
            (rid, str(tie.position), str(tie.token), str(tie.preferred), f"{tie.margin:.2g}", f"{tie.allowed:.2g}")
            for rid, tie in widest
        ]
        heads = columns("output", "token", "reference's", "margin in logits", "allowed", right=True)
        title = f"Near-ties that went the other way than the reference ({len(rows)})"
        yield Section(title, [Table([Column("request"), *heads], rows)], folded=True)
    if hits := [(pr, edit, str(n)) for pr, edits in outcome.reverted_hits.items() for edit, n in edits.items()]:
        heads = [*columns("fix", "edit"), *columns("times", right=True)]
        yield Section("How often the reverted lines ran", [Table(heads, hits)], folded=True)
    if sites := outcome.reached_sites:
        counts = [(site, str(count or "never")) for site, count in sorted(sites.items())]
        title = f"Probes reached ({sum(map(bool, sites.values()))} of {len(sites)} sites)"
        yield Section(title, [Table([Column("site"), *columns("times", right=True)], counts)], folded=True)
    if outcome.log_tail:
        yield Section(
            "End of the worker's log", [Preformatted(outcome.log_tail, "log")], folded=outcome.verdict == "pass"
        )
