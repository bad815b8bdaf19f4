"""Parts that other distributions add by entry points of the groups ``specdebug.<kind>``: targets, oracles and so on.

What a part must be stands where its kind is defined. Nothing is imported before it is asked for by name.
"""

import importlib
import importlib.metadata
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError, one_line

T = TypeVar("T")


LIMIT_S = 60.0  # seconds that the import of a plugin may take
_LOOK_S = 0.25


class PluginError(SpecDebugError):
    """A plugin cannot be imported, or is not what its group asks for."""


@cache
def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=f"specdebug.{kind}")}


def names(kind: str) -> tuple[str, ...]:
    """Names of all installed plugins of a kind, sorted."""
    return tuple(sorted(_entry_points(kind)))


def load(kind: str, name: str) -> Any:
    """Import a plugin. Raises KeyError when none has that name, PluginError when it cannot be imported."""
    point = _entry_points(kind)[name]
    whose = "" if point.dist is None else f" of distribution {point.dist.name} {point.dist.version}"
    with _blaming(f"plugin '{name}'{whose} cannot be imported from {point.value} (group specdebug.{kind})"):
        return point.load()


def import_named(reference: str, purpose: str) -> Any:
    """The object that ``module:name`` names. Raises PluginError when there is none."""
    module, _, name = reference.partition(":")
    what = f"{purpose} cannot be loaded from {reference}"
    try:
        with nullcontext() if module.startswith("specdebug.") else _blaming(what):
            return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{what}: {error}") from error


class _Leaves(BaseException):
    """Foreign code would end the process, or does not come to an end: ``str`` says which."""


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Turn whatever comes of importing foreign code into a PluginError: that it raises, ends the process, or does not
    come to an end. A signal from the user stays one."""
    try:
        with _staying():
            yield
    except SystemExit as error:
        raise PluginError(f"{what}: it ends the process (SystemExit: {error.code})") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and interrupts.was_heard():
            raise
        kind = "" if isinstance(error, _Leaves) else f"{type(error).__name__}: "
        limit = 1000 if isinstance(error, _Leaves) else 120  # the place at its end is a path and a line
        raise PluginError(f"{what}: {kind}{one_line(str(error), limit)}") from error


@contextmanager
def _staying() -> Iterator[None]:
    """Raise _Leaves in the main thread where code calls ``os._exit``, or has not ended after :data:`LIMIT_S`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    until, pid, leave = time.monotonic() + LIMIT_S, os.getpid(), os._exit

    def look(number: int, frame: FrameType | None) -> None:
        if interrupts.was_heard():
            raise KeyboardInterrupt
        if time.monotonic() > until:
            place = "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
            raise _Leaves(f"it has not ended after {LIMIT_S:g} s, at {place}")

    def stay(status: int) -> NoReturn:
        if os.getpid() == pid and threading.current_thread() is threading.main_thread():
            raise _Leaves(f"it ends the process (os._exit: {status})")
        leave(status)

    before = signal.signal(signal.SIGALRM, look)
    left, every = signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    os._exit = stay
    try:
        yield
    finally:
        os._exit = leave
        signal.setitimer(signal.ITIMER_REAL, left, every)
        signal.signal(signal.SIGALRM, before)


class PluginRegistry(Mapping[str, T], Generic[T]):
    """The parts of one kind by name: ``ours``, then those of installed packages, of the group ``specdebug.<kind>``.

    To look up one of ours reads nothing of the installed packages; to go through all of them does. ``called``: a part,
    as messages have it with its article. ``fits``: tells whether an object that an entry point leads to is such a part.
    """

    def __init__(self, kind: str, called: str, fits: Callable[[Any], bool], ours: Mapping[str, T]) -> None:
        self.kind = kind
        self._called = called
        self._fits = fits
        self._ours = ours

    @property
    def shipped(self) -> tuple[str, ...]:
        """Names of those that come with this package."""
        return tuple(self._ours)

    def __getitem__(self, name: str) -> T:
        """Raises KeyError for a name that no part has, PluginError for a plugin that cannot be used."""
        if name in self._ours:
            return self._ours[name]
        part: T = load(self.kind, name)
        who = f"plugin '{name}' of group specdebug.{self.kind}"
        if not self._fits(part):
            raise PluginError(f"{who} must be {self._called}, not {type(part).__name__}")
        if (own := getattr(part, "name", name)) != name:
            raise PluginError(f"{who} names itself '{own}'; the entry point and the part must have one name")
        return part

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._ours, *names(self.kind))))

    def __len__(self) -> int:
        return len(list(iter(self)))


def forget() -> None:
    """Look again for what is installed, at the next question."""
    _entry_points.cache_clear()
