"""Which choice an answer takes: read from the text that was generated, or from the odds of its first token."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Literal, TypeAlias

from specdebug.apps.evaluation.prompts import Ask
from specdebug.apps.evaluation.questions import ChoiceQuestion

By = Literal["generation", "logprob"]
Top: TypeAlias = Sequence[tuple[float, str]]
"""The likeliest first tokens: of each the log probability, and its text."""


def taken_by_text(question: ChoiceQuestion, ask: Ask, text: str) -> int | None:
    """The index of the choice that an output takes; None where it takes none."""
    return _letter(text, len(question.choices)) if ask == "letter" else _continuation(text, question.choices)


def taken_by_odds(question: ChoiceQuestion, ask: Ask, top: Top) -> int | None:
    """The index of the choice that the first token most likely begins; None where that is none, or two alike."""
    odds = choice_odds(question, ask, top)
    best = max(odds)
    return odds.index(best) if best > -math.inf and odds.count(best) == 1 else None


def choice_odds(question: ChoiceQuestion, ask: Ask, top: Top) -> list[float]:
    """Of each choice the log of the probability that the first token is one that begins it; minus infinity where none
    of the likeliest does."""
    wanted = list(ascii_uppercase[: len(question.choices)]) if ask == "letter" else question.choices
    return [_log_sum([value for value, token in top if _begins(token, choice, ask)]) for choice in wanted]


def _begins(token: str, choice: str, ask: Ask) -> bool:
    return token.strip() == choice if ask == "letter" else bool(token) and choice.startswith(token)


def _log_sum(values: Sequence[float]) -> float:
    if not values:
        return -math.inf
    most = max(values)
    return most + math.log(sum(math.exp(value - most) for value in values))


def _letter(text: str, count: int) -> int | None:
    """The letter that an output begins with, alone, or the first that it names as its answer."""
    letters = ascii_uppercase[:count]
    alone = rf"[(*]*([{letters}])(?![A-Za-z0-9'])"
    found = re.match(rf"\s*{alone}", text) or re.search(rf"[Aa]nswer(?:\s+is)?\s*:?\s*{alone}", text)
    return letters.index(found[1]) if found else None


def _continuation(text: str, choices: Sequence[str]) -> int | None:
    """The choice that shares the longest beginning with an output; None where that is white space, or two share it."""
    shared = [_shared(text, choice) for choice in choices]
    most = max(shared)
    return shared.index(most) if text[:most].strip() and shared.count(most) == 1 else None


def _shared(one: str, other: str) -> int:
    """Characters with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))
