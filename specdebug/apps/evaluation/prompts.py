"""The words in which a question is put: lettered choices after worked examples, or a text that a choice continues."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase
from typing import Literal

from specdebug.apps.evaluation.questions import ChoiceQuestion, QuestionSet
from specdebug.base.errors import SpecDebugError

Ask = Literal["letter", "continuation"]
"""``letter``: the choices are shown, and one's letter is asked for. ``continuation``: the choices are not shown; the
right one is how the text goes on."""


def prompts_of(found: QuestionSet, ask: Ask, shots: int | None) -> list[str]:
    """The prompt of each question. ``shots``: worked examples before it; None: as many as there are. Raises
    SpecDebugError for more than there are."""
    if ask == "continuation":
        if shots:
            raise SpecDebugError("worked examples (shots) go with letters; a continuation has none")
        return [question.text for question in found.questions]
    return [_lettered(question, _examples(found, question, shots)) for question in found.questions]


def _examples(found: QuestionSet, question: ChoiceQuestion, shots: int | None) -> Sequence[ChoiceQuestion]:
    there = found.examples.get(question.subject, ())
    if shots is not None and shots > len(there):
        about = f" of {question.subject}" if question.subject else ""
        raise SpecDebugError(
            f"{question.place}: {shots} worked examples are asked for, and there are {len(there)}{about}; "
            "they are read from *_dev.csv beside *_test.csv"
        )
    return there[:shots]


def _lettered(question: ChoiceQuestion, examples: Sequence[ChoiceQuestion]) -> str:
    about = f" about {question.subject.replace('_', ' ')}" if question.subject else ""
    head = f"The following are multiple choice questions (with answers){about}.\n\n"
    worked = "".join(f"{_block(each)} {ascii_uppercase[each.answer]}\n\n" for each in examples)
    return f"{head}{worked}{_block(question)}"


def _block(question: ChoiceQuestion) -> str:
    choices = "".join(
        f"{letter}. {choice}\n" for letter, choice in zip(ascii_uppercase, question.choices, strict=False)
    )
    return f"{question.text.strip()}\n{choices}Answer:"
