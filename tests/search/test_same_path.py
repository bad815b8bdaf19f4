"""A search takes the same path under every processor's instructions, BLAS kernels and thread counts."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tools.portable import playable

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("path_of_search.py")

EVERYWHERE = "trials 556a4c7d0420da43 bits 95395519231b01ea"
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
