"""A small kit to check loaded YAML: an ``Item`` is one value that knows its name and its place in the file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from specdebug.base.errors import ContentError, ContentErrors, Where, did_you_mean, raise_all
from specdebug.base.plugins import PluginError
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
            raise self.error(f"cannot be '{one_line(self.value, 60)}'{did_you_mean(self.value, choices)}")
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
    """Reads a mapping or a list part by part and keeps what is wrong with each, so that no error hides another. A part
    that cannot be read gives its default, or what its own ``Gather`` could read of it."""

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
        except ContentError as error:
            self.note(error, item.path)
            partial: T | None = error.partial if isinstance(error, ContentErrors) else None
            return default if partial is None else partial

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
    return not (low is not None and value < low) and not (high is not None and value > high)  # NaN is told by another


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return "" if high is None else f" of at most {high}"
    return f" of at least {low}" if high is None else f" from {low} to {high}"


Schema = dict[str, Any]
UNREAD: Any = object()  # in the place of a value that is not there or cannot be read, until something better is known


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
TEXT = simple(Item.text, {"type": "string", "pattern": r"\S"}, "")  # a string that is not blank
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


@dataclass(frozen=True)
class Key:
    """A key of the file, for a field. ``name``: where it is not the field's. ``default``: in words, where the class has
    none (see :meth:`Part.given`), or None, to show. ``required``: in the file, although the class has a default.
    The others are known once declared; ``means``: in words, ``bare``: the class has no default for the field."""

    name: str = ""
    default: str = ""
    required: bool = False
    kind: Kind = TEXT
    means: str = ""
    field: str = ""
    bare: bool = False


_KEYS: dict[type[Part], tuple[Key, ...]] = {}


def keys_of(part: type[Part]) -> tuple[Key, ...]:
    """The keys of a part, in order; a field that declares no kind is none of the file's."""
    if part in _KEYS:
        return _KEYS[part]
    hints, found = get_type_hints(part, include_extras=True), list[Key]()
    for each in fields(part):
        kind, means, key = (*getattr(hints[each.name], "__metadata__", ()), Key(), None, None)[:3]
        if isinstance(kind, Kind):
            bare = each.default is MISSING and each.default_factory is MISSING
            required = key.required or (bare and not key.default)
            found.append(Key(key.name or each.name, key.default, required, kind, means, each.name, bare))
    _KEYS[part] = tuple(found)
    return _KEYS[part]


@dataclass(frozen=True)
class Part:
    """A mapping of the grammar, as a value."""

    schema_beside: ClassVar[Schema] = {}  # the part of the JSON schema that is not about single keys
    written: ClassVar[tuple[str, ...]] = ()
    """Keys in the order in which a mapping is written, where that is not the declaration's; others follow."""

    @classmethod
    def given(cls, item: Item) -> dict[str, Any]:
        """Values of fields that follow from where the mapping stands, unless it says otherwise."""
        return {}

    @classmethod
    def settle(cls, item: Item, table: Mapping[str, Item], values: dict[str, Any], gather: Gather) -> None:
        """Note what is wrong with keys that do not go together, and change ``values`` that follow from others."""

    @classmethod
    def read(cls, item: Item, base: Self | None = None, also: tuple[str, ...] = ()) -> Self:
        """The part that a mapping describes. ``base`` holds for keys that it lacks; it may have the keys ``also``, for
        another. Raises ContentErrors with all that is wrong, and what could be read."""
        gather, keys = Gather(), keys_of(cls)
        required, optional = ([key.name for key in keys if key.required is needed] for needed in (True, False))
        table = gather.table(item, required=required, optional=(*optional, *also))
        values = cls.given(item) if base is None else dict(vars(base))
        for key in keys:
            value = gather.read(table, key.name, key.kind.read, UNREAD)
            if value is not UNREAD:
                values[key.field] = value
        cls.settle(item, table, values, gather)
        return gather.done(cls._filled(item, values))

    @classmethod
    def blank(cls, item: Item) -> Self:
        """The stand-in for a part that could not be read at ``item``."""
        return cls._filled(item, cls.given(item))

    @classmethod
    def _filled(cls, item: Item, values: Mapping[str, Any]) -> Self:
        blanks = {key.field: key.kind.blank(item) for key in keys_of(cls) if key.bare and key.field not in values}
        return cls(**blanks, **values)

    def to_dict(self) -> dict[str, Any]:
        """The part as the file has it, every default written out."""
        held = ((key, getattr(self, key.field)) for key in keys_of(type(self)))
        plain = {key.name: key.kind.plain(value) for key, value in held if key.kind.writes(value)}
        return {name: plain[name] for name in (*self.written, *plain) if name in plain}

    @classmethod
    def json_schema(cls) -> Schema:
        """JSON schema (draft 2020-12) of a file that is such a part, for editors that complete and check YAML."""
        defs: Schema = {}
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cls.table(defs), "$defs": defs}

    @classmethod
    def table(cls, defs: Schema, also: Mapping[str, Kind] = MappingProxyType({})) -> Schema:
        """The mapping as JSON schema. ``also``: keys that it may have besides."""
        keys = keys_of(cls)
        properties = {key.name: {**key.kind.schema(defs), "description": key.means} for key in keys}
        properties |= {name: kind.schema(defs) for name, kind in also.items()}
        required = [key.name for key in keys if key.required]
        head = {"title": cls.__name__, "type": "object", **({"required": required} if required else {})}
        return {**head, "properties": properties, "additionalProperties": False, **cls.schema_beside}


def nested(part: type[Part], null_is_empty: bool = False) -> Kind:
    """A part. ``null_is_empty``: a key without a value stands for a mapping without keys."""

    def read(item: Item) -> Any:
        return part.blank(item) if null_is_empty and item.is_null else part.read(item)

    def schema(defs: Schema) -> Schema:
        if part.__name__ not in defs:
            defs[part.__name__] = part.table(defs)
        ref = {"$ref": f"#/$defs/{part.__name__}"}
        return {"anyOf": [{"type": "null"}, ref]} if null_is_empty else ref

    return Kind(read, schema, part.blank)


def overlay(part: type[Part], base: str) -> Kind:
    """A part whose missing keys are as in the part of the same kind under the key ``base`` of the whole file."""

    def read(item: Item) -> Any:
        return part.read(item, Gather().read(item.doc.root.entries(), base, part.read, part()))

    return replace(nested(part), read=read)


def one_of(what: str, parts: Mapping[str, type[Part]], also: Mapping[str, Kind] = MappingProxyType({})) -> Kind:
    """One of several parts, told apart by a key that each requires. Any may have the keys ``also``, for others."""

    def read(item: Item) -> Any:
        entries = item.entries()
        for key, part in parts.items():
            if key in entries:
                return part.read(item, also=tuple(also))
        item.table(optional=(*parts, *also))  # names a misspelt key
        raise item.error(f"must be {what}")

    def schema(defs: Schema) -> Schema:
        return {"anyOf": [part.table(defs, also) for part in parts.values()]}

    return Kind(read, schema, next(iter(parts.values())).blank)
