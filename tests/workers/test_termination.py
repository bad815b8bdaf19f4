"""The last words are heard when C++ code ends a process, which then ends as it would have."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from specdebug.workers.termination import before_termination

END = """
import ctypes
import gc
from specdebug.workers.termination import before_termination

def end():
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()

def say(word):
    print(word, flush=True)

"""


def ended(script: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a script that ends itself."""
    done = subprocess.run([sys.executable, "-c", END + script], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_the_last_words_are_heard_before_the_process_aborts() -> None:
    status, said, warned = ended("before_termination(lambda: say('found'))\nend()")
    assert (status, said) == (-signal.SIGABRT, "found\n")
    assert "terminate called" in warned, "C++'s own words stay"


@pytest.mark.parametrize("error", ["ValueError('odd')", "SystemExit(0)"])
def test_words_that_fail_keep_nothing_alive(error: str) -> None:
    status, said, warned = ended(f"def fail(): say('begun'); raise {error}\nbefore_termination(fail)\nend()")
    assert (status, said) == (-signal.SIGABRT, "begun\n")
    assert error.partition("(")[0] in warned


def test_words_over_which_c_plus_plus_gives_up_again_are_not_said_again() -> None:
    status, said, _ = ended("before_termination(lambda: (say('found'), end()))\nend()")
    assert (status, said) == (-signal.SIGABRT, "found\n")


def test_who_spoke_last_before_speaks_again_once_it_is_undone() -> None:
    script = "before_termination(lambda: say('first'))\nundo = before_termination(lambda: say('second'))\n"
    assert ended(script + "end()")[1] == "second\nfirst\n"
    assert ended(script + "undo()\nend()")[1] == "first\n"


def test_whoever_drops_what_undoes_it_is_heard_all_the_same() -> None:
    script = "class Speaker:\n    def speak(self): say('found')\nbefore_termination(Speaker().speak)\n"
    assert ended(f"{script}gc.collect()\n[object() for _ in range(10**5)]\nend()")[:2] == (-signal.SIGABRT, "found\n")


def test_another_c_plus_plus_library_arranges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdebug.workers.termination._LIBRARY", "libnone.so.1")
    before_termination(lambda: None)()
