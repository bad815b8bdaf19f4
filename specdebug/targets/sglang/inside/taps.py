"""Wrapping SGLang's functions: what is wrapped stays as it is, and is called by what is put before it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

Tapped = tuple[Any, str, Callable[..., Any]]
"""A class or a module, the name of its function, and the tap, which is called in its place: with the function, then its
arguments. The first of those, such as a method's ``self``, is the function's already."""


def tap_all(tapped: Iterable[Tapped]) -> None:
    """Put the taps in place. Raises AttributeError where an engine has no such function."""
    for owner, name, tap in tapped:
        _wrap(owner, name, tap)


def _wrap(owner: Any, name: str, tap: Callable[..., Any]) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **named: Any) -> Any:
        return tap(functools.partial(function, *args[:1]), *args, **named)

    setattr(owner, name, wrapped)
