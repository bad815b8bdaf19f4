"""The last words of a process that C++ code ends.

A destructor of C++ must not throw. One of torch's does: pinned memory that was copied from asks the device for an event
when it is dropped, and a device that is lost has none to give. C++ then ends the process by ``std::terminate`` where it
stands. No exception reaches Python, nothing is unwound, and what had been found and not yet told would be lost.
"""

from __future__ import annotations

import ctypes
import gc
import traceback
from collections.abc import Callable
from typing import Any

_LIBRARY = "libstdc++.so.6"
_SET_TERMINATE = "_ZSt13set_terminatePFvvE"
_Handler = ctypes.CFUNCTYPE(None)
_arranged: list[Any] = []
"""The handlers that C++ may call: it keeps their addresses, and nothing alive."""


def before_termination(say: Callable[[], None]) -> Callable[[], None]:
    """Have ``say`` called if C++ code ends this process, before it aborts as it would have; returns what undoes this.

    ``say`` runs in the thread that C++ gave up in, perhaps with locks of torch held: it must ask the device for
    nothing. Where C++'s own library is not GNU's, nothing is arranged.
    """
    try:
        set_terminate = getattr(ctypes.CDLL(_LIBRARY), _SET_TERMINATE)
    except (OSError, AttributeError):
        return lambda: None
    set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p
    last = _LastWords(say)
    handler = _Handler(last.speak)
    _arranged.append(handler)
    last.previous = set_terminate(ctypes.cast(handler, ctypes.c_void_p))

    def undo() -> None:
        set_terminate(last.previous)
        _arranged.remove(handler)

    return undo


class _LastWords:
    """What one handler does. ``previous``: the address of the handler before it."""

    previous: int | None = None

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._spoken = False

    def speak(self) -> None:
        """Say it once, whatever comes of that, and let the handler before this one end the process."""
        gc.disable()  # what it would destroy could throw again
        if not self._spoken:
            self._spoken = True
            try:
                self._say()
            except BaseException:
                traceback.print_exc()
        if self.previous:
            _Handler(self.previous)()
