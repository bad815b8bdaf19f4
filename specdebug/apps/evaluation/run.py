"""An evaluation from outside: read the questions, have them answered in a worker, keep every answer, judge them all."""

import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdebug.apps.evaluation.declared import ARM, Check, Estimate, Evaluation, accept_length_of, check, score_of
from specdebug.apps.evaluation.questions import (
    ChoiceQuestion,
    QuestionSet,
    Top,
    prompts_of,
    read_questions,
    taken_by_odds,
    taken_by_text,
)
from specdebug.apps.evaluation.worker import Paper, Put
from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.replay import ArmRun, Progress, RunContent, run_through
from specdebug.campaign.loops.steplog import Recording
from specdebug.patching.toggles import Toggle
from specdebug.scenario.checks import asked_of
from specdebug.scenario.library import Library
from specdebug.targets.registry import find_target
from specdebug.verdict.outcome import EXIT_CODES, Outcome
from specdebug.workers.job import Job
from specdebug.workers.pool import WorkerPool

TARGET = "specdebug.apps.evaluation.worker:evaluate"


@dataclass(frozen=True)
class MarkedAnswer:
    """A question with what became of it. ``taken``: the index of the choice that was taken, if one was."""

    number: int
    question: ChoiceQuestion
    text: str
    taken: int | None
    verifies: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    top: Top = ()

    @property
    def right(self) -> bool:
        return self.taken == self.question.answer


@dataclass(frozen=True)
class Evaluated:
    """The result. ``answers``: those that came, by question. ``server_accept_length``: the server's own mean.
    ``outcome``: of the run, whatever the answers: how it failed, if it did."""

    evaluation: Evaluation
    asked: QuestionSet
    answers: tuple[MarkedAnswer, ...]
    outcome: Outcome
    reverts: tuple[int, ...]
    confidence: float
    wall_s: float
    tells_accepts: bool = True
    server_accept_length: float | None = None
    interrupted: bool = False

    @property
    def score(self) -> Estimate:
        """The part of the answers that is right."""
        return score_of(sum(each.right for each in self.answers), len(self.answers), self.confidence)

    @property
    def accept_length(self) -> Estimate:
        """Tokens a verify: by the answers, or by the server's own count where they tell of no verify."""
        why = "" if self.tells_accepts else "this target tells no accept lengths"
        by_answers = accept_length_of([each.verifies for each in self.answers], self.confidence, why)
        if by_answers.value is None and self.server_accept_length:
            return Estimate("accept length", self.server_accept_length)
        return by_answers

    @property
    def incomplete(self) -> str:
        """Why not every question has an answer; nothing if each has."""
        missing = len(self.asked.questions) - len(self.answers)
        return f"{missing} of {len(self.asked.questions)} questions have no answer" if missing else ""

    @property
    def checks(self) -> Sequence[Check]:
        """Every threshold that is set, held against what was measured."""
        expect = self.evaluation.expect
        return [
            *check(self.score, expect.score, self.incomplete),
            *check(self.accept_length, expect.accept_length, self.incomplete),
        ]

    @property
    def verdict(self) -> str:
        """``fail`` if the run failed or a threshold is missed, ``unknown`` if either is undecided, else ``pass``."""
        held = [each.held for each in self.checks]
        if self.outcome.verdict == "fail" or False in held:
            return "fail"
        return "unknown" if self.outcome.verdict == "unknown" or None in held else "pass"

    @property
    def exit_code(self) -> int:
        """0, 1 or 125 by the verdict; 128 + N after signal N."""
        return interrupts.exit_code() if self.interrupted else EXIT_CODES[self.verdict]


@dataclass(frozen=True)
class _AskedRun(ArmRun):
    """The run that has a ``paper`` answered, pickled."""

    paper: bytes = b""

    def job(self, library: RunContent) -> Job:
        return self.job_of(TARGET, paper=self.paper)

    def at_fault(self, message: str, option: tuple[str, ...]) -> SpecDebugError:
        return super().at_fault(message, option) if option else SpecDebugError(message)


@dataclass
class _Heard(Recording):
    """Collects the worker's events: answers by question, and the server's figures."""

    told: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)

    def take(self, key: str, event: Mapping[str, Any]) -> None:
        """Keep the event if it is one of these."""
        if event["event"] == "answer":
            self.told[event["number"]] = event
        elif event["event"] == "server":
            self.server = event


def evaluate(
    pool: WorkerPool, evaluation: Evaluation, toggles: Sequence[Toggle], confidence: float, progress: Progress
) -> Evaluated:
    """Ask, and judge. Raises SpecDebugError for what is wrong with the evaluation, its questions or its target."""
    began, asking = time.monotonic(), evaluation.questions
    found = read_questions(evaluation.question_path).drawn(asking.count, asking.seed)
    prompts = enumerate(zip(prompts_of(found, asking.ask, asking.shots), found.questions, strict=True))
    puts = [Put(number, prompt, question.place) for number, (prompt, question) in prompts]
    paper = pickle.dumps(Paper(puts, asking.concurrency, asking.max_new_tokens, asking.by == "logprob"))
    run = _AskedRun(evaluation.name, evaluation.scenario(), ARM, 0, toggles=tuple(toggles), paper=paper)
    asked_of(run.scenario, run.arm)
    target = find_target(run.target).traits
    if run.toggles and "reverts" not in target.shows:
        raise SpecDebugError(f"target {target.name} cannot have fixes reverted; the embedded engine and serve can")
    heard = _Heard()
    ran = run_through(pool, Library(), [run], progress=progress, recording=heard)
    if ran.trouble is not None:
        raise ran.trouble
    outcome = ran.results[0].outcome
    return Evaluated(
        evaluation,
        found,
        _answers(evaluation, found, heard, outcome),
        outcome,
        run.reverts,
        confidence,
        time.monotonic() - began,
        heard.server.get("tells_accepts", True),
        heard.server.get("accept_length"),
        ran.interrupted,
    )


def _answers(evaluation: Evaluation, found: QuestionSet, heard: _Heard, outcome: Outcome) -> tuple[MarkedAnswer, ...]:
    asking, results = evaluation.questions, {result.rid: result for result in outcome.requests}
    answers = []
    for number, told in sorted(heard.told.items()):
        result, question = results[str(number)], found.questions[number]
        top = [(float(value), str(text)) for value, text in told["top"]]
        by_odds = asking.by == "logprob"
        taken = (
            taken_by_odds(question, asking.ask, top) if by_odds else taken_by_text(question, asking.ask, result.text)
        )
        cost = (told["prompt_tokens"], result.cached_tokens, len(result.output_ids))
        answers.append(MarkedAnswer(number, question, result.text, taken, result.accept_lengths, *cost, top))
    return tuple(answers)
