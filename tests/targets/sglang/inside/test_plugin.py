"""The entry point in a process that has no SGLang: it does nothing unasked, and ends what it cannot serve."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from specdebug.targets.inside import VARIABLE
from specdebug.targets.inside.words import facts_in
from specdebug.targets.sglang.inside.books import BOOKS
from specdebug.targets.sglang.inside.plugin import FAILED
from specdebug.targets.sglang.inside.probes import PROBES
from specdebug.targets.sglang.inside.tape import RECORDING

CALL = "from specdebug.targets.sglang.inside.plugin import register; register(); print('goes on')"


def called(wanted: str | None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    env |= {} if wanted is None else {VARIABLE: wanted}
    return subprocess.run([sys.executable, "-c", CALL], env=env, capture_output=True, text=True)


def test_nothing_is_done_unasked() -> None:
    for wanted in (None, "null", json.dumps({"device": "cuda"})):
        assert (called(wanted).stdout, called(wanted).returncode) == ("goes on\n", 0)


def test_a_process_whose_reverts_cannot_be_put_in_force_ends() -> None:
    done = called(json.dumps({"reverts": [{"pr": 1}], "sites": []}))
    assert done.returncode == FAILED
    assert done.stderr.endswith("specdebug inside: failed; this process ends\n")


def test_looks_and_stand_ins_that_have_no_place_are_told_and_the_process_goes_on() -> None:
    wanted = {"device": "cpu", "tape": "t", "shows": ["pools"], "probes": [{"glob": "*", "mode": "off", "kinds": []}]}
    done = called(json.dumps(wanted))  # there is no SGLang to put anything into
    assert (done.stdout, done.returncode) == ("goes on\n", 0)
    lost = [facts["lost"] for line in done.stderr.splitlines() if "lost" in (facts := facts_in(line))]
    assert {each["what"] for each in lost if not each["stand_in"]} == {BOOKS, PROBES, RECORDING}
    assert {"graphs", "attention by FlashInfer"} <= {each["what"] for each in lost if each["stand_in"]}
    assert {each["why"] for each in lost} == {"NoSeat: there is no SGLang here"}
