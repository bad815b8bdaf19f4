"""Functions of an engine wrapped where they are, so that no file of it is edited."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap_method(owner: Any, name: str, tap: Callable[..., Any]) -> None:
    """Have ``tap`` called in the place of a method of a class, or of a function of a module: with the call to make
    first, then with what the method got. Raises AttributeError where there is none."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **named: Any) -> Any:
        return tap(functools.partial(method, self), self, *args, **named)

    setattr(owner, name, wrapped)


def wrap_bound(owner: Any, name: str, tap: Callable[..., Any]) -> None:
    """As :func:`wrap_method`, of one object: ``tap`` gets the call to make, and what the method got without its
    object."""
    setattr(owner, name, functools.partial(tap, getattr(owner, name)))
