"""Kinds of values: what a key of a declared grammar can hold.

A kind reads a value from YAML, writes it back and says what it is as JSON schema, so that what a value may be is said
once, where its key is declared (``grammar.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from specdebug.base.errors import ContentError
from specdebug.base.plugins import PluginError
from specdebug.base.schema import Gather, Item
from specdebug.base.yamlio import one_line

Schema = dict[str, Any]
UNREAD: Any = object()
"""In the place of a value that is not there or cannot be read, until something better is known."""


def to_plain(value: Any) -> Any:
    """A value as a file has it: parts, faults and what holds them as plain data."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: to_plain(each) for key, each in value.items()}
    return [to_plain(each) for each in value] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Kind:
    """The values that a key can hold.

    ``read``: the value of an item; raises ContentError. ``schema``: the kind as JSON schema; it puts what it refers to
    into its argument. ``blank``: what stands at an item for a value that cannot be read, or is missing. ``plain``: a
    value as the file has it. ``writes``: true if the file can say a value, rather than by lacking the key.
    """

    read: Callable[[Item], Any]
    schema: Callable[[Schema], Schema]
    blank: Callable[[Item], Any] = lambda item: None
    plain: Callable[[Any], Any] = to_plain
    writes: Callable[[Any], bool] = lambda value: value is not None


def simple(read: Callable[[Item], Any], schema: Schema, blank: Any, plain: Callable[[Any], Any] = to_plain) -> Kind:
    """A kind that refers to no other."""
    return Kind(read, lambda defs: schema, lambda item: blank, plain)


FLAG = simple(Item.boolean, {"type": "boolean"}, False)
TEXT = simple(Item.text, {"type": "string", "pattern": r"\S"}, "")
"""A string that is not blank."""
ANY_TEXT = simple(lambda item: item.text(empty=True), {"type": "string"}, "")


def form(pattern: str) -> Kind:
    """A string that fits all of a pattern."""
    return simple(lambda item: item.text(pattern=pattern), {"type": "string", "pattern": f"^{pattern}$"}, "")


def choice(*choices: str) -> Kind:
    """One of some strings."""
    return simple(lambda item: item.text(choices=choices), {"enum": list(choices)}, choices[0])


def name_of(names: Collection[str]) -> Kind:
    """One of some names, to which installed packages can add."""

    def read(item: Item) -> str:
        text = item.text()
        try:
            known = text in names
        except PluginError as error:
            raise item.error(f"cannot be '{one_line(text, 60)}': {error}") from error
        return text if known else item.text(choices=tuple(names))

    return Kind(read, lambda defs: {"enum": list(names)}, lambda item: next(iter(names)))


def checked(complaint: Callable[[str], str | None], noun: str, shape: str) -> Kind:
    """A string of which there is no complaint. ``shape``: what the schema can say of it, as a pattern."""

    def read(item: Item) -> str:
        wrong = complaint(item.text())
        if wrong is not None:
            raise ContentError(f"{noun} {one_line(wrong, 200)}", item.where)
        return item.text()

    return simple(read, {"type": "string", "pattern": shape}, "")


def whole(low: int, high: int, unread: int | None = None) -> Kind:
    """A whole number within inclusive bounds. ``unread``: stands for one that cannot be read, else ``low`` does."""
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return simple(lambda item: item.integer(low=low, high=high), schema, low if unread is None else unread)


def real(low: int, high: int, above: bool = False) -> Kind:
    """A number from ``low`` to ``high``. ``above``: and not ``low`` itself."""

    def read(item: Item) -> float:
        value = item.number(low=low, high=high)
        if above and value <= low:
            raise item.expected(f"above {low}")
        return value

    schema = {"type": "number", "exclusiveMinimum" if above else "minimum": low, "maximum": high}
    return simple(read, schema, float(low))


def span(low: int, high: int) -> Kind:
    """A whole number within inclusive bounds, or the two inclusive ends of a range; read as both ends."""
    end = whole(low, high)

    def read(item: Item) -> tuple[int, int]:
        if not isinstance(item.value, list):
            value = end.read(item)
            return value, value
        if len(item.value) != 2:
            raise item.expected("a whole number or a range [low, high]")
        first, last = (end.read(each) for each in item.items())
        if first > last:
            raise item.error(f"is a range from {first} down to {last}; put the lower end first")
        return first, last

    number = end.schema({})
    schema = {"anyOf": [number, {"type": "array", "items": number, "minItems": 2, "maxItems": 2}]}
    return simple(read, schema, (low, low), lambda ends: ends[0] if ends[0] == ends[1] else list(ends))


def list_of(
    each: Kind, at_least: int = 0, at_most: int | None = None, noun: str = "items", unique: bool = False
) -> Kind:
    """A list of values of one kind. ``noun``: what they are, where there may be too many or one twice."""
    bounds = {"minItems": at_least, "maxItems": at_most, "uniqueItems": unique}
    said = {key: value for key, value in bounds.items() if value}

    def read(item: Item) -> tuple[Any, ...]:
        items = item.items(at_least=at_least)
        if at_most is not None and len(items) > at_most:
            raise item.error(f"has {len(items)} {noun}, more than {at_most}")
        return _each(items, each, noun if unique else None)

    return Kind(read, lambda defs: {"type": "array", "items": each.schema(defs), **said}, lambda item: ())


def one_or_many(each: Kind, at_least: int = 0) -> Kind:
    """A list of values of one kind, or one such value alone; written as a list."""
    many = list_of(each, at_least)
    return Kind(
        lambda item: _each(item.one_or_many(at_least=at_least), each),
        lambda defs: {"anyOf": [each.schema(defs), many.schema(defs)]},
        many.blank,
        writes=lambda values: len(values) >= at_least,
    )


def _each(items: Sequence[Item], kind: Kind, unique: str | None = None) -> tuple[Any, ...]:
    """The value of each item, a blank for what cannot be read, so that indices stay. ``unique``: noun of what is."""
    gather, values, seen = Gather(), list[Any](), set[Any]()
    for item in items:
        value = gather.one(item, kind.read, UNREAD)
        if unique and value is not UNREAD:
            if value in seen:
                gather.note(ContentError(f"{unique} {value} is listed twice", item.where), item.path)
            seen.add(value)
        values.append(kind.blank(item) if value is UNREAD else value)
    return gather.done(tuple(value for value in values if value is not None))


def map_of(each: Kind, noun: str = "", pattern: str = "", at_most: int = 0, example: str = "") -> Kind:
    """A mapping whose keys are the user's own names. ``noun``: what has such a name, of which there may be ``at_most``;
    ``example``: of one entry, where there must be one."""
    bounds = {"propertyNames": pattern and {"pattern": f"^{pattern}$"}, "minProperties": bool(example) + 0}
    said = {key: value for key, value in {**bounds, "maxProperties": at_most}.items() if value}

    def read(item: Item) -> dict[str, Any]:
        entries = item.entries()
        if example and not entries:
            raise item.error(f"needs at least one {noun}, as in '{example}'")
        if at_most and len(entries) > at_most:
            raise item.error(f"has {len(entries)} {noun}s, more than {at_most}")
        gather, values = Gather(), dict[str, Any]()
        for name, one in entries.items():
            if pattern and not re.fullmatch(pattern, name):
                wrong = f"{noun} '{one_line(name, 60)}' does not fit the form {pattern}"
                gather.note(ContentError(wrong, one.where_key), one.path)
            value = gather.one(one, each.read, UNREAD)
            values[name] = each.blank(one) if value is UNREAD else value
        return gather.done(values)

    return Kind(read, lambda defs: {"type": "object", "additionalProperties": each.schema(defs), **said})


def nullable(other: Kind) -> Kind:
    """A value of some kind, or null, which is a value of its own."""
    return Kind(
        lambda item: None if item.is_null else other.read(item),
        lambda defs: {"anyOf": [{"type": "null"}, other.schema(defs)]},
        writes=lambda value: True,
    )
