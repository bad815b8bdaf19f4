"""Kinds whose values are declared elsewhere: faults by their catalogue, engine options by the engine's config."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, get_args

from specdebug.base.kinds import TEXT, Kind, Schema, choice, real, span, whole
from specdebug.base.schema import Item
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.declare import BOUNDS, read_fault
from specdebug.faults.model import FaultClass

_PLAIN_TYPES: dict[Any, str] = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}


def _options_of(item: Item) -> dict[str, Any]:
    item.entries()
    options: dict[str, Any] = item.value
    return options


def _engine(defs: Schema) -> Schema:
    from specdebug.engine.config import EngineConfig  # here, because a worker patches the engine before it loads

    defs.setdefault("Engine", _config(EngineConfig))
    return {"$ref": "#/$defs/Engine"}


FAULT = Kind(read_fault, lambda defs: {"oneOf": [_fault(kind) for kind in CLASSES.values()]})
"""A fault of the catalogue, addressed by the keys of its class."""
ENGINE = Kind(_options_of, _engine)
"""Any mapping: the engine that an arm names checks the options. The schema has the embedded engine's."""


def _fault(kind: FaultClass) -> Schema:
    keys = {
        **{key: whole(*bounds) for key, bounds in BOUNDS.items()},
        "step": span(*BOUNDS["step"]),
        "request": TEXT,
        "probability": real(0, 1, above=True),
        **({"site": choice(*kind.sites)} if kind.sites else {}),
    }
    properties = {"fault": {"const": kind.name}, **{key: keys[key].schema({}) for key in kind.keys}}
    return {**_mapping(properties), "required": ["fault"], "description": kind.summary}


def _config(config: Any) -> Schema:
    """The mapping from which ``EngineConfig.from_dict`` builds a config: every key optional."""
    return _mapping({name: _option(hint) for name, hint in typing.get_type_hints(config, include_extras=True).items()})


def _option(hint: Any) -> Schema:
    from specdebug.engine.config import choices_of

    origin, args, choices = typing.get_origin(hint), get_args(hint), choices_of(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_option(each) for each in args]}
    if choices is not None:
        return {"enum": list(choices)}
    if origin is tuple:
        return {"type": "array", "items": _option(args[0])}
    return _config(hint) if dataclasses.is_dataclass(hint) else {"type": _PLAIN_TYPES[hint]}


def _mapping(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}
