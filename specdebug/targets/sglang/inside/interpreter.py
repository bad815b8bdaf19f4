"""Triton's interpreter prepares ``triton.language`` once, and not for each launch and each call inside a kernel.

It puts its own functions there before a kernel runs, and takes them out after; with a kernel that calls another, once
more for each program. That takes a third of what is interpreted here. In these processes every kernel is interpreted,
so they may stay.
"""

from __future__ import annotations

from typing import Any


class Nothing:
    """What a launch takes back: nothing."""

    def restore(self) -> None:
        """Do nothing."""


def prepare_once() -> str:
    """Have the modules of ``triton.language`` that a kernel sees prepared once; returns the name of what was
    replaced."""
    from triton import language
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang
    prepared: set[int] = set()

    def patch_lang(fn: Any) -> Nothing:
        seen = {id(value) for value in fn.__globals__.values() if value is language or value is language.core}
        if not seen or not seen <= prepared:
            prepare(fn)  # which says where a kernel sees none
            prepared.update(seen)
        return Nothing()

    interpreter._patch_lang = patch_lang
    return "triton.runtime.interpreter._patch_lang"
