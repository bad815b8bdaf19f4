"""Kinds whose values are declared elsewhere: faults by their catalogue, engine options by the engine's config."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, get_args

from specdebug.faults.catalogue import CLASSES
from specdebug.faults.declare import BOUNDS, read_fault
from specdebug.faults.model import Fault, FaultClass
from specdebug.scenario.kinds import Flag, Kind, Real, Schema, Text, Whole, WholeOrRange
from specdebug.schema import Item

_ADDRESS: dict[str, Kind] = {
    "request": Text(),
    "probability": Real(0, 1, above=True),
    **{key: Whole(low, high) for key, (low, high) in BOUNDS.items()},
    "step": WholeOrRange(Whole(*BOUNDS["step"])),
}
_PLAIN: dict[Any, Schema] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: Flag().schema({}),
    str: {"type": "string"},
    type(None): {"type": "null"},
}


@dataclass(frozen=True)
class FaultItem(Kind):
    """A fault of the catalogue, addressed by the keys of its class."""

    def read(self, item: Item) -> Fault:
        return read_fault(item)

    def schema(self, defs: Schema) -> Schema:
        return {"oneOf": [_fault(kind, defs) for kind in CLASSES.values()]}


@dataclass(frozen=True)
class EngineOptions(Kind):
    """Options of an engine: any mapping, because the engine that an arm names checks them, arm by arm.

    The schema has those of the embedded engine.
    """

    def read(self, item: Item) -> dict[str, Any]:
        item.entries()
        options: dict[str, Any] = item.value
        return options

    def schema(self, defs: Schema) -> Schema:
        from specdebug.engine.config import EngineConfig  # here, because a worker patches the engine before it loads

        defs.setdefault("Engine", _options(EngineConfig))
        return {"$ref": "#/$defs/Engine"}


def _fault(kind: FaultClass, defs: Schema) -> Schema:
    known = {**_ADDRESS, "site": Text(choices=kind.sites)}
    properties = {"fault": {"const": kind.name}, **{key: known[key].schema(defs) for key in kind.keys}}
    return {**_mapping(properties), "required": ["fault"], "description": kind.summary}


def _options(config: Any) -> Schema:
    """The mapping from which ``EngineConfig.from_dict`` builds a config: every key optional."""
    return _mapping({name: _option(hint) for name, hint in typing.get_type_hints(config).items()})


def _option(hint: Any) -> Schema:
    origin, args = typing.get_origin(hint), get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_option(each) for each in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _option(args[0])}
    return _options(hint) if dataclasses.is_dataclass(hint) else _PLAIN[hint]


def _mapping(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}
