"""The patched text of one function, for compilers that read source: triton's and TorchScript's."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any


@dataclass(frozen=True)
class FunctionText:
    """The text of a function after the edits: ``lines`` from line ``start`` on, and its ``counters``."""

    lines: Sequence[str]
    start: int
    counters: tuple[int, ...]


@contextmanager
def reading(function: FunctionType, text: FunctionText) -> Iterator[None]:
    """Let ``inspect`` find the patched text of one function, which is how both read it."""
    real = inspect.getsourcelines

    def patched(thing: Any) -> tuple[list[str], int]:
        return ([line + "\n" for line in text.lines], text.start) if thing is function else real(thing)

    inspect.getsourcelines = patched  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getsourcelines = real
