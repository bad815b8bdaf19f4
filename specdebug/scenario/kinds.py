"""Kinds of values: what a key of a declared grammar can hold.

A kind reads a value from YAML, writes it back, says what it is as JSON schema, and in words for the pages. What a value
may be is thus said once, where the key is declared (``grammar.py``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specdebug.errors import ContentError
from specdebug.schema import Gather, Item
from specdebug.yamlio import one_line

Schema = dict[str, Any]
UNREAD: Any = object()
"""In the place of a value that is not there or cannot be read, until something better is known."""


class Kind(ABC):
    """What a key can hold. ``nullable``: null, too, as a value of its own."""

    nullable = False

    @abstractmethod
    def read(self, item: Item) -> Any:
        """The value. Raises ContentError at what is wrong with it."""

    @abstractmethod
    def schema(self, defs: Schema) -> Schema:
        """The kind as JSON schema; what it refers to is put into ``defs``."""

    def blank(self, item: Item) -> Any:
        """What stands in the place of a value that could not be read at ``item``, or is missing there."""
        return None

    def writes(self, value: Any) -> bool:
        """Whether the file can say the value; what it cannot say is what a missing key means."""
        return value is not None or self.nullable


@dataclass(frozen=True)
class Text(Kind):
    """A string: not blank unless ``empty``, one of ``choices`` if there are any, fitting all of ``pattern``."""

    pattern: str | None = None
    choices: Sequence[str] = ()
    empty: bool = False

    def read(self, item: Item) -> str:
        return item.text(choices=self.choices, pattern=self.pattern, empty=self.empty)

    def schema(self, defs: Schema) -> Schema:
        if self.choices:
            return {"enum": list(self.choices)}
        form = {} if self.empty else {"pattern": r"\S" if self.pattern is None else f"^{self.pattern}$"}
        return {"type": "string", **form}

    def blank(self, item: Item) -> str:
        return self.choices[0] if self.choices else ""


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    def read(self, item: Item) -> bool:
        return item.boolean()

    def schema(self, defs: Schema) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number within inclusive bounds. ``unread``: what stands for one that cannot be read, else ``low``."""

    low: int
    high: int
    unread: int | None = None

    def read(self, item: Item) -> int:
        return item.integer(low=self.low, high=self.high)

    def schema(self, defs: Schema) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def blank(self, item: Item) -> int:
        return self.low if self.unread is None else self.unread


@dataclass(frozen=True)
class Real(Kind):
    """A number from ``low`` to ``high``. ``above``: and not ``low`` itself."""

    low: int
    high: int
    above: bool = False

    def read(self, item: Item) -> float:
        value = item.number(low=self.low, high=self.high)
        if self.above and value <= self.low:
            raise item.expected(f"above {self.low}")
        return value

    def schema(self, defs: Schema) -> Schema:
        return {"type": "number", "exclusiveMinimum" if self.above else "minimum": self.low, "maximum": self.high}

    def blank(self, item: Item) -> float:
        return float(self.low)


@dataclass(frozen=True)
class WholeOrRange(Kind):
    """A whole number, or the two inclusive ends of a range of them; read as both ends."""

    end: Whole

    def read(self, item: Item) -> tuple[int, int]:
        if not isinstance(item.value, list):
            value = self.end.read(item)
            return value, value
        if len(item.value) != 2:
            raise item.expected("a whole number or a range [low, high]")
        low, high = (self.end.read(end) for end in item.items())
        if low > high:
            raise item.error(f"is a range from {low} down to {high}; put the lower end first")
        return low, high

    def schema(self, defs: Schema) -> Schema:
        number = self.end.schema(defs)
        return {"anyOf": [number, {"type": "array", "items": number, "minItems": 2, "maxItems": 2}]}

    def blank(self, item: Item) -> tuple[int, int]:
        return self.end.low, self.end.low

    def plain(self, value: tuple[int, int]) -> int | list[int]:
        return value[0] if value[0] == value[1] else list(value)


@dataclass(frozen=True)
class ListOf(Kind):
    """A list of values of one kind. ``noun``: what they are, where there may be too many or one twice."""

    each: Kind
    at_least: int = 0
    at_most: int | None = None
    noun: str = "items"
    unique: bool = False

    def read(self, item: Item) -> tuple[Any, ...]:
        return self.read_items(item, item.items(at_least=self.at_least))

    def read_items(self, item: Item, items: Sequence[Item]) -> tuple[Any, ...]:
        """The values of ``items``, which make up ``item``; a blank in the place of what is wrong, so indices stay."""
        if self.at_most is not None and len(items) > self.at_most:
            raise item.error(f"has {len(items)} {self.noun}, more than {self.at_most}")
        gather, values = Gather(), list[Any]()
        for one in items:
            value = gather.one(one, self.each.read, UNREAD)
            if self.unique and value is not UNREAD and value in values:
                gather.note(ContentError(f"{self.noun} {value} is listed twice", one.where), one.path)
            values.append(self.each.blank(one) if value is UNREAD else value)
        return gather.done(tuple(value for value in values if value is not None))

    def schema(self, defs: Schema) -> Schema:
        bounds = {"minItems": self.at_least, "maxItems": self.at_most, "uniqueItems": self.unique}
        return {
            "type": "array",
            "items": self.each.schema(defs),
            **{key: value for key, value in bounds.items() if value},
        }

    def blank(self, item: Item) -> tuple[Any, ...]:
        return ()


@dataclass(frozen=True)
class OneOrMany(ListOf):
    """A list of values of one kind, or one such value alone; always written as a list."""

    def read(self, item: Item) -> tuple[Any, ...]:
        return self.read_items(item, item.one_or_many(at_least=self.at_least))

    def schema(self, defs: Schema) -> Schema:
        return {"anyOf": [self.each.schema(defs), super().schema(defs)]}

    def writes(self, value: Any) -> bool:
        return value is not None and len(value) >= self.at_least


@dataclass(frozen=True)
class MapOf(Kind):
    """A mapping whose keys are the user's own names. ``noun``: what has such a name; ``example``: of one entry."""

    each: Kind
    noun: str
    pattern: str | None = None
    at_most: int | None = None
    example: str | None = None

    def read(self, item: Item) -> dict[str, Any]:
        entries = item.entries()
        if not entries and self.example is not None:
            raise item.error(f"needs at least one {self.noun}, as in '{self.example}'")
        if self.at_most is not None and len(entries) > self.at_most:
            raise item.error(f"has {len(entries)} {self.noun}s, more than {self.at_most}")
        gather, values = Gather(), dict[str, Any]()
        for name, one in entries.items():
            if self.pattern is not None and not re.fullmatch(self.pattern, name):
                said = f"{self.noun} '{one_line(name, 60)}' does not fit the form {self.pattern}"
                gather.note(ContentError(said, one.where_key), one.path)
            value = gather.one(one, self.each.read, UNREAD)
            values[name] = self.each.blank(one) if value is UNREAD else value
        return gather.done(values)

    def schema(self, defs: Schema) -> Schema:
        schema: Schema = {"type": "object", "additionalProperties": self.each.schema(defs)}
        if self.pattern is not None:
            schema["propertyNames"] = {"pattern": f"^{self.pattern}$"}
        if self.example is not None:
            schema["minProperties"] = 1
        return schema if self.at_most is None else {**schema, "maxProperties": self.at_most}


@dataclass(frozen=True)
class Nullable(Kind):
    """A value of some kind, or null, which is a value of its own."""

    other: Kind
    nullable = True

    def read(self, item: Item) -> Any:
        return None if item.is_null else self.other.read(item)

    def schema(self, defs: Schema) -> Schema:
        return {"anyOf": [{"type": "null"}, self.other.schema(defs)]}


@dataclass(frozen=True)
class Checked(Text):
    """A string of which ``complaint`` has none. ``noun``: what it is; ``shape``: what the schema can say of it."""

    complaint: Callable[[str], str | None] = lambda text: None
    noun: str = "text"
    shape: str = r"\S"

    def read(self, item: Item) -> str:
        text = item.text()
        wrong = self.complaint(text)
        if wrong is not None:
            raise ContentError(f"{self.noun} {one_line(wrong, 200)}", item.where)
        return text

    def schema(self, defs: Schema) -> Schema:
        return {"type": "string", "pattern": self.shape}

