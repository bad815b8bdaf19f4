"""Functions of an engine wrapped where they are. A look at an engine that fails, as of an attribute that a release has
renamed, is off for good, and told with its place in our code. The engine's own exceptions, and a lost device, go on."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

import specdebug
from specdebug.async_probe import parse_message
from specdebug.targets.requests import Lost

_T = TypeVar("_T")
Call = Callable[..., Any]
"""A function of the engine's, to call."""
Tap = Callable[..., Any]
"""Takes the call of the engine's to make, and what that function got."""
_ROOT = str(Path(specdebug.__file__).parent)  # where it was imported from, links not followed


LOST: list[Lost] = []
"""The looks of this process that are off, and stand-ins that have no place."""


class EngineLook:
    """One way of looking at an engine, in words that follow "cannot look at", as ``the books of the pools``."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.off = False

    def lose(self, error: Exception) -> None:
        """Turn it off, and tell why, once."""
        if not self.off:
            self.off = True
            tell_lost(self.what, error)

    def attempt(self, act: Callable[[], _T], otherwise: _T) -> _T:
        """Return the result of an act of ours; ``otherwise`` once it fails, and from then on."""
        if self.off:
            return otherwise
        try:
            return act()
        except Exception as error:
            if engines_own(error):
                raise
            self.lose(error)
            return otherwise


class _Made:
    """The engine's function, for a tap to call; what came of it is kept."""

    def __init__(self, function: Call) -> None:
        self._function = function
        self.made = False
        self.answer: Any = None
        self.raised: BaseException | None = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.made = True
        try:
            self.answer = self._function(*args, **named)
        except BaseException as error:
            self.raised = error
            raise
        return self.answer


def _through(look: EngineLook, tap: Tap, function: Call, args: Sequence[Any], named: Any, *, bound: int) -> Any:
    """Call a tap in the place of the engine's ``function``: with the call to make, which has the first ``bound``
    arguments already, and with what the function got. Where the look is off, or now fails, the answer is the engine's
    alone."""
    if look.off:
        return function(*args, **named)
    call = _Made(functools.partial(function, *args[:bound]))
    try:
        return tap(call, *args, **named)
    except Exception as error:
        if call.raised is error or engines_own(error):
            raise
        if call.raised is not None:  # ours failed over it
            raise call.raised from None
        look.lose(error)
    return call.answer if call.made else function(*args, **named)


def wrap_method(owner: Any, name: str, tap: Tap, look: EngineLook, *, bound: int = 1) -> None:
    """Have ``tap`` called in the place of a method of a class, or of a function of a module: with the call to make
    first, which has the first argument already, then with what the function got. ``bound=0``: of a method of one
    object, which the call needs no more. Raises AttributeError where there is none."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **named: Any) -> Any:
        return _through(look, tap, function, args, named, bound=bound)

    setattr(owner, name, wrapped)


def after(bound: int) -> Callable[[Call], Tap]:
    """Decorate a tap, a method, that only looks at what a function answered: it gets that in the place of the call to
    make, and then what the function got. ``bound``: as of :func:`wrap_method`."""

    def decorate(tell: Call) -> Tap:
        @functools.wraps(tell)
        def tap(self: Any, call: Call, *args: Any, **named: Any) -> Any:
            answer = call(*args[bound:], **named)
            tell(self, answer, *args, **named)
            return answer

        return tap

    return decorate


def wrap_all(tapped: Iterable[tuple[Any, str, Tap]], look: EngineLook) -> None:
    """Wrap each: a class or a module, the name of its function, and the tap. Raises AttributeError."""
    for owner, name, tap in tapped:
        wrap_method(owner, name, tap, look)


def tell_lost(what: str, error: Exception, *, stand_in: bool = False) -> None:
    """Note what cannot be looked at, or stood in for, why, and where in our code that shows."""
    told = " ".join(f"{type(error).__name__}: {error}".split())
    LOST.append(Lost(what, told[:400], _place_of(error), stand_in))


def _place_of(error: BaseException) -> str:
    """``file:line`` of the innermost function of ours that an exception passed; empty where there is none."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith(_ROOT)]
    return f"specdebug{frames[-1].filename.removeprefix(_ROOT)}:{frames[-1].lineno}" if frames else ""


def engines_own(error: Exception) -> bool:
    """Return True for what a tap raises on purpose, an asserting probe's finding, and for a lost device."""
    return parse_message(str(error)) is not None or isinstance(error, torch.AcceleratorError)
