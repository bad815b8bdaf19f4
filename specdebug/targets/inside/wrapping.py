"""Functions of an engine wrapped where they are, so that no file of it is edited.

What a tap raises of its own ends its look, not the engine (``guard.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from specdebug.targets.inside.guard import EngineLook, Tap, through

Tapped = tuple[Any, str, Tap]
"""A class or a module, the name of its function, and the tap."""


def wrap_all(tapped: Iterable[Tapped], look: EngineLook) -> None:
    """Wrap each. Raises AttributeError where there is none."""
    for owner, name, tap in tapped:
        wrap_method(owner, name, tap, look)


def wrap_method(owner: Any, name: str, tap: Tap, look: EngineLook) -> None:
    """Have ``tap`` called in the place of a method of a class, or of a function of a module: with the call to make
    first, which has the first argument already, then with what the function got. Raises AttributeError where there is
    none."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **named: Any) -> Any:
        return through(look, tap, function, args, named, bound=1)

    setattr(owner, name, wrapped)


def wrap_bound(owner: Any, name: str, tap: Tap, look: EngineLook) -> None:
    """As :func:`wrap_method`, of one object: ``tap`` gets the call to make, and what the method got without its
    object."""
    function = getattr(owner, name)

    def wrapped(*args: Any, **named: Any) -> Any:
        return through(look, tap, function, args, named, bound=0)

    setattr(owner, name, wrapped)
