"""An evaluation from outside: read the questions, have them answered in a worker, keep every answer, judge them all."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdebug.apps.evaluation.askers import Put
from specdebug.apps.evaluation.declared import ARM, Evaluation
from specdebug.apps.evaluation.gate import Check, Estimate, accept_length_of, check, score_of
from specdebug.apps.evaluation.prompts import prompts_of
from specdebug.apps.evaluation.questions import ChoiceQuestion, QuestionSet, read_questions
from specdebug.apps.evaluation.scoring import Top, taken_by_odds, taken_by_text
from specdebug.apps.evaluation.worker import Paper
from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.replay import ArmListener, ArmResult, ArmRun, Progress
from specdebug.patching.toggles import Toggle
from specdebug.scenario.checks import asked_of
from specdebug.targets.registry import find_target
from specdebug.verdict.outcome import EXIT_CODES, Outcome
from specdebug.workers.job import Job, WorkerEnd
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

    ``outcome``: of the run, whatever the answers: how it failed, if it did.
    """

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


class _Listening(ArmListener):
    """Keeps what a worker tells, and what became of it."""

    def __init__(self, run: ArmRun, progress: Progress) -> None:
        super().__init__()
        self.runs = {run.key: run}
        self.told: dict[int, dict[str, Any]] = {}
        self.server: dict[str, Any] = {}
        self.outcome: Outcome | None = None
        self._run = run
        self._progress = progress

    def started(self, job: Job) -> None:
        super().started(job)
        self._progress.arm_started(self._run)

    def event(self, job: Job, event: dict[str, Any]) -> None:
        super().event(job, event)
        if event.get("event") == "answer":
            self.told[event["number"]] = event
        elif event.get("event") == "server":
            self.server = event
        ledger = self.ledgers[job.name]
        if ledger.usage_error is not None and not ledger.unavailable:
            if ledger.usage_option:
                raise self._run.at_fault(ledger.usage_error, ledger.usage_option)
            raise SpecDebugError(ledger.usage_error)
        self._progress.arm_moved(self._run, ledger)

    def ended(self, job: Job, end: WorkerEnd) -> None:
        self.outcome = self.ledgers[job.name].outcome(end)
        self._progress.arm_ended(ArmResult(self._run, self.outcome))

    def waiting(self) -> None:
        self._progress.waiting()


def evaluate(
    pool: WorkerPool, evaluation: Evaluation, toggles: Sequence[Toggle], confidence: float, progress: Progress
) -> Evaluated:
    """Ask, and judge. Raises SpecDebugError for what is wrong with the evaluation, its questions or its target."""
    began, asking = time.monotonic(), evaluation.questions
    found = read_questions(evaluation.question_path).drawn(asking.count, asking.seed)
    paper = _paper(evaluation, found)
    run = ArmRun(evaluation.name, evaluation.scenario(), ARM, 0, toggles=tuple(toggles))
    _check(run)
    listening = _Listening(run, progress)
    interrupted = False
    try:
        pool.run([run.job_of(TARGET, paper=pickle.dumps(paper))], listening)
    except KeyboardInterrupt:
        interrupted = True
    outcome = listening.outcome or _never_begun(listening, run)
    return Evaluated(
        evaluation,
        found,
        _answers(evaluation, found, listening, outcome),
        outcome,
        run.reverts,
        confidence,
        time.monotonic() - began,
        listening.server.get("tells_accepts", True),
        listening.server.get("accept_length"),
        interrupted,
    )


def _paper(evaluation: Evaluation, found: QuestionSet) -> Paper:
    asking = evaluation.questions
    prompts = prompts_of(found, asking.ask, asking.shots)
    pairs = enumerate(zip(prompts, found.questions, strict=True))
    puts = [Put(number, prompt, question.place) for number, (prompt, question) in pairs]
    return Paper(puts, asking.concurrency, asking.max_new_tokens, asking.by == "logprob")


def _check(run: ArmRun) -> None:
    """Raise SpecDebugError for a target that cannot be, and for reverts on one that cannot have them."""
    asked_of(run.scenario, run.arm)
    target = find_target(run.target).traits
    if run.toggles and "reverts" not in target.shows:
        raise SpecDebugError(f"target {target.name} cannot have fixes reverted; the embedded engine and serve can")


def _never_begun(listening: _Listening, run: ArmRun) -> Outcome:
    from specdebug.verdict.ledger import Ledger

    return listening.ledgers.get(run.key, Ledger(run.target_name)).outcome(WorkerEnd("interrupted", 0, 0.0, 0.0, ""))


def _answers(
    evaluation: Evaluation, found: QuestionSet, listening: _Listening, outcome: Outcome
) -> tuple[MarkedAnswer, ...]:
    asking, results = evaluation.questions, {result.rid: result for result in outcome.requests}
    answers = []
    for number, told in sorted(listening.told.items()):
        result, question = results[str(number)], found.questions[number]
        top = [(float(value), str(text)) for value, text in told["top"]]
        if asking.by == "logprob":
            taken = taken_by_odds(question, asking.ask, top)
        else:
            taken = taken_by_text(question, asking.ask, result.text)
        answers.append(
            MarkedAnswer(
                number,
                question,
                result.text,
                taken,
                result.accept_lengths,
                told["prompt_tokens"],
                result.cached_tokens,
                len(result.output_ids),
                top,
            )
        )
    return tuple(answers)
