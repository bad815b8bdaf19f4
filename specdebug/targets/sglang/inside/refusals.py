"""Work that a stand-in for a kernel does not do is refused by name, and never left out.

A refusal is a fact about the stand-in: the harness is told, and what the engine does then is not judged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from specdebug.targets.inside.guard import tell_lost


def refusal(kernel: str, lacks: str) -> NotImplementedError:
    """The error of a stand-in that was asked for what it ``lacks``; the harness is told of it."""
    error = NotImplementedError(f"specdebug's stand-in for {kernel} has no {lacks}")
    tell_lost(f"{kernel} in torch", error, stand_in=True)
    return error


def refusing(kernel: str) -> Callable[..., None]:
    """A function in the place of a kernel that has no stand-in."""

    def call(*_: Any, **__: Any) -> None:
        raise refusal("sgl_kernel", kernel)

    return call


def refuse(kernel: str, given: dict[str, Any], **neutral: tuple[Any, ...]) -> None:
    """Raise NotImplementedError where a kernel is given an argument that is none of the ``neutral`` values, of those
    that have any; an argument that it is not given has the first."""
    for name, values in neutral.items():
        value = given.get(name, values[0])
        if not any(value is each or (not isinstance(value, Tensor) and value == each) for each in values):
            raise refusal(kernel, f"{name}, and was given {value!r}")


@contextlib.contextmanager
def ours(what: str) -> Iterator[None]:
    """Code of a stand-in that reads SGLang's parts and calls none of it: what it raises is told to be ours."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        tell_lost(what, error, stand_in=True)
        raise
