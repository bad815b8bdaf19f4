"""Multiple-choice questions: read from disk (MMLU's own CSV files, or JSON lines), put into words, and marked."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal, TypeAlias

from specdebug.base.errors import ContentError, SpecDebugError, Where, one_line
from specdebug.base.files import read_file

MAX_BYTES = 256 << 20  # of one file
TEST, DEV = "_test.csv", "_dev.csv"
"""The endings of MMLU's files: questions to ask, and worked examples of the same subject."""
_COLUMNS = ("question", "a", "b", "c", "d", "answer")


@dataclass(frozen=True)
class ChoiceQuestion:
    """A question with one right choice. ``answer``: its index. ``place``: where it stands, ``file:line``."""

    text: str
    choices: tuple[str, ...]
    answer: int
    subject: str = ""
    place: str = ""


@dataclass(frozen=True)
class QuestionSet:
    """All questions of a path, in its order. ``examples``: worked ones, by subject."""

    path: str
    questions: tuple[ChoiceQuestion, ...]
    examples: Mapping[str, tuple[ChoiceQuestion, ...]] = field(default_factory=dict)

    def drawn(self, count: int | None, seed: int) -> QuestionSet:
        """``count`` of the questions, drawn without replacement and left in order; all, for None. Raises
        SpecDebugError for more than there are."""
        have = len(self.questions)
        if count is None:
            return self
        if count > have:
            raise SpecDebugError(f"{self.path} has {have} questions, fewer than the {count} that are to be asked")
        kept = sorted(random.Random(seed).sample(range(have), count))
        return QuestionSet(self.path, tuple(self.questions[index] for index in kept), self.examples)


def read_questions(path: str | Path) -> QuestionSet:
    """The questions of a ``.jsonl`` or ``.csv`` file, or of every ``*_test.csv`` in a folder (or its ``test/``), with
    the examples of the ``*_dev.csv`` beside them (or in ``dev/``). Raises ContentError with file and line."""
    path = Path(path)
    if path.is_dir():
        files = sorted([*path.glob(f"*{TEST}"), *path.glob(f"test/*{TEST}")])
        if not files:
            raise ContentError(f"holds no *{TEST}, as MMLU's folder does", Where(str(path)))
        found = [question for file in files for question in _csv_questions(file)]
        examples = {subject: each for file in files for subject, each in _examples_of(file).items()}
    elif path.suffix == ".csv":
        found, examples = list(_csv_questions(path)), _examples_of(path)
    elif path.suffix == ".jsonl":
        found, examples = list(_json_questions(path)), {}
    else:
        raise ContentError("is no set of questions: name a .jsonl or .csv file, or MMLU's folder", Where(str(path)))
    if not found:
        raise ContentError("holds no question", Where(str(path)))
    return QuestionSet(str(path), tuple(found), examples)


def _text_of(path: Path) -> str:
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise ContentError(f"cannot be read: {error.strerror}", Where(str(path))) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ContentError("is not UTF-8 text", Where(str(path), line)) from None


def _examples_of(test: Path) -> dict[str, tuple[ChoiceQuestion, ...]]:
    """The worked examples that belong to a file of questions, by subject."""
    if not test.name.endswith(TEST):
        return {}
    name = test.name.removesuffix(TEST) + DEV
    for file in (test.with_name(name), test.parent.parent / "dev" / name):
        if file.is_file():
            return {_subject_of(test): tuple(_csv_questions(file))}
    return {}


def _subject_of(path: Path) -> str:
    return path.name.removesuffix(TEST).removesuffix(DEV) if path.name.endswith((TEST, DEV)) else ""


def _csv_questions(path: Path) -> Iterator[ChoiceQuestion]:
    """MMLU has no head, and the columns question, A, B, C, D, answer; a head may name them in another order."""
    rows = csv.reader(io.StringIO(_text_of(path), newline=""), strict=True)
    places: Mapping[str, int] = {name: index for index, name in enumerate(_COLUMNS)}
    begins, least, first = 1, len(_COLUMNS), True
    while True:
        where = Where(str(path), begins)
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise ContentError(f"is no CSV: {error}", Where(str(path), rows.line_num)) from None
        if row is None:
            return
        begins = rows.line_num + 1
        if not row:
            continue
        head = {cell.strip().lower(): index for index, cell in enumerate(row)}
        if first and {"question", "answer"} <= head.keys():
            if missing := [name for name in _COLUMNS if name not in head]:
                raise ContentError(f"its head lacks {', '.join(missing)}", where)
            places, least, first = head, len(row), False
            continue
        first = False
        if len(row) != least:
            raise ContentError(f"has {len(row)} columns in place of {least} (question, A, B, C, D, answer)", where)
        choices = [row[places[letter]] for letter in "abcd"]
        subject = row[places["subject"]] if "subject" in places else _subject_of(path)
        yield _question(row[places["question"]], choices, row[places["answer"]].strip(), subject, where)


def _json_questions(path: Path) -> Iterator[ChoiceQuestion]:
    for number, line in enumerate(_text_of(path).split("\n"), start=1):
        where = Where(str(path), number)
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ContentError(f"is no JSON: {one_line(str(error), 80)}", where) from None
        if not isinstance(record, dict):
            raise ContentError("must be an object with question, choices and answer", where)
        if missing := [name for name in ("question", "choices", "answer") if name not in record]:
            raise ContentError(f"lacks {', '.join(missing)}", where)
        subject = record.get("subject", "")
        if not isinstance(subject, str):
            raise ContentError("subject must be text", where)
        yield _question(record["question"], record["choices"], record["answer"], subject, where)


def _question(text: Any, choices: Any, answer: Any, subject: str, where: Where) -> ChoiceQuestion:
    if not isinstance(text, str) or not text.strip():
        raise ContentError("the question must be text, and not empty", where)
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(ascii_uppercase):
        raise ContentError(f"there must be 2 to {len(ascii_uppercase)} choices, in a list", where)
    if not all(isinstance(each, str) and each for each in choices):
        raise ContentError("every choice must be text, and not empty", where)
    try:
        "".join((text, subject, *choices)).encode()
    except UnicodeEncodeError:
        raise ContentError("holds half of a surrogate pair, which is no text", where) from None
    if len(set(choices)) < len(choices):
        raise ContentError("two choices are the same", where)
    return ChoiceQuestion(text, tuple(choices), _index_of(answer, choices, where), subject, str(where))


def _index_of(answer: Any, choices: Sequence[str], where: Where) -> int:
    """The right choice, given as its letter, its text or its index from 0."""
    if isinstance(answer, str):
        letters = ascii_uppercase[: len(choices)]
        if len(answer) == 1 and answer in letters:
            return letters.index(answer)
        if answer in choices:
            return choices.index(answer)
        raise ContentError(f"answer '{one_line(answer, 40)}' is neither of {letters} nor one of the choices", where)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    raise ContentError(f"answer must be a letter, a choice's text or its index below {len(choices)}", where)


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
    prompts = []
    for question in found.questions:
        about = f" about {question.subject.replace('_', ' ')}" if question.subject else ""
        head = f"The following are multiple choice questions (with answers){about}.\n\n"
        examples = found.examples.get(question.subject, ())
        if shots is not None and shots > len(examples):
            of = f" of {question.subject}" if question.subject else ""
            raise SpecDebugError(
                f"{question.place}: {shots} worked examples are asked for, and there are {len(examples)}{of}; "
                "they are read from *_dev.csv beside *_test.csv"
            )
        worked = "".join(f"{_block(each)} {ascii_uppercase[each.answer]}\n\n" for each in examples[:shots])
        prompts.append(f"{head}{worked}{_block(question)}")
    return prompts


def _block(question: ChoiceQuestion) -> str:
    choices = "".join(
        f"{letter}. {choice}\n" for letter, choice in zip(ascii_uppercase, question.choices, strict=False)
    )
    return f"{question.text.strip()}\n{choices}Answer:"


By = Literal["generation", "logprob"]
Top: TypeAlias = Sequence[tuple[float, str]]  # the likeliest first tokens: of each the log probability, and its text


def taken_by_text(question: ChoiceQuestion, ask: Ask, text: str) -> int | None:
    """The index of the choice that an output takes; None where it takes none."""
    if ask == "letter":
        return _letter(text, len(question.choices))
    # the choice that shares the longest beginning with the output, unless that is white space, or two share it
    shared = [
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, choice, strict=False)))
        for choice in question.choices
    ]
    most = max(shared)
    return shared.index(most) if text[:most].strip() and shared.count(most) == 1 else None


def taken_by_odds(question: ChoiceQuestion, ask: Ask, top: Top) -> int | None:
    """The index of the choice that the first token most likely begins; None where that is none, or two alike."""
    odds = choice_odds(question, ask, top)
    best = max(odds)
    return odds.index(best) if best > -math.inf and odds.count(best) == 1 else None


def choice_odds(question: ChoiceQuestion, ask: Ask, top: Top) -> list[float]:
    """Of each choice the log of the probability that the first token is one that begins it; minus infinity where none
    of the likeliest does."""
    if ask == "letter":
        letters = ascii_uppercase[: len(question.choices)]
        return [_log_sum([value for value, token in top if token.strip() == letter]) for letter in letters]
    return [_log_sum([value for value, token in top if token and each.startswith(token)]) for each in question.choices]


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
