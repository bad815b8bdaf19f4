"""Typed look-ups in a checkpoint's ``config.json``, and what every decoder's config has to say alike."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from specdebug.base.errors import CheckpointError, ContentError
from specdebug.base.schema import Item
from specdebug.base.yamlio import plain_doc

T = TypeVar("T")

MAX_SIZE = 2**31 - 1
"""The largest whole number in a config: no model is near it, and products of three fit the integers torch counts in."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
shown = _REPR.repr
"""A value of a config in a message, cut short: a file may hold one of any length and depth."""


class Keys:
    """Typed look-ups in one JSON object; a null counts as absent, as transformers reads it."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def error(self, message: str) -> CheckpointError:
        """An error that names the file."""
        return CheckpointError(f"{self.where}: {message}")

    def _read(self, key: str, default: Any, reader: Callable[[Item], T]) -> T:
        """A value, by a reader of the kit that scenarios are read with (``base/schema.py``)."""
        value = self.data.get(key)
        value = default if value is None else value
        if value is None:
            raise self.error(f"{key} is missing")
        try:
            return reader(Item(_CONFIG, (key,), value))
        except ContentError as error:
            raise self.error(f"{key} {error.reason}") from None

    def positive_int(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 to ``MAX_SIZE``. Raises CheckpointError for anything else, as the others do."""
        return self._read(key, default, lambda item: item.integer(low=1, high=MAX_SIZE))

    def positive_float(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        return self._read(key, default, _positive)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        return self._read(key, default, Item.boolean)

    def section(self, key: str) -> dict[str, Any]:
        """An object within the object, empty if absent."""
        return self._read(key, {}, lambda item: {name: each.value for name, each in item.entries().items()})


_CONFIG = plain_doc(None, "config.json")


def _positive(item: Item) -> float:
    value = item.number(low=0)
    if value == 0:
        raise item.expected("above 0")
    return value


def architecture_of(data: Mapping[str, Any]) -> str:
    """The one name in ``architectures``, or nothing when that key holds anything else."""
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str) else ""


def refuse_the_unsupported(keys: Keys) -> None:
    """Raise for a config that would load without complaint and then compute something else."""
    data = keys.data
    if data.get("hidden_act", "silu") != "silu":
        raise keys.error(f"hidden_act {shown(data['hidden_act'])} is not supported, only 'silu'")
    if data.get("mlp_bias"):
        raise keys.error("mlp_bias true is not supported; no published Llama uses it")
    if data.get("quantization_config"):
        raise keys.error("the weights are quantised; dequantise them to bf16, fp16 or fp32 first")
    # Qwen2 writes a window width and switches it off beside it
    if data.get("sliding_window") and data.get("use_sliding_window", True):
        raise keys.error(f"sliding_window {shown(data['sliding_window'])} is not supported, only full attention")


def eos_token_ids_of(keys: Keys) -> tuple[int, ...]:
    """The ids that end a text: none, one or several."""
    value = keys.data.get("eos_token_id")
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(type(i) is int and 0 <= i <= MAX_SIZE for i in ids):
        raise keys.error(f"eos_token_id must be a token id or a list of them, not {shown(value)}")
    return tuple(ids)
