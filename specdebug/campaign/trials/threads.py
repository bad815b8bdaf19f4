"""A source whose trials each run in a thread: for work that is done by other processes."""

from __future__ import annotations

import contextlib
import queue
import threading
from abc import ABC, abstractmethod

from specdebug.base import interrupts
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.process import CommandStopped, Processes

_LOOK_S = 0.25
"""Seconds to wait without looking: a signal that comes just before the wait begins does not end it."""


class ThreadedSource(ABC):
    """Starts, waits and closes; what a trial does is up to :meth:`run`, which may start ``self.processes`` only."""

    rerun = 0  # a command's end is its verdict, however it came about

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._ended: queue.SimpleQueue[tuple[Trial, TrialResult | Exception]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.processes = Processes()

    @abstractmethod
    def run(self, trial: Trial) -> TrialResult:
        """Make one trial; called in a thread of its own. What it raises, :meth:`wait` raises."""

    def start(self, trial: Trial) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._work, args=(trial,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self) -> tuple[Trial, TrialResult]:
        while True:
            interrupts.check()
            with contextlib.suppress(queue.Empty):
                trial, result = self._ended.get(timeout=_LOOK_S)
                break
        if isinstance(result, Exception):
            raise result
        return trial, result

    def close(self) -> None:
        """Kill what runs, and wait until its threads have noticed, or until one more signal comes."""
        self.processes.close()
        patience = interrupts.Patience()
        for thread in self._threads:
            # Not alive if a Ctrl-C came while it was being started: it will find us closed.
            while thread.is_alive() and not patience.over:
                thread.join(_LOOK_S)

    def _work(self, trial: Trial) -> None:
        try:
            self._ended.put((trial, self.run(trial)))
        except CommandStopped:
            return
        except Exception as error:
            self._ended.put((trial, error))
