"""An evaluation's result for a person, as a document, and answer by answer."""

import json
import math
from collections import Counter
from typing import Any

from specdebug import __version__
from specdebug.apps.evaluation.declared import Estimate
from specdebug.apps.evaluation.questions import choice_odds
from specdebug.apps.evaluation.run import Evaluated
from specdebug.report.parts import Cell, Column, Line, Report, Styled, lines, plain, table, verdict_of
from specdebug.report.words import counted, ended, replaced

_HELD = {True: Styled("yes", "pass"), False: Styled("no", "fail"), None: Styled("unknown", "unknown")}


def evaluation_report(result: Evaluated) -> Report:
    """What was measured and expected, what is to be said of it, and the verdict."""
    about = f"{result.evaluation.name}: {counted(len(result.answers), 'question')} of {result.asked.path}"
    checks = {each.name: each for each in result.checks}
    rows = [
        (result.score, "{:.1%}".format, counted(result.score.number, "answer")),
        (result.accept_length, "{:.3f}".format, _verifies(result.accept_length)),
    ]

    def interval(row: Any) -> Cell:
        between, form = row[0].interval, row[1]
        return "" if between is None else f"{form(between.low)} to {form(between.high)}"

    heads = (
        Column("", "key", lambda row: row[0].name),
        Column("mean", "right", lambda row: "unknown" if row[0].value is None else row[1](row[0].value)),
        Column("interval", "right", interval),
        Column(
            "of", "right", lambda row: row[2] if row[0].value is None or row[0].number else "the server's own count"
        ),
        Column("expected", "prose", lambda row: str(checks[row[0].name].threshold) if row[0].name in checks else ""),
        Column("held", "prose", lambda row: _HELD[checks[row[0].name].held] if row[0].name in checks else ""),
    )
    said = ended(result.verdict, result.outcome.signature) + (" (interrupted)" if result.interrupted else "")
    return Report(
        command="eval",
        title=about,
        summary=said,
        exit_code=result.exit_code,
        document=_document(result),
        parts=(
            table(rows, *heads, title=about, bar=True),
            *lines(_facts(result), "dim"),
            *lines(_remarks(result)),
            Line(said, verdict_of(result.exit_code)),
        ),
        seconds=result.wall_s,
    )


def _verifies(measured: Estimate) -> str:
    return "1 verify" if measured.number == 1 else f"{measured.number} verifies"


def _facts(result: Evaluated) -> list[str]:
    asking, run = result.evaluation.questions, result.outcome
    without = f", without {', '.join(map(str, result.reverts))}" if result.reverts else ""
    how = f"asked for a {asking.ask} by {asking.by}, {asking.concurrency} at a time, on {result.evaluation.target}"
    cached = f"{run.metrics.cached_tokens} of the prompts' out of the cache"
    facts = [how + without, f"{run.metrics.generated_tokens} tokens, {cached}, {result.wall_s:.1f} s"]
    if result.server_accept_length is not None:
        facts.append(f"the server's own avg_spec_accept_length is {result.server_accept_length:.3f}")
    return [*facts, *replaced(run.not_engine_code)]


def _remarks(result: Evaluated) -> list[str]:
    untaken = sum(each.taken is None for each in result.answers)
    remarks = [f"{counted(untaken, 'answer')} took no choice, and counted as wrong"] if untaken else []
    remarks += [result.incomplete] if result.incomplete else []
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
    evaluation, outcome = result.evaluation, result.outcome
    subjects = Counter(each.question.subject for each in result.answers)
    right = Counter(each.question.subject for each in result.answers if each.right)

    def measured(one: Estimate) -> dict[str, Any]:
        between = None if one.interval is None else [one.interval.low, one.interval.high]
        return {"mean": one.value, "interval": between, "of": one.number, "why": one.why}

    return {
        "specdebug": __version__,
        "evaluation": evaluation.name,
        "path": str(evaluation.path),
        **plain(result, "exit_code verdict"),
        **plain(outcome, "signature detail not_engine_code"),
        "interrupted": result.interrupted,
        "wall_s": round(result.wall_s, 3),
        "target": str(evaluation.target),
        "reverted": list(result.reverts),
        "reverted_hits": {number: dict(edits) for number, edits in outcome.reverted_hits.items()},
        "questions": {
            **evaluation.questions.to_dict(),
            "file": result.asked.path,
            "asked": len(result.asked.questions),
        },
        "confidence": result.confidence,
        "score": measured(result.score),
        "accept_length": measured(result.accept_length),
        "server_accept_length": result.server_accept_length,
        "answers": len(result.answers),
        "right": sum(each.right for each in result.answers),
        "without_choice": sum(each.taken is None for each in result.answers),
        "subjects": {name: {"answers": count, "right": right[name]} for name, count in sorted(subjects.items())},
        "checks": [
            {"of": each.name, "expected": str(each.threshold), "held": each.held, "why": each.why, "near": each.inside}
            for each in result.checks
        ],
        **plain(outcome.metrics, "generated_tokens cached_tokens"),
    }


def answers_jsonl(result: Evaluated) -> str:
    """A line for each answer, by question."""
    ask, by = result.evaluation.questions.ask, result.evaluation.questions.by
    written = []
    for each in result.answers:
        choices = each.question.choices
        facts = {
            "number": each.number,
            **plain(each.question, "place subject"),
            "right": each.right,
            "answer": choices[each.question.answer],
            "taken": None if each.taken is None else choices[each.taken],
            **plain(each, "text prompt_tokens cached_tokens tokens"),
            "accept_lengths": list(each.verifies),
        }
        if by == "logprob":
            odds = choice_odds(each.question, ask, each.top)
            facts["log_probabilities"] = [None if value == -math.inf else round(value, 6) for value in odds]
        written.append(json.dumps(facts, ensure_ascii=False))
    return "".join(f"{each}\n" for each in written)
