"""A search takes the same path under every processor's instructions, BLAS kernels and thread counts."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specdebug.base.trial import Trial, TrialResult, trial_seed
from specdebug.campaign.trials.journal import Journal
from tools.portable import playable

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("path_of_search.py")

EVERYWHERE = "trials 556a4c7d0420da43 bits fc3c717f485095c0"
"""The script's digests, on every machine. Another search has others: then print them anew, after the table below has
shown that they are the same under every setting."""

NUMPY = importlib.import_module(f"numpy.{'_core' if np.__version__ >= '2' else 'core'}._multiarray_umath")
DISPATCHED = [str(name) for name in NUMPY.__cpu_dispatch__]
"""What this numpy has special code for, beyond its baseline; these names it lets one switch off."""
WITHOUT = {
    "all": "",
    "AVX2 at most": " ".join(name for name in DISPATCHED if name.startswith("AVX512") or name == "X86_V4"),
    "baseline": " ".join(DISPATCHED),
}
Setting = dict[str, str]


def setting(core: str, threads: int, instructions: str) -> Setting:
    """The environment in which OpenBLAS takes the kernels of a processor, and numpy has certain instructions."""
    chosen = {"OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    chosen |= {"OPENBLAS_CORETYPE": core} if playable(core) else {}
    return chosen | {"NPY_DISABLE_CPU_FEATURES": WITHOUT[instructions]}


def digests(settings: list[Setting]) -> list[str]:
    """What the script prints under each, all at once."""
    children = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "--digest"],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | one,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for one in settings
    ]
    printed = []
    for child in children:
        out, err = child.communicate(timeout=300)
        assert child.returncode == 0, err
        printed.append(out.strip())
    return printed


def test_three_settings_choose_the_same_trials() -> None:
    """A processor of today, an old one, and two threads; the table below has the rest."""
    settings = [
        setting("Haswell", 1, "AVX2 at most"),
        setting("Prescott", 1, "baseline"),
        setting("SkylakeX", 2, "all"),  # its own, where it has no kernels for that one
    ]
    assert digests(settings) == [EVERYWHERE] * 3


@pytest.mark.slow
@pytest.mark.parametrize("instructions", WITHOUT)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_setting_chooses_the_same_trials(threads: int, instructions: str) -> None:
    cores = ("Haswell", "Zen", "SkylakeX", "Sandybridge", "Prescott")
    found = digests([setting(core, threads, instructions) for core in cores])
    assert dict(zip(cores, found, strict=True)) == dict.fromkeys(cores, EVERYWHERE)


def printed(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)


def test_a_journal_is_followed(tmp_path: Path) -> None:
    outcomes = itertools.cycle([("fail", "exit:1"), ("pass", None), ("untestable", None)])
    with Journal(tmp_path / "j.sqlite", "id", "about") as journal:
        for number, names in enumerate(["abcd", "ab", "cd", "b"]):
            outcome, signature = next(outcomes)
            trial = Trial(number, frozenset(names), trial_seed(0, number))
            journal.record(trial, TrialResult(outcome, signature, 0.1))  # type: ignore[arg-type]
    lines = printed(str(tmp_path / "j.sqlite")).stdout.splitlines()
    assert len(lines) == 2 * 4 + 1 + 1
    assert lines[-1].startswith("trials ")
    same = {"candidates": list("abcd"), "trials": [["abcd", True], ["ab", False], ["cd", None], ["b", True]]}
    (tmp_path / "j.json").write_text(json.dumps(same), "utf-8")
    assert printed(str(tmp_path / "j.json"), "--digest").stdout.strip() == lines[-1]


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j.sqlite").write_text("no database", "utf-8")
    ended = printed(str(tmp_path / "j.sqlite"))
    assert ended.returncode == 2
    assert "cannot be read as a journal" in ended.stderr
