"""The entry point in a process that has no SGLang: it does nothing unasked, and ends what it cannot serve."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from specdebug.targets.inside import VARIABLE
from specdebug.targets.sglang.inside.plugin import FAILED

CALL = "from specdebug.targets.sglang.inside.plugin import register; register(); print('goes on')"


def called(wanted: str | None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    env |= {} if wanted is None else {VARIABLE: wanted}
    return subprocess.run([sys.executable, "-c", CALL], env=env, capture_output=True, text=True)


def test_nothing_is_done_unasked() -> None:
    for wanted in (None, "null", json.dumps({"device": "cuda"})):
        assert (called(wanted).stdout, called(wanted).returncode) == ("goes on\n", 0)


def test_a_process_in_which_it_fails_ends() -> None:
    done = called(json.dumps({"device": "cpu"}))  # there is no SGLang to put anything into
    assert done.returncode == FAILED
    assert "No module named 'sglang'" in done.stderr
    assert done.stderr.endswith("specdebug inside: failed; this process ends\n")
