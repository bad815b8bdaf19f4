"""The answer to a red log, for a terminal, as a page of all stages, and as one JSON document."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from specdebug import __version__
from specdebug.apps.solve import Answer, Solution, StageRun
from specdebug.report.parts import (
    Column,
    FactList,
    Line,
    Part,
    Preformatted,
    Report,
    Section,
    Styled,
    Table,
    lines,
    plain,
    table,
)

_ANSWERS: dict[Answer, str] = {
    "as it stands": "fails here with nothing reverted, so that no fix of the registry is missing",
    "none": "no fix that is known makes it fail so",
    "undecided": "undecided: the search is not over",
    "no failure": "no failure found",
}
_STAGES = (
    Column("stage", "key", lambda one: one.name),
    Column("what it came to", "prose", lambda one: one.summary),
    Column("exit code", "right", lambda one: one.code),
    Column("time", "right", lambda one: f"{one.seconds:.0f} s"),
    Column("", "", lambda one: "cut short" if one.cut else "kept" if one.kept else ""),
)


def solve_report(answer: Solution, exit_code: int) -> Report:
    """The answer, the place, the stages, what stays open and what to run for it."""
    said = f"{answer.log}: {_answer(answer)}"
    return Report(
        command="solve",
        title=answer.log,
        summary=said,
        exit_code=exit_code,
        document=_document(answer, exit_code),
        parts=[*lines((said, *_told(answer)), fold=False), *_stages(answer), *lines(_open(answer), fold=False)],
        chips=[Styled(answer.answer, "pass" if exit_code == 0 else "unknown")],
        facts={"signature": answer.signature} if answer.signature else {},
        page=partial(_page, answer),
        seconds=sum(each.seconds for each in answer.stages),
    )


def _answer(answer: Solution) -> str:
    if (fix := answer.culprit) is None:
        return _ANSWERS[answer.answer]
    sure = f"with probability {answer.probability:.3g}" if answer.probability else ""
    doubt = f"not for sure: {answer.doubt}" if answer.doubt else ""
    return ", ".join(filter(None, (f'{answer.answer} {fix.pr} "{fix.title}"', sure, doubt)))


def _told(answer: Solution) -> Iterator[str]:
    if answer.signature:
        yield f"the log: {answer.signature}"
    if answer.culprit is not None and answer.attempt is not None:
        yield f"here: {answer.failure} without it, in {answer.attempt}"
    if place := _place(answer.place):
        yield f"place: {place}"
    if functions := answer.place.get("functions"):
        yield f"the fix changes {', '.join(functions)}"
    others = [str(each) for each in answer.suspects if answer.culprit is None or each != answer.culprit.pr]
    if others:
        yield f"the log also points to: {', '.join(others)}"
    yield from (f"{name}: {path}" for name, path in answer.files.items())
    if answer.next_step:
        yield f"next: {answer.next_step}"


def _place(place: dict[str, Any]) -> str:
    where = [str(place[name]) for name in ("site", "what") if place.get(name)][:1]
    step = [f"step {place['step']}"] if place.get("step") is not None else []
    request = [f"request {place['request']}"] if place.get("request") else []
    return ", ".join([*where, *step, *request, *([place["text"]] if place.get("text") else [])])


def _stages(answer: Solution) -> list[Table]:
    return [table(answer.stages, *_STAGES, title="stages", bar=True)] if answer.stages else []


def _open(answer: Solution) -> Iterator[str]:
    if answer.questions:
        yield "not found out:"
    for each in answer.questions:
        yield f"  {each.what}"
        needs = f"needs {each.where}: " if each.where else ""
        if each.run:
            yield f"    {needs}{each.run}"


def _page(answer: Solution) -> list[Part]:
    parts: list[Part] = [Section("Answer", list(lines(_told(answer))))]
    if answer.questions:
        parts.append(Section("Not found out", list(lines(list(_open(answer))[1:]))))
    if answer.stages:
        parts.append(Section("Stages", _stages(answer)))
    return [*parts, *map(_of_stage, answer.stages)]


def _of_stage(stage: StageRun) -> Section:
    about = FactList({"command": stage.line, "exit code": "none" if stage.code is None else str(stage.code)})
    text = Preformatted(stage.text or stage.summary, f"what {stage.name} told")
    return Section(stage.name, [about, Line(stage.summary, "bold"), text], note=stage.summary, folded=True)


def _document(answer: Solution, exit_code: int) -> dict[str, Any]:
    fix, attempt = answer.culprit, answer.attempt
    return {
        "specdebug": __version__,
        "log": answer.log,
        "exit_code": exit_code,
        "verdict": answer.answer,
        **plain(answer, "signature suspects place files next_step"),
        "culprit": fix
        and {
            **plain(fix, "pr title url"),
            "signature": answer.failure,
            "probability": answer.probability,
            "doubt": answer.doubt,
        },
        "attempt": attempt and plain(attempt, "why scenario arm target pattern command"),
        "stages": [plain(each, "name line code seconds summary cut kept document") for each in answer.stages],
        "open": [plain(each, "what run where") for each in answer.questions],
    }
