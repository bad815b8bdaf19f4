"""Parts of a grammar: frozen dataclasses whose fields say what their keys hold, and what that means.

The declaration of a field is all there is to say of its key, as in ``grammar.py``; reading, defaults, writing, the
JSON schema and the page of all keys follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self, get_type_hints

from specdebug.base.kinds import TEXT, UNREAD, Kind, Schema
from specdebug.base.schema import Gather, Item


@dataclass(frozen=True)
class Key:
    """A field's key beside its kind. ``name``: where it is not the field's. ``default``: in words, where the class has
    none (see :meth:`Part.given`), or None, to show. ``required``: in the file, although the class has a default."""

    name: str = ""
    default: str = ""
    required: bool = False


@dataclass(frozen=True)
class DeclaredKey(Key):
    """A key with all that was declared of it. ``means``: in words. ``bare``: the class has no default for the field."""

    kind: Kind = TEXT
    means: str = ""
    field: str = ""
    bare: bool = False


_KEYS: dict[type[Part], tuple[DeclaredKey, ...]] = {}


def keys_of(part: type[Part]) -> tuple[DeclaredKey, ...]:
    """The keys of a part, in order; a field that declares no kind is none of the file's."""
    if part in _KEYS:
        return _KEYS[part]
    hints, found = get_type_hints(part, include_extras=True), list[DeclaredKey]()
    for each in fields(part):
        kind, means, key = (*getattr(hints[each.name], "__metadata__", ()), Key(), None, None)[:3]
        if isinstance(kind, Kind):
            bare = each.default is MISSING and each.default_factory is MISSING
            required = key.required or (bare and not key.default)
            found.append(DeclaredKey(key.name or each.name, key.default, required, kind, means, each.name, bare))
    _KEYS[part] = tuple(found)
    return _KEYS[part]


@dataclass(frozen=True)
class Part:
    """A mapping of the grammar, as a value."""

    schema_beside: ClassVar[Schema] = {}
    """The part of the JSON schema that is not about single keys."""
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
