"""An evaluation's result for a person, as a document, and answer by answer."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from specdebug import __version__
from specdebug.apps.evaluation.gate import Check, Estimate
from specdebug.apps.evaluation.run import Evaluated, MarkedAnswer
from specdebug.apps.evaluation.scoring import choice_odds
from specdebug.report.parts import Cell, Column, Line, Report, Styled, Table, columns, lines, verdict_of
from specdebug.report.words import counted, ended, replaced

RESULTS = (
    Column("", key=True),
    *columns("mean", "interval", "of", right=True),
    Column("expected", prose=True),
    Column("held", prose=True),
)
_HELD = {True: Styled("yes", "pass"), False: Styled("no", "fail"), None: Styled("unknown", "unknown")}


def evaluation_report(result: Evaluated) -> Report:
    """What was measured and expected, what is to be said of it, and the verdict."""
    about = f"{result.evaluation.name}: {counted(len(result.answers), 'question')} of {result.asked.path}"
    rows = [
        _row(result, result.score, "answer", percent=True),
        _row(result, result.accept_length, "verify", plural="verifies"),
    ]
    said = ended(result.verdict, result.outcome.signature) + (" (interrupted)" if result.interrupted else "")
    return Report(
        command="eval",
        title=about,
        summary=said,
        exit_code=result.exit_code,
        document=_document(result),
        parts=(
            Table(RESULTS, rows, about, bar=True),
            *lines(_facts(result), "dim"),
            *lines(_remarks(result)),
            Line(said, verdict_of(result.exit_code)),
        ),
        seconds=result.wall_s,
    )


def _row(
    result: Evaluated, measured: Estimate, noun: str, *, plural: str = "", percent: bool = False
) -> tuple[Cell, ...]:
    form = "{:.1%}" if percent else "{:.3f}"
    mean = "unknown" if measured.value is None else form.format(measured.value)
    between = measured.interval
    interval = "" if between is None else f"{form.format(between.low)} to {form.format(between.high)}"
    number = f"{measured.number} {plural}" if plural and measured.number != 1 else counted(measured.number, noun)
    if measured.value is not None and not measured.number:
        number = "the server's own count"
    check = _check_of(result, measured)
    if check is None:
        return (measured.name, mean, interval, number, "", "")
    return (measured.name, mean, interval, number, str(check.threshold), _HELD[check.held])


def _check_of(result: Evaluated, measured: Estimate) -> Check | None:
    return next((each for each in result.checks if each.name == measured.name), None)


def _facts(result: Evaluated) -> list[str]:
    asking, run = result.evaluation.questions, result.outcome
    facts = [f"asked for a {asking.ask} by {asking.by}, {asking.concurrency} at a time, on {result.evaluation.target}"]
    if result.reverts:
        facts[0] += f", without {', '.join(map(str, result.reverts))}"
    facts.append(
        f"{run.metrics.generated_tokens} tokens, {run.metrics.cached_tokens} of the prompts' out of the cache, "
        f"{result.wall_s:.1f} s"
    )
    if result.server_accept_length is not None:
        facts.append(f"the server's own avg_spec_accept_length is {result.server_accept_length:.3f}")
    return [*facts, *replaced(run.not_engine_code)]


def _remarks(result: Evaluated) -> list[str]:
    untaken = sum(each.taken is None for each in result.answers)
    remarks = [f"{counted(untaken, 'answer')} took no choice, and counted as wrong"] if untaken else []
    if result.incomplete:
        remarks.append(result.incomplete)
    for check in result.checks:
        if check.held is None and check.why != result.incomplete:
            remarks.append(f"{check.name} {check.threshold} is not decided: {check.why}")
        elif check.inside:
            remarks.append(
                f"{check.name} {check.threshold} lies inside the {result.confidence:.0%} interval: other questions "
                "might fall on its other side; ask more of them to know"
            )
    if result.outcome.verdict != "pass":
        remarks.append(result.outcome.detail)
    return [each for each in remarks if each]


def _document(result: Evaluated) -> dict[str, Any]:
    """The result as plain data."""
    evaluation, outcome = result.evaluation, result.outcome
    asking = evaluation.questions
    subjects = Counter(each.question.subject for each in result.answers)
    right = Counter(each.question.subject for each in result.answers if each.right)
    return {
        "specdebug": __version__,
        "evaluation": evaluation.name,
        "path": str(evaluation.path),
        "exit_code": result.exit_code,
        "verdict": result.verdict,
        "signature": outcome.signature,
        "detail": outcome.detail,
        "not_engine_code": list(outcome.not_engine_code),
        "interrupted": result.interrupted,
        "wall_s": round(result.wall_s, 3),
        "target": str(evaluation.target),
        "reverted": list(result.reverts),
        "reverted_hits": {number: dict(edits) for number, edits in outcome.reverted_hits.items()},
        "questions": {**asking.to_dict(), "file": result.asked.path, "asked": len(result.asked.questions)},
        "confidence": result.confidence,
        "score": _measured(result.score),
        "accept_length": _measured(result.accept_length),
        "server_accept_length": result.server_accept_length,
        "answers": len(result.answers),
        "right": sum(each.right for each in result.answers),
        "without_choice": sum(each.taken is None for each in result.answers),
        "subjects": {name: {"answers": count, "right": right[name]} for name, count in sorted(subjects.items())},
        "checks": [
            {"of": each.name, "expected": str(each.threshold), "held": each.held, "why": each.why, "near": each.inside}
            for each in result.checks
        ],
        "generated_tokens": outcome.metrics.generated_tokens,
        "cached_tokens": outcome.metrics.cached_tokens,
    }


def _measured(measured: Estimate) -> dict[str, Any]:
    between = measured.interval
    return {
        "mean": measured.value,
        "interval": None if between is None else [between.low, between.high],
        "of": measured.number,
        "why": measured.why,
    }


def answers_jsonl(result: Evaluated) -> str:
    """A line for each answer, by question."""
    ask, by = result.evaluation.questions.ask, result.evaluation.questions.by
    lines = []
    for each in result.answers:
        facts = _answer(each)
        if by == "logprob":
            odds = choice_odds(each.question, ask, each.top)
            facts["log_probabilities"] = [None if value == -math.inf else round(value, 6) for value in odds]
        lines.append(json.dumps(facts, ensure_ascii=False))
    return "".join(f"{each}\n" for each in lines)


def _answer(each: MarkedAnswer) -> dict[str, Any]:
    choices = each.question.choices
    return {
        "number": each.number,
        "place": each.question.place,
        "subject": each.question.subject,
        "right": each.right,
        "answer": choices[each.question.answer],
        "taken": None if each.taken is None else choices[each.taken],
        "text": each.text,
        "prompt_tokens": each.prompt_tokens,
        "cached_tokens": each.cached_tokens,
        "tokens": each.tokens,
        "accept_lengths": list(each.verifies),
    }
