"""JSON schema (draft 2020-12) of a scenario file, for editors that complete and check YAML while it is typed.

It says as much as a schema can: keys, types, ranges, which keys go together. The engine's part is derived
from ``EngineConfig``, the bounds are ``scenario_reader.BOUNDS``; a test keeps the rest in step with the
reader.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Annotated, Any, Literal, get_args

from specdebug.engine.config import EngineConfig, choices_of
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.declare import BOUNDS as FAULT_BOUNDS
from specdebug.faults.model import FaultClass
from specdebug.scenario.model import ProbeMode
from specdebug.scenario.reader import ABOVE_LOW, BOUNDS, LABEL, MAX_ARMS, MAX_FAULTS, MAX_GROUPS, NAME
from specdebug.scenario.workload import CORPORA
from specdebug.verdict.outcome import Verdict
from specdebug.verdict.signatures import SHAPE

Schema = dict[str, Any]

_PLAIN_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}
_LABEL = {"type": "string", "pattern": f"^{LABEL}$"}
_TEXT = {"type": "string", "pattern": r"\S"}
_BOOLEAN = {"type": "boolean"}


def json_schema() -> Schema:
    """The schema, ready for ``json.dumps``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specdebug scenario",
        **_table(
            {
                "name": {"type": "string", "pattern": f"^{NAME}$"},
                "description": {"type": "string"},
                "seed": _number("seed"),
                "engine": _ref("engine"),
                "workload": {"type": "array", "minItems": 1, "maxItems": MAX_GROUPS, "items": _ref("group")},
                "faults": _ref("faults"),
                "probes": _list_of(_TEXT),
                "oracles": _ref("oracles"),
                "limits": _limits(),
                "arms": {**_map_of(_ref("arm")), "minProperties": 1, "maxProperties": MAX_ARMS},
                "expect": {"type": "object", "additionalProperties": _ref("expectation")},
            },
            required=("name", "workload"),
        ),
        "$defs": {
            "engine": _dataclass(EngineConfig),
            "group": _group(),
            "prompt": {"anyOf": [*_simple_prompts({}), _shared_prefix()]},
            "oracles": _oracles(),
            "faults": {**_list_of({"oneOf": [_fault(kind) for kind in CLASSES.values()]}), "maxItems": MAX_FAULTS},
            "arm": _arm(),
            "expectation": _table(
                {
                    "verdict": {"enum": list(get_args(Verdict))},
                    "signature": _one_or_many({"type": "string", "pattern": SHAPE}, at_least=1),
                },
                required=("verdict",),
            ),
        },
    }


def _group() -> Schema:
    group = _table(
        {
            "id": _LABEL,
            "requests": _number("requests"),
            "prompt": _ref("prompt"),
            "turns": _table(
                {
                    "clients": _number("clients"),
                    "rounds": _number("rounds"),
                    "input_tokens": _span("tokens"),
                    "corpus": {"enum": list(CORPORA)},
                },
                required=("clients", "rounds", "input_tokens"),
            ),
            "max_new_tokens": _span("max_new_tokens"),
            "temperature": _number("temperature", "number"),
            "top_k": _number("top_k"),
            "top_p": _number("top_p", "number"),
            "stop_token_ids": _list_of(_number("token_id")),
            "seed": _number("seed"),
            "speculative": _BOOLEAN,
            "arrive": _table(
                {
                    "step": _number("steps"),
                    "every": _number("steps"),
                    "after": _one_or_many(_TEXT, at_least=0),
                    "jitter": _number("steps"),
                }
            ),
            "abort": _table(
                {
                    "after_steps": _number("steps"),
                    "requests": {**_list_of({"type": "integer", "minimum": 0}), "minItems": 1},
                },
                required=("after_steps",),
            ),
        }
    )
    not_with_turns = {"not": {"anyOf": [{"required": [key]} for key in ("prompt", "requests", "abort")]}}
    group["oneOf"] = [{"required": ["prompt"]}, {"required": ["turns"], **not_with_turns}]
    return group


def _simple_prompts(also: Schema) -> list[Schema]:
    """The three kinds of prompt, each with the keys of ``also`` allowed."""
    return [
        _table({"text": _TEXT, **also}, required=("text",)),
        _table({"token_ids": {**_list_of(_number("token_id")), "minItems": 1}, **also}, required=("token_ids",)),
        _table(
            {
                "corpus": {"enum": list(CORPORA)},
                "tokens": _span("tokens"),
                "offset": _number("offset"),
                **also,
            },
            required=("corpus", "tokens"),
        ),
    ]


def _shared_prefix() -> Schema:
    prefix, suffix = ({"anyOf": _simple_prompts(also)} for also in ({"name": _LABEL}, {}))
    return _table({"shared_prefix": prefix, "suffix": suffix}, required=("shared_prefix", "suffix"))


def _oracles() -> Schema:
    accept = _table({"min_ratio": _number("min_ratio", "number")}, required=("min_ratio",))
    return _table(
        {
            "lossless": _BOOLEAN,
            "draft_kv": _BOOLEAN,
            "pools": _BOOLEAN,
            "each_step": _BOOLEAN,
            "accept": {"anyOf": [{"type": "null"}, accept]},
        }
    )


def _fault(kind: FaultClass) -> Schema:
    step = _bounded(*FAULT_BOUNDS["step"])
    keys: dict[str, Schema] = {
        "step": {"anyOf": [step, {"type": "array", "items": step, "minItems": 2, "maxItems": 2}]},
        "request": _TEXT,
        "row": _bounded(*FAULT_BOUNDS["row"]),
        "site": {"enum": list(kind.sites)},
        "probability": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "times": _bounded(*FAULT_BOUNDS["times"]),
        "seed": _bounded(*FAULT_BOUNDS["seed"]),
    }
    known = {key: keys[key] for key in kind.keys}
    return {**_table({"fault": {"const": kind.name}, **known}, required=("fault",)), "description": kind.summary}


def _limits() -> Schema:
    return _table(
        {
            "timeout_s": _number("timeout_s", "number"),
            "max_steps": _number("max_steps"),
            "memory_mb": _number("memory_mb"),
        }
    )


def _arm() -> Schema:
    arm = _table(
        {
            "revert": {**_list_of(_number("pr")), "uniqueItems": True},
            "engine": _ref("engine"),
            "faults": _ref("faults"),
            "probes": _list_of(_TEXT),
            "mode": {"enum": list(get_args(ProbeMode))},
            "oracles": _ref("oracles"),
        }
    )
    return {"anyOf": [{"type": "null"}, arm]}


def _dataclass(cls: Any) -> Schema:
    """Schema of a mapping from which ``EngineConfig.from_dict`` builds ``cls``: every key optional."""
    return _table({name: _hint(hint) for name, hint in typing.get_type_hints(cls, include_extras=True).items()})


def _hint(hint: Any) -> Schema:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return {"anyOf": [_hint(option) for option in get_args(hint)]}
    if typing.get_origin(hint) in (Literal, Annotated):
        return {"enum": list(choices_of(hint))}
    if typing.get_origin(hint) is tuple:
        return _list_of(_hint(get_args(hint)[0]))
    if hint is type(None):
        return {"type": "null"}
    return _dataclass(hint) if dataclasses.is_dataclass(hint) else {"type": _PLAIN_TYPES[hint]}


def _table(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    table: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**table, "required": list(required)} if required else table


def _map_of(values: Schema) -> Schema:
    return {"type": "object", "propertyNames": {"pattern": f"^{LABEL}$"}, "additionalProperties": values}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one_or_many(item: Schema, at_least: int) -> Schema:
    return {"anyOf": [item, {**_list_of(item), "minItems": at_least}]}


def _bounded(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _number(bound: str, kind: str = "integer") -> Schema:
    low, high = BOUNDS[bound]
    lower = "exclusiveMinimum" if bound in ABOVE_LOW else "minimum"
    return {"type": kind, lower: low, "maximum": high}


def _span(bound: str) -> Schema:
    number = _number(bound)
    return {"anyOf": [number, {"type": "array", "items": number, "minItems": 2, "maxItems": 2}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}
