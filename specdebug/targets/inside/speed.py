"""How an engine runs fast enough on a CPU: Triton's interpreter without what it does anew at every step of a kernel,
and throws away. What a kernel computes, loads and stores stays the interpreter's."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any


def interpret_fast() -> list[str]:
    """Have each of these left out or remembered; returns the names of what was replaced."""
    return [prepare_once(), leave_overflow(), remember_dtypes(), type_tuples_when_asked()]


def prepare_once() -> str:
    """Have the modules of ``triton.language`` that a kernel sees prepared once.

    The interpreter puts its own functions there before a kernel runs, and takes them out after; with a kernel that
    calls another, once more for each program. In these processes every kernel is interpreted, so they may stay."""
    from triton import language
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang
    prepared: set[int] = set()

    def patch_lang(fn: Any) -> Any:
        seen = {id(value) for value in fn.__globals__.values() if value is language or value is language.core}
        if not seen or not seen <= prepared:
            prepare(fn)  # which says where a kernel sees none
            prepared.update(seen)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_lang
    return "triton.runtime.interpreter._patch_lang"


def leave_overflow() -> str:
    """Have integer sums, differences and products computed once. Each is computed again in 64 bits and compared, for
    an assertion that only ``debug`` makes; with that it is left as it is."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=builder.options.debug)
    return "triton.runtime.interpreter.interpreter_builder.options"


def remember_dtypes() -> str:
    """Have NumPy's dtype of a type looked up by its elements' type, and not in a table that each look-up makes."""
    from triton.runtime import interpreter

    look_up = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def get_np_dtype(tt_dtype: Any) -> Any:
        name = tt_dtype.scalar.name
        if name not in known:
            known[name] = look_up(tt_dtype)
        return known[name]

    interpreter._get_np_dtype = get_np_dtype
    return "triton.runtime.interpreter._get_np_dtype"


def type_tuples_when_asked() -> str:
    """Have the type of a tuple worked out when it is asked for. Every tensor has two tuples, its shape and its type's,
    and no caller asks."""
    from triton.language import core

    begin = core.tuple.__init__

    def init(self: Any, args: Any, type: Any = None) -> None:
        if type is None:
            self.values = [*args]
        else:
            begin(self, args, type)

    def get(self: Any) -> Any:
        if "type" not in vars(self):
            vars(self)["type"] = core._type_for_tuple_values(self.values)
        return vars(self)["type"]

    def put(self: Any, given: Any) -> None:
        vars(self)["type"] = given

    core.tuple.__init__, core.tuple.type = init, property(get, put)
    return "triton.language.core.tuple.type"
