"""What the stand-ins for attention kernels read of the buffers that they are given, told before they run.

A kernel reads a row's part of ``kv_indices``; a stand-in in torch gathers more, and clamps it. So operations of a
stand-in are not looked at; it says what the kernel would read.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

from torch import Tensor

Read = tuple[str, Tensor, int]
"""An argument, what is read of it, and the row of the batch for which."""
Listener = Callable[[str, Iterator[Read], Callable[[], Any]], Any]
"""Takes a kernel's name and its reads, and calls the stand-in, whose answer it returns."""
_Call = TypeVar("_Call", bound=Callable[..., Any])
_listeners: list[Listener] = []


def on_kernel(listener: Listener) -> None:
    """Have a listener call every stand-in from now on; of several the last."""
    _listeners.append(listener)


def reads_like_a_kernel(reads: Callable[..., Iterator[Read]], name: str = "") -> Callable[[_Call], _Call]:
    """Decorate a stand-in. ``reads``: what the kernel reads, by the arguments of the stand-in; ``name``: the kernel's,
    if it is not the stand-in's."""

    def decorate(stand_in: Any) -> Any:
        known = inspect.signature(stand_in)

        @functools.wraps(stand_in)
        def call(*args: Any, **named: Any) -> Any:
            if not _listeners:
                return stand_in(*args, **named)
            reading = reads(known.bind(*args, **named).arguments)
            return _listeners[-1](name or stand_in.__name__, reading, lambda: stand_in(*args, **named))

        return call

    return decorate


def rows_of(argument: str, flat: Tensor, ends: list[int]) -> Iterator[Read]:
    """The parts ``flat[ends[b] : ends[b + 1]]`` of a batch's rows."""
    for row, (start, stop) in enumerate(pairwise(ends)):
        if start < stop:
            yield argument, flat[start:stop], row
