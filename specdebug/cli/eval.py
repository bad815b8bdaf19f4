"""``specdebug eval``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.cli.options import (
    Confidence,
    ContentOptions,
    EngineOptions,
    Help,
    JsonOptions,
    Reverts,
    grouped,
    numbers_of,
    positive,
)
from specdebug.cli.output import tell
from specdebug.cli.running import confidence_of, progress, workers

if TYPE_CHECKING:
    from specdebug.apps.evaluation.declared import Evaluation, Expected
    from specdebug.apps.evaluation.gate import Threshold


class AskFor(StrEnum):
    """The form of an answer: a letter of the choices shown, or how the text goes on."""

    LETTER = "letter"
    CONTINUATION = "continuation"


class ReadBy(StrEnum):
    """The way to tell a choice: from the text, or from the odds of its first token."""

    GENERATION = "generation"
    LOGPROB = "logprob"


@dataclass(frozen=True)
class AskingOptions:
    """The questions, and how they are put."""

    questions: Annotated[
        Path | None, typer.Option("--questions", metavar="PATH", help="A .jsonl or .csv file, or MMLU's folder.")
    ] = None
    num_questions: Annotated[int | None, typer.Option("--num-questions", min=1, help="So many, drawn by --seed.")] = (
        None
    )
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of the draw.")] = None
    ask: Annotated[AskFor | None, typer.Option("--ask", help="Show the choices, or have the text continued.")] = None
    by: Annotated[ReadBy | None, typer.Option("--by", help="Read the text, or the odds of its first token.")] = None
    shots: Annotated[int | None, typer.Option("--shots", min=0, max=64, help="Worked examples before each.")] = None
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", min=1, help="The longest answer.")] = None
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, max=4096, help="Questions under way at a time.")
    ] = None

    def changes(self) -> dict[str, Any]:
        """Return what is set, by the keys of an evaluation's ``questions``."""
        named = {"count": self.num_questions, "ask": self.ask and self.ask.value, "by": self.by and self.by.value}
        same = {name: getattr(self, name) for name in ("seed", "shots", "max_new_tokens", "concurrency")}
        return {name: value for name, value in (named | same).items() if value is not None}


@dataclass(frozen=True)
class GateOptions:
    """The least that is expected."""

    min_score: Annotated[
        str | None, typer.Option("--min-score", metavar="P", help="At least this part right; '>P': more.")
    ] = None
    min_accept_length: Annotated[
        str | None,
        typer.Option("--min-accept-length", metavar="N", help="At least so many tokens a verify; '>N': more."),
    ] = None
    confidence: Annotated[Confidence, Help("Of the intervals.")] = "0.95"

    def over(self, expected: Expected) -> Expected:
        """Return what is expected. Raises SpecDebugError for what is no threshold."""
        from specdebug.apps.evaluation.gate import ACCEPT_LENGTH, SCORE

        score = _threshold("--min-score", self.min_score, SCORE)
        accept_length = _threshold("--min-accept-length", self.min_accept_length, ACCEPT_LENGTH)
        return replace(expected, score=score or expected.score, accept_length=accept_length or expected.accept_length)


@dataclass(frozen=True)
class EvalResults(JsonOptions):
    """The document, and a file of all answers."""

    answers: Annotated[
        Path | None, typer.Option("--answers", metavar="FILE", help="A line of JSON for each answer, too.")
    ] = None


def _threshold(option: str, text: str | None, bounds: tuple[float, float]) -> Threshold | None:
    from specdebug.apps.evaluation.gate import ThresholdError, parse_threshold

    try:
        return None if text is None else parse_threshold(text, *bounds)
    except ThresholdError as error:
        raise SpecDebugError(f"{option} {error}") from None


@grouped
@interrupts.held()
def evaluate(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="An evaluation's file, or the name of a shipped one: code.")
    ] = None,
    *,
    asking: AskingOptions,
    gate: GateOptions,
    revert: Annotated[Reverts, Help("Revert these fixes.")] = None,
    engine: EngineOptions,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="For all questions together.")
    ] = None,
    results: EvalResults,
    shared: ContentOptions,
) -> int:
    """Ask multiple-choice questions, and hold the score and the accept length against what is expected of both.

    Without a FILE, the shipped questions; with --questions, those, and only what the options expect. Exit code 0 when
    every threshold was reached, 1 when one was missed or the target failed, 125 when one could not be decided.
    """
    results.check()
    with workers(1) as pool:
        from specdebug.apps.evaluation.run import evaluate

        evaluation = _evaluation(file, asking, gate, engine)
        evaluation = replace(evaluation, timeout_s=positive(timeout) or evaluation.timeout_s)
        toggles = shared.library().toggles(numbers_of(revert))
        with progress() as watcher:
            result = evaluate(pool, evaluation, toggles, confidence_of(gate.confidence), watcher)
    from specdebug.report.evaluation import answers_jsonl, evaluation_report

    return tell(evaluation_report(result), results, (results.answers, lambda: answers_jsonl(result)))


def _evaluation(file: str | None, asking: AskingOptions, gate: GateOptions, engine: EngineOptions) -> Evaluation:
    """Return the evaluation that is asked for, with the options laid over its file. Raises SpecDebugError."""
    from specdebug.apps.evaluation.declared import DEFAULT_NAME, Asking, Expected, read_evaluation

    chosen = engine.choices()
    evaluation = read_evaluation(file or DEFAULT_NAME)
    if asking.questions is not None:
        path = str(asking.questions.absolute())
        if file is None:
            # Of the shipped one only the engine has to do with questions that are the user's.
            own = Asking(path)
            evaluation = replace(evaluation, name="questions", questions=own, expect=Expected())
        else:
            evaluation = replace(evaluation, questions=replace(evaluation.questions, file=path))
    if chosen.target is not None:
        evaluation = replace(evaluation, target=chosen.target)
    return replace(
        evaluation,
        questions=replace(evaluation.questions, **asking.changes()),
        expect=gate.over(evaluation.expect),
        overrides=dict(chosen.engine),
    )
