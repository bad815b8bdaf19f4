"""Trials in threads: the thread that waits for them hears of signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Candidate
from specdebug.campaign.trials.command import ThreadedSource


class Blocked(ThreadedSource):
    """Its trial signals the process from its own thread once the main one waits, and passes long afterwards."""

    candidates: tuple[Candidate, ...] = ()
    identity = "blocked"

    def __init__(self) -> None:
        super().__init__(capacity=1)
        self.over = threading.Event()
        self.heard = False

    def run(self, trial: Trial) -> TrialResult:
        main = threading.main_thread().ident
        assert main is not None
        while sys._current_frames()[main].f_code is not ThreadedSource.wait.__code__:
            os.sched_yield()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        self.heard = self.over.wait(timeout=20)
        return TrialResult("pass", None, 0.0, "")


@pytest.fixture
def _sigterm_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_sigterm_interrupts")
def test_a_signal_that_does_not_wake_the_waiting_thread_is_heard_all_the_same() -> None:
    source = Blocked()
    source.start(Trial(0, frozenset(), 0))
    with pytest.raises(KeyboardInterrupt):
        source.wait()
    source.over.set()
    source.close()
    assert source.heard


def test_closing_does_not_wait_for_a_thread_that_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    source = Blocked()
    with pytest.raises(KeyboardInterrupt):
        source.start(Trial(0, frozenset(), 0))
    source.close()
