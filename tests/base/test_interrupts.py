"""Signals that ask a command to end."""

import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.base.interrupts import Interrupts, Patience

ASKED = st.lists(st.sampled_from([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]), min_size=1, max_size=6)


def test_the_first_signal_raises_and_no_other() -> None:
    ours = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        ours.heard(signal.SIGTERM)
    ours.heard(signal.SIGINT)
    ours.heard(signal.SIGTERM)
    assert (ours.exit_code, ours.count) == (143, 3)


@given(ASKED)
def test_while_signals_are_held_none_raises_until_somebody_looks(numbers: list[int]) -> None:
    ours = Interrupts()
    with ours.held():
        for number in numbers:
            ours.heard(number)
        with pytest.raises(KeyboardInterrupt):
            ours.check()
        ours.heard(signal.SIGINT)  # the report is written meanwhile
    assert ours.exit_code == 128 + numbers[0]
    with pytest.raises(KeyboardInterrupt):  # and nobody begins anything new
        ours.check()


def test_a_signal_that_nobody_looked_for_raises_at_the_end() -> None:
    ours = Interrupts()
    said = []

    @ours.held()
    def outer() -> None:
        inner()
        said.append("outer")

    @ours.held()
    def inner() -> None:
        ours.heard(signal.SIGHUP)
        said.append("inner")

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert said == ["inner", "outer"]
    assert ours.exit_code == 129


def wait_for_the_end(ours: Interrupts) -> None:
    """Work until it is told to end."""
    while not ours.count:
        pass
    with pytest.raises(KeyboardInterrupt):
        ours.check()


def test_what_takes_too_long_is_told_to_end_and_that_is_forgotten() -> None:
    ours = Interrupts()
    with ours.held():
        with ours.within(0.001):
            wait_for_the_end(ours)
            assert (ours.count, ours.exit_code) == (1, 128 + signal.SIGALRM)
        assert ours.count == 0
        ours.check()


def test_a_signal_that_comes_besides_is_not_forgotten() -> None:
    ours = Interrupts()
    with ours.held():
        with ours.within(0.001):
            wait_for_the_end(ours)
            ours.heard(signal.SIGTERM)
        assert (ours.count, ours.exit_code) == (2, 143)
        with pytest.raises(KeyboardInterrupt):
            ours.check()


def test_patience_is_over_with_one_more_signal() -> None:
    ours = Interrupts()
    with ours.held():
        ours.heard(signal.SIGINT)
        ours.heard(signal.SIGINT)
        patience = Patience(ours)
        assert not patience.over
        ours.heard(signal.SIGINT)
        assert patience.over
        with pytest.raises(KeyboardInterrupt):
            ours.check()


def test_what_was_ignored_stays_ignored_and_a_librarys_handler_does_not_stay() -> None:
    code = """
import os, signal
from specdebug.base import interrupts
signal.signal(signal.SIGHUP, signal.SIG_IGN)
interrupts.listen()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
try:
    with interrupts.held():
        os.kill(os.getpid(), signal.SIGHUP)
        interrupts.check()
        os.kill(os.getpid(), signal.SIGTERM)
        print("held")
except KeyboardInterrupt:
    print(interrupts.was_heard(), interrupts.exit_code())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.split() == ["held", "True", "143"], ended.stderr
