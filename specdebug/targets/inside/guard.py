"""A look at an engine that fails ends itself, and leaves the engine alone.

Taps and readers are ours: an attribute that a release has renamed is a fact about them, and none about the engine.
Whatever they raise turns their look off for good, and is told with its place in our code; the engine's own exception
goes on its way. A lost device is the engine's loss, wherever it is noticed.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

import specdebug
from specdebug.async_probe import parse_message
from specdebug.targets.inside.words import tell

_T = TypeVar("_T")
Tap = Callable[..., Any]
"""Takes the call of the engine's to make, and what that function got."""
_ROOT = str(Path(specdebug.__file__).parent)  # where it was imported from, links not followed


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
            if _engines_own(error):
                raise
            self.lose(error)
            return otherwise


class _Call:
    """The engine's function, for a tap to call; what came of it is kept."""

    def __init__(self, function: Callable[..., Any]) -> None:
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


def through(
    look: EngineLook, tap: Tap, function: Callable[..., Any], args: Sequence[Any], named: Any, *, bound: int
) -> Any:
    """Call a tap in the place of the engine's ``function``: with the call to make, which has the first ``bound``
    arguments already, and with what the function got. Where the look is off, or now fails, the answer is the engine's
    alone."""
    if look.off:
        return function(*args, **named)
    call = _Call(functools.partial(function, *args[:bound]))
    try:
        return tap(call, *args, **named)
    except Exception as error:
        if call.raised is error or _engines_own(error):
            raise
        if call.raised is not None:  # ours failed over it
            raise call.raised from None
        look.lose(error)
    return call.answer if call.made else function(*args, **named)


def tell_lost(what: str, error: Exception, *, stand_in: bool = False) -> None:
    """Tell the harness what cannot be looked at, or stood in for, why, and where in our code that shows."""
    told = " ".join(f"{type(error).__name__}: {error}".split())
    tell(pid=os.getpid(), lost={"what": what, "why": told[:400], "place": place_of(error), "stand_in": stand_in})


def place_of(error: BaseException) -> str:
    """``file:line`` of the innermost function of ours that an exception passed; empty where there is none."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith(_ROOT)]
    if not frames:
        return ""
    return f"specdebug{frames[-1].filename.removeprefix(_ROOT)}:{frames[-1].lineno}"


def _engines_own(error: Exception) -> bool:
    """Return True for what a tap raises on purpose, an asserting probe's finding, and for a lost device."""
    return parse_message(str(error)) is not None or isinstance(error, torch.AcceleratorError)
