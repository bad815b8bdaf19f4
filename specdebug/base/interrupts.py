"""Signals that ask a command to end: one place that hears them, so that none loses what is known.

SIGINT, SIGTERM and SIGHUP mean the same. :func:`held` notes them without raising and a loop that waits calls
:func:`check`; outside of a hold the first raises KeyboardInterrupt at once, and once one was heard no other raises.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ALARM = signal.SIGALRM
AGAIN_S = 10.0
"""Seconds after which what was told to end, for its time was over, is told once more."""


class Interrupts:
    """The signals heard so far, ``count`` of them. The process has one; tests make their own."""

    def __init__(self) -> None:
        self.count = 0
        self._first: int | None = None
        self._raised = False
        self._holds = 0
        self._listens = False

    @property
    def exit_code(self) -> int:
        """128 and the number of the first signal; 130 where none was heard, as after a Ctrl-C."""
        return 128 + (signal.SIGINT if self._first is None else self._first)

    def heard(self, number: int, frame: FrameType | None = None) -> None:
        """Take in a signal. Raises KeyboardInterrupt for the first one unless signals are held."""
        self.count += 1
        if self._first in (None, ALARM):
            self._first = number
        if not self._holds and not self._raised:
            self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal was heard; a loop that waits for work calls this again and again."""
        if self._first is not None:
            self._raised = True
            raise KeyboardInterrupt

    def listen(self) -> None:
        """Hear signals for the rest of this process, in place of what Python does. For the main thread of a command.

        A signal that is ignored stays so: of a background job a SIGINT, under ``nohup`` a SIGHUP.
        """
        self._listens = True
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.heard)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Note signals without raising. At the end, one that was not taken notice of raises KeyboardInterrupt."""
        if self._listens:
            self.listen()  # again: an imported library (Ray is one) may have put handlers of its own in place
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if not self._holds and not self._raised:
            self.check()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Tell what is done meanwhile to end once so many seconds (above 0) are over, as a signal would; at the end
        that is forgotten, unless a signal came, too. For the main thread."""
        before, handler = (self.count, self._raised), signal.signal(ALARM, self.heard)
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(ALARM, handler)
            if self._first == ALARM:
                self._first, (self.count, self._raised) = None, before

    def last(self) -> None:
        """From now on nothing raises: all is said, the process is about to end."""
        self._holds += 1


_process = Interrupts()
listen, check, held, last = _process.listen, _process.check, _process.held, _process.last
heard, within = _process.heard, _process.within


def exit_code() -> int:
    """The exit code of a command that was interrupted."""
    return _process.exit_code


def was_heard() -> bool:
    """Return True if any signal has asked this process to end."""
    return _process.count > 0


class Patience:
    """The time to wait for what was told to end: over once one more signal comes than had come when the wait began."""

    def __init__(self, interrupts: Interrupts = _process) -> None:
        self._interrupts = interrupts
        self._before = interrupts.count

    @property
    def over(self) -> bool:
        return self._interrupts.count > self._before
