"""``specdebug eval``."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.base.errors import SpecDebugError
from specdebug.cli import options as opt
from specdebug.cli.output import progress, tell, workers

if TYPE_CHECKING:
    from specdebug.apps.evaluation.declared import Evaluation, Threshold


class AskFor(StrEnum):
    """The form of an answer: a letter of the choices shown, or how the text goes on."""

    LETTER = "letter"
    CONTINUATION = "continuation"


class ReadBy(StrEnum):
    """The way to tell a choice: from the text, or from the odds of its first token."""

    GENERATION = "generation"
    LOGPROB = "logprob"


class EvalCommand(opt.EngineOptions, opt.JsonOptions, opt.ContentOptions):
    """Ask multiple-choice questions, and hold the score and the accept length against what is expected of both.

    Without a FILE, the shipped questions; with --questions, those, and only what the options expect. Exit code 0 when
    every threshold was reached, 1 when one was missed or the target failed, 125 when one could not be decided.
    """

    example = "eval --target http://127.0.0.1:30000"
    held = True
    file: str | None = opt.argument("An evaluation's file, or the name of a shipped one: code.", metavar="FILE")
    questions: Path | None = opt.option("Ask those of a .jsonl or .csv file, or of MMLU's folder.", metavar="PATH")
    num_questions: int | None = opt.option("Ask so many, drawn by --seed; all unless given.", min=1)
    seed: int | None = opt.option("Draw the questions from this seed.", min=0)
    ask: AskFor | None = opt.option(
        "Show the choices and ask for a letter, or let the model continue the question's text."
    )
    by: ReadBy | None = opt.option(
        "Read the answer from the text that is generated, or from the probabilities of its first token."
    )
    shots: int | None = opt.option("Put so many worked examples before each question.", min=0, max=64)
    max_new_tokens: int | None = opt.option("Let an answer be at most so many tokens long.", min=1)
    concurrency: int | None = opt.option("Ask so many questions at a time.", min=1, max=4096)
    min_score: str | None = opt.option(
        "Expect at least this part of the answers to be right, such as 0.6 or 60%; '>0.6' expects more than that.",
        metavar="P",
    )
    min_accept_length: str | None = opt.option(
        "Expect at least so many accepted tokens a verify step, on average; '>N' expects more than that.", metavar="N"
    )
    confidence: str = opt.confidence_option("State intervals at this confidence (0.95, 95%).", default="0.95")
    revert: list[str] | None = opt.revert_option("Revert these fixes in the engine that is asked.")
    timeout: float | None = opt.option("Give all questions together so long.", metavar="SECONDS")
    answers: Path | None = opt.option("Write a line of JSON for each answer into this file.", metavar="FILE")

    def run(self) -> int:
        self.check_outputs()
        with workers(1) as pool:
            from specdebug.apps.evaluation.run import evaluate

            evaluation = self._evaluation()
            evaluation = replace(evaluation, timeout_s=opt.positive(self.timeout) or evaluation.timeout_s)
            toggles = self.library().toggles(opt.numbers_of(self.revert))
            with progress() as watcher:
                result = evaluate(pool, evaluation, toggles, opt.confidence_of(self.confidence), watcher)
        from specdebug.report.evaluation import answers_jsonl, evaluation_report

        return tell(evaluation_report(result), self, (self.answers, lambda: answers_jsonl(result)))

    def _evaluation(self) -> Evaluation:
        """The evaluation that is asked for, with the options laid over its file. Raises SpecDebugError."""
        from specdebug.apps.evaluation.declared import (
            ACCEPT_LENGTH,
            DEFAULT_NAME,
            SCORE,
            Asking,
            Expected,
            read_evaluation,
        )

        chosen = self.choices()
        evaluation = read_evaluation(self.file or DEFAULT_NAME)
        if self.questions is not None:
            path = str(self.questions.absolute())
            if self.file is None:
                # Of the shipped one only the engine has to do with questions that are the user's.
                evaluation = replace(evaluation, name="questions", questions=Asking(path), expect=Expected())
            else:
                evaluation = replace(evaluation, questions=replace(evaluation.questions, file=path))
        if chosen.target is not None:
            evaluation = replace(evaluation, target=chosen.target)
        named: dict[str, Any] = {
            "count": self.num_questions,
            "ask": self.ask and self.ask.value,
            "by": self.by and self.by.value,
        }
        named |= {name: getattr(self, name) for name in ("seed", "shots", "max_new_tokens", "concurrency")}
        score, accept = self._threshold("min_score", SCORE), self._threshold("min_accept_length", ACCEPT_LENGTH)
        expected = evaluation.expect
        return replace(
            evaluation,
            questions=replace(evaluation.questions, **{name: one for name, one in named.items() if one is not None}),
            expect=replace(expected, score=score or expected.score, accept_length=accept or expected.accept_length),
            overrides=dict(chosen.engine),
        )

    def _threshold(self, name: str, bounds: tuple[float, float]) -> Threshold | None:
        from specdebug.apps.evaluation.declared import ThresholdError, parse_threshold

        text = getattr(self, name)
        try:
            return None if text is None else parse_threshold(text, *bounds)
        except ThresholdError as error:
            raise SpecDebugError(f"--{name.replace('_', '-')} {error}") from None
