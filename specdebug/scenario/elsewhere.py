"""Kinds whose values are declared elsewhere: faults by their catalogue, engine options by their target."""

from typing import Any

from specdebug.base.schema import TEXT, Item, Kind, Schema, choice, real, span, whole
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.declare import BOUNDS, read_fault
from specdebug.faults.model import FaultClass


def _options_of(item: Item) -> dict[str, Any]:
    item.entries()
    options: dict[str, Any] = item.value
    return options


def _engine(defs: Schema) -> Schema:
    from specdebug.targets.options import OURS  # here, because a worker patches the engine before it loads

    if "Engine" not in defs:
        defs["Engine"] = OURS.json_schema(defs)
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


def _mapping(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}
