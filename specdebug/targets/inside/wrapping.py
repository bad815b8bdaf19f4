"""Functions of an engine wrapped where they are, so that no file of it is edited."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

Tapped = tuple[Any, str, Callable[..., Any]]
"""A class or a module, the name of its function, and the tap."""


def wrap_all(tapped: Iterable[Tapped]) -> None:
    """Wrap each. Raises AttributeError where there is none."""
    for owner, name, tap in tapped:
        wrap_method(owner, name, tap)


def wrap_method(owner: Any, name: str, tap: Callable[..., Any]) -> None:
    """Have ``tap`` called in the place of a method of a class, or of a function of a module: with the call to make
    first, which has the first argument already, then with what the function got. Raises AttributeError where there is
    none."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **named: Any) -> Any:
        return tap(functools.partial(function, *args[:1]), *args, **named)

    setattr(owner, name, wrapped)


def wrap_bound(owner: Any, name: str, tap: Callable[..., Any]) -> None:
    """As :func:`wrap_method`, of one object: ``tap`` gets the call to make, and what the method got without its
    object."""
    setattr(owner, name, functools.partial(tap, getattr(owner, name)))
