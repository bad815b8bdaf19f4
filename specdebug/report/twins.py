"""Reports of twins: a row for each relation, and of each that is broken where the two sides part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specdebug import __version__
from specdebug.apps.twins.run import ScenarioTwins, TwinResult, processor_seconds
from specdebug.apps.twins.words import SIDES, break_text, texts_around
from specdebug.report.diverge import difference_document
from specdebug.report.parts import (
    CaseResult,
    Column,
    Line,
    Notice,
    Part,
    Report,
    Styled,
    Verdict,
    lines,
    table,
    verdict_of,
)
from specdebug.report.words import counted, not_engine_code, some
from specdebug.verdict.outcome import Outcome
from specdebug.verdict.outcome import not_engine_code as parts_of

SHOWN = 4
"""Breaks of a relation that are told."""
_VERDICTS: dict[str, Verdict] = {"holds": "pass", "broken": "fail", "not compared": "unknown"}


def twins_report(answers: Sequence[ScenarioTwins]) -> Report:
    """The twins of one scenario, or of several with one summary."""
    inner = [_one(each) for each in answers]
    if len(inner) == 1:
        return inner[0]
    codes = [each.exit_code for each in answers]
    code = next((each for each in codes if each > 125), 1 if 1 in codes else 125 if 125 in codes else 0)
    results = [one for each in answers for one in each.results]
    summary = f"{counted(len(answers), 'scenario')}: {_counts(results)}"
    parts: list[Part] = [part for each in inner for part in each.parts]
    document = {"specdebug": __version__, "exit_code": code, "scenarios": [each.document for each in inner]}
    return Report(
        command="twins",
        title=counted(len(answers), "scenario"),
        summary=summary,
        exit_code=code,
        document=document,
        parts=[*parts, Line(summary)],
        cases=[case for each in inner for case in each.cases],
        notices=[notice for each in inner for notice in each.notices],
        inner=inner,
    )


def _one(answer: ScenarioTwins) -> Report:
    rows = [_Row(each) for each in answer.results]
    summary = f"{answer.scenario.name}: {'interrupted; ' if answer.interrupted else ''}{_counts(answer.results)}"
    heads = (
        Column("arm", "key", lambda row: row.arm),
        Column("relation", "", lambda row: row.result.pair.relation.name),
        Column("verdict", "", lambda row: Styled(row.verdict, _VERDICTS[row.result.verdict])),
        Column("requests", "right", lambda row: row.result.judged.compared.requests or None),
        Column("tokens", "right", lambda row: row.result.judged.compared.tokens or None),
        Column("logprobs", "right", lambda row: row.result.judged.compared.logprobs or None),
        Column("near-ties", "right", lambda row: len(row.result.judged.excused) or None),
        Column("what", "prose", lambda row: row.what),
    )
    told = [line for row in rows for line in row.lines()]
    left_out = [f"{each.arm}: {each.text}" for each in answer.left_out]
    parts: tuple[Part, ...] = (
        table(rows, *heads, title=answer.scenario.name),
        *lines(told),
        *lines([*_not_compared(answer.results), *left_out], "dim"),
        *lines(not_engine_code(_replaced(answer.results), short=True), "dim"),
        Line(summary),
    )
    where = answer.scenario.where_key("name")
    notices = [
        Notice("fail", f"specdebug: {answer.scenario.name}, {row.name}", row.what, where)
        for row in rows
        if row.result.met is False
    ]
    return Report(
        command="twins",
        title=f"{answer.scenario.name}: twins",
        summary=summary,
        exit_code=answer.exit_code,
        document=_document(answer, rows),
        parts=parts,
        cases=[row.case() for row in rows],
        notices=notices,
    )


def _counts(results: Sequence[TwinResult]) -> str:
    counts = {name: sum(each.verdict == name for each in results) for name in _VERDICTS}
    words = {"holds": "hold", "broken": "broken", "not compared": "not compared"}
    told = ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count) or "nothing was compared"
    odd = [_Row(each) for each in results if each.met is False and each.pair.broken is not None]
    expected = [each for each in odd if each.result.pair.broken]
    wrong = f"; not as expected: {some([each.name for each in expected], 6)}" if expected else ""
    return f"{told}{wrong}"


def _replaced(results: Sequence[TwinResult]) -> Iterator[tuple[str, Sequence[str]]]:
    arms: dict[str, list[Outcome]] = {}
    for each in results:
        arms.setdefault(each.pair.base.arm, []).extend(each.judged.outcomes)
    return ((arm, parts_of(outcomes)) for arm, outcomes in arms.items())


def _not_compared(results: Sequence[TwinResult]) -> Iterator[str]:
    """Requests that were left out, each reason once."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in results:
        for rid, why in each.judged.compared.left_out.items():
            found.setdefault((_Row(each).name, why), []).append(rid)
    for (name, why), rids in found.items():
        yield f"{name}: {some(rids, 6)} not compared: {why}"


@dataclass(frozen=True)
class _Row:
    """A pair, in words."""

    result: TwinResult

    @property
    def arm(self) -> str:
        return self.result.pair.base.shown

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.result.pair.relation.name}"

    @property
    def verdict(self) -> str:
        awaited = self.result.pair.broken
        if self.result.verdict == "not compared" or not awaited:
            return self.result.verdict
        return f"{self.result.verdict}, {'as expected' if self.result.met else 'and was to be broken'}"

    @property
    def what(self) -> str:
        result = self.result
        if result.judged.why:
            return result.judged.why
        if result.verdict == "broken":
            return f"{result.signature}: {break_text(result.judged, result.judged.breaks[0])}"
        return result.pair.twin.how or result.pair.relation.changes

    def lines(self) -> Iterator[str]:
        """What is told of a broken one beneath the table."""
        result = self.result
        if result.verdict != "broken":
            return
        breaks, changes = result.judged.breaks, result.pair.twin.how or result.pair.relation.changes
        yield f"{result.signature} of {self.arm} ({changes}):"
        for each in breaks[:SHOWN]:
            yield f"  {break_text(result.judged, each)}"
            around = texts_around(result.judged, each) if each.what == "tokens" else ("", "")
            yield from (f"    {side}: {text!r}" for side, text in zip(SIDES, around, strict=True) if text)
        if len(breaks) > SHOWN:
            yield f"  and {len(breaks) - SHOWN} more (see --json)"
        if result.place is not None and result.place.reason:
            yield f"  the two runs' tensors are not compared: {result.place.reason}"
        elif result.place is not None:
            yield from (f"  {line}" for line in result.place.words)

    def case(self) -> CaseResult:
        """As a test."""
        met = self.result.met
        verdict = verdict_of(125 if met is None else 0 if met else 1)
        detail = "\n".join([self.what, *self.lines()])
        seconds = sum(outcome.metrics.wall_s for outcome in self.result.judged.outcomes)
        return CaseResult(self.name, verdict, self.what, detail, seconds)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        result, judged, pair = self.result, self.result.judged, self.result.pair
        place = result.place
        breaks = [
            {**each.to_dict(), "around": list(texts_around(judged, each)), "text": break_text(result.judged, each)}
            for each in judged.compared.breaks
        ]
        return {
            "arm": pair.base.arm,
            "reverted": list(pair.base.reverts),
            "relation": pair.relation.name,
            "changes": pair.relation.changes,
            "how": pair.twin.how,
            "verdict": result.verdict,
            "signature": result.signature,
            "why": judged.why,
            "met": result.met,
            "broken_expected": pair.broken,
            "requests": judged.compared.requests,
            "tokens": judged.compared.tokens,
            "log_probabilities": judged.compared.logprobs,
            "breaks": [each for each in breaks if not each["excused"]],
            "near_ties": [each for each in breaks if each["excused"]],
            "left_out": dict(judged.compared.left_out),
            "reference": judged.reference,
            "place": None
            if place is None
            else {
                "comparable": not place.reason,
                "reason": place.reason,
                "first": place.first and difference_document(place.first),
                "values": None if place.values is None else place.values.to_dict(),
                "text": place.words,
            },
        }


def _document(answer: ScenarioTwins, rows: Sequence[_Row]) -> dict[str, Any]:
    return {
        "specdebug": __version__,
        "scenario": answer.scenario.name,
        "path": str(answer.scenario.path),
        "exit_code": answer.exit_code,
        "interrupted": answer.interrupted,
        "twins": [row.document() for row in rows],
        "processor_s": dict(processor_seconds(answer.results)),
        "not_run": [each.to_dict() for each in answer.left_out],
        "not_engine_code": parts_of(outcome for each in answer.results for outcome in each.judged.outcomes),
    }
