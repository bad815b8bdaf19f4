"""A small kit to check loaded YAML: an ``Item`` is one value that knows its name and its place in the file.

Toggles, probe packs and scenarios all validate with it, so that they complain alike. A reader takes what it
wants and every wrong type, bad range or unknown key becomes a ``ContentError`` at the right line and column::

    top = load_yaml(path).root.table(required=("pr", "title"), optional=("aliases",))
    pr = top["pr"].integer(low=1)
    aliases = [a.integer(low=1) for a in top["aliases"].items()] if "aliases" in top else []
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from specdebug.base.errors import ContentError, ContentErrors, Where, did_you_mean, raise_all
from specdebug.base.yamlio import Doc, KeyPath, one_line

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True)
class Item:
    """One value of a document. Its methods return the value as the asked type or raise ``ContentError``."""

    doc: Doc
    path: KeyPath
    value: Any

    @property
    def where(self) -> Where:
        """Place of the value."""
        return self.doc.where(*self.path)

    @property
    def where_key(self) -> Where:
        """Place of the key that holds the value."""
        return self.doc.where_key(*self.path)

    @property
    def name(self) -> str:
        """The way to the value, as in ``workload[0].prompt.tokens``."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{one_line(step, 40)}" for step in self.path)
        return "".join(steps).removeprefix(".") or "the file"

    @property
    def is_null(self) -> bool:
        """Return True if the value is absent: ``key:`` or ``key: null``."""
        return self.value is None

    def error(self, message: str) -> ContentError:
        """An error at this value's place; ``message`` follows the value's name."""
        return ContentError(f"{self.name} {message}", self.where, message)

    def expected(self, what: str) -> ContentError:
        """The error for a value that is not ``what``; it says what it is instead."""
        return self.error(f"must be {what}, not {describe(self.value)}")

    def text(self, *, choices: Sequence[str] = (), pattern: str | None = None, empty: bool = False) -> str:
        """A string: not blank unless ``empty``, one of ``choices`` if given, fitting all of ``pattern``."""
        if not isinstance(self.value, str):
            hint = "; quote it" if isinstance(self.value, bool | int | float) else ""
            raise self.error(f"must be text, not {describe(self.value)}{hint}")
        if not empty and not self.value.strip():
            raise self.error("must not be empty")
        if choices and self.value not in choices:
            nearest = did_you_mean(self.value, choices)
            raise self.error(f"cannot be '{one_line(self.value, 60)}'{nearest}")
        if pattern is not None and not re.fullmatch(pattern, self.value):
            raise self.error(f"'{one_line(self.value, 60)}' does not fit the form {pattern}")
        return self.value

    def integer(self, *, low: int | None = None, high: int | None = None) -> int:
        """A whole number with ``low <= value <= high``."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not _within(self.value, low, high):
            raise self.expected(f"a whole number{_range(low, high)}")
        return self.value

    def number(self, *, low: float | None = None, high: float | None = None) -> float:
        """A finite number with ``low <= value <= high``, returned as a float."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not _within(value, low, high):
            raise self.expected(f"a number{_range(low, high)}")
        try:
            as_float = float(value)
        except OverflowError:
            as_float = math.inf
        if not math.isfinite(as_float):
            raise self.expected("a finite number")
        return as_float

    def boolean(self) -> bool:
        """``true`` or ``false``; YAML 1.1's ``yes`` and ``on`` are text here."""
        if not isinstance(self.value, bool):
            raise self.expected("true or false")
        return self.value

    def items(self, *, at_least: int = 0) -> list[Item]:
        """The items of a list of at least ``at_least``."""
        if not isinstance(self.value, list):
            raise self.expected("a list")
        if len(self.value) < at_least:
            raise self.error(f"needs at least {at_least} item{'s' if at_least > 1 else ''}")
        return [Item(self.doc, (*self.path, index), item) for index, item in enumerate(self.value)]

    def one_or_many(self, *, at_least: int = 1) -> list[Item]:
        """The items of a list, or the value itself as the only one."""
        return self.items(at_least=at_least) if isinstance(self.value, list) else [self]

    def entries(self) -> dict[str, Item]:
        """The values of a mapping whose keys are free (names of arms, engines, groups)."""
        if not isinstance(self.value, dict):
            raise self.expected("a mapping")
        return {key: Item(self.doc, (*self.path, key), item) for key, item in self.value.items()}

    def table(self, *, required: Sequence[str] = (), optional: Sequence[str] = ()) -> dict[str, Item]:
        """The values of a mapping whose keys are fixed: an unknown or a missing one is an error, and so is each."""
        entries = self.entries()
        raise_all(self.wrong_keys(entries, required, optional))
        return entries

    def wrong_keys(
        self, entries: Mapping[str, Item], required: Sequence[str], optional: Sequence[str]
    ) -> list[ContentError]:
        """An error for each entry of an unknown key, and for each required key that is missing, not misspelt."""
        known, wrong, misspelt = (*required, *optional), list[ContentError](), set[str]()
        for key, item in entries.items():
            if key not in known:
                inside = f" in {self.name}" if self.path else ""
                hint = did_you_mean(str(key), known)  # of data that is no file a key may be a number
                misspelt |= {name for name in required if hint == f"; did you mean '{name}'?"}
                message = f"unknown key '{one_line(str(key), 60)}'{inside}{hint}"
                wrong.append(ContentError(message, item.where_key))
                wrong[-1].path = item.path
        for key in required:
            if key not in entries and key not in misspelt:
                wrong.append(self.error(f"lacks the key '{key}'"))
                wrong[-1].path = (*self.path, key)
        return wrong


class Gather:
    """Reads a mapping or a list part by part and keeps what is wrong with each, so that no error hides another::

        gather = Gather()
        table = gather.table(item, required=("name",), optional=("seed",))
        name = gather.read(table, "name", Item.text, "")
        return gather.done(Thing(name, gather.read(table, "seed", Item.integer, 0)))

    A part that cannot be read gives its default, or what its own ``Gather`` could read of it.
    """

    def __init__(self) -> None:
        self.problems: list[ContentError] = []

    def note(self, error: ContentError, path: KeyPath) -> None:
        """Keep what is wrong with the value at ``path``."""
        for problem in error.problems:
            if problem.path is None:
                problem.path = path
            self.problems.append(problem)

    def table(self, item: Item, *, required: Sequence[str] = (), optional: Sequence[str] = ()) -> dict[str, Item]:
        """The values of a mapping whose keys are fixed, without those that are unknown. Raises for no mapping."""
        entries = item.entries()
        for error in item.wrong_keys(entries, required, optional):
            self.note(error, item.path)
        return {key: value for key, value in entries.items() if key in required or key in optional}

    def read(self, table: Mapping[str, Item], key: str, reader: Callable[[Item], T], default: D) -> T | D:
        """The value of ``key`` by ``reader``; ``default`` where there is none, or none that can be read."""
        return self.one(table[key], reader, default) if key in table else default

    def one(self, item: Item, reader: Callable[[Item], T], default: D) -> T | D:
        """A value by ``reader``; ``default`` if it cannot be read."""
        try:
            return reader(item)
        except ContentErrors as errors:
            self.note(errors, item.path)
            partial: T | None = errors.partial
            return default if partial is None else partial
        except ContentError as error:
            self.note(error, item.path)
            return default

    def done(self, value: T) -> T:
        """``value``, if nothing was wrong. Raises ContentErrors, of which it is the part that could be read."""
        raise_all(self.problems, value)
        return value


def describe(value: Any) -> str:
    """A value as an error shows it: short, on one line."""
    if isinstance(value, str):
        return f"'{one_line(value, 60)}'"
    words = {type(None): "nothing", dict: "a mapping", list: "a list", bool: str(value is True).lower()}
    try:
        return words.get(type(value)) or one_line(str(value), 60)
    except ValueError:  # Python writes no number of thousands of digits
        return "a number too long to show"


def _within(value: float, low: float | None, high: float | None) -> bool:
    return not (low is not None and value < low) and not (high is not None and value > high)


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return f" of at most {high}" if high is not None else ""
