"""Run the tests that depend on arithmetic as other processors would run them, and say how near they came to failing.

``python tools/portable.py`` (or ``make test-portable``) runs the numerical tests once under each setting below: torch's
kernels for older vector units, OpenBLAS's for other cores, MKL's and oneDNN's older code paths, numpy without its
vectorised loops, one thread and two, hypothesis with a new seed each time. The table says what each setting really
switched on, which a processor may refuse, how many tests passed, and which comparison of floats used the largest part
of its tolerance. The exit code is 1 when a test failed, when a comparison used more than ``TOO_NEAR`` of its tolerance,
or when searches took different paths under different settings.

``--short`` takes two settings (the machine's own is what the tests run under anyway) and the smallest set of tests, as
``.ci/run`` does; ``--settings N`` draws more settings than the fixed ones; paths after the options replace the set of
tests (``tests`` is the whole suite).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
MARGINS = "SPECDEBUG_TEST_MARGINS"
TOO_NEAR = 0.5
"""Share of a tolerance above which a comparison counts as failed: the next processor may round twice as badly."""

SEARCHES = ("tests/search",)
SHORT = (
    *SEARCHES,
    *(
        "tests/engine/textbook/attention/test_executor.py",
        "tests/engine/textbook/attention/test_executor.py",
        "tests/engine/model",
    ),
    *("tests/engine/textbook/test_sampler.py", "tests/reference"),
)
NUMERICAL = (
    *SEARCHES,
    *("tests/engine", "tests/reference", "tests/diverge", "tests/run/test_judge.py", "tests/base/test_assets.py"),
)
PATH_OF_SEARCH = "tests/search/path_of_search.py"

CPU = {"default": "default", "avx2": "avx2", "own": None}
NUMPY = {"own": "", "v3": "X86_V4 AVX512_ICL AVX512_SPR", "v2": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"}
"""Dispatched features that are switched off, by the level of x86-64 that is left; names of numpy 2.4 and later."""
NUMPY_BEFORE = {"own": "", "v3": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"}
NUMPY_BEFORE["v2"] = "FMA3 AVX2 " + NUMPY_BEFORE["v3"]
CORES = {"Haswell": "AVX2", "Zen": "AVX2", "SkylakeX": "AVX512F", "Sandybridge": "AVX", "Prescott": "SSE3"}
"""Cores whose kernels OpenBLAS has, and what these take: without it a processor ends the process (SIGILL)."""
MKL = ("", "COMPATIBLE", "AVX2")


@dataclass(frozen=True)
class Setting:
    """One processor to play. ``cpu``: torch's vector unit; ``core``: OpenBLAS's; ``mkl``: MKL's code path ("" its own);
    ``numpy``: level of x86-64 that numpy's loops may use; ``threads``: of each library."""

    cpu: str = "own"
    core: str = ""
    mkl: str = ""
    numpy: str = "own"
    threads: int = 1

    def environment(self, features: Mapping[str, str]) -> dict[str, str]:
        """Variables that play it; ``features`` is the table of numpy's names."""
        chosen = {
            "ATEN_CPU_CAPABILITY": CPU[self.cpu],
            "OPENBLAS_CORETYPE": self.core if playable(self.core) else "",
            "MKL_CBWR": self.mkl,
            "ONEDNN_MAX_CPU_ISA": {"default": "SSE41", "avx2": "AVX2"}.get(self.cpu),
            "NPY_DISABLE_CPU_FEATURES": features[self.numpy],
        }
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        return {name: value for name, value in chosen.items() if value} | dict.fromkeys(threads, str(self.threads))


def playable(core: str) -> bool:
    """Return True if this processor can run OpenBLAS's kernels for a core; names that are not known are OpenBLAS's to
    refuse."""
    from numpy._core import _multiarray_umath as umath

    return bool(umath.__cpu_features__.get(CORES.get(core, ""), True))


FIXED = (
    Setting(),
    Setting("default", "Haswell", "COMPATIBLE", "v2", 1),
    Setting("avx2", "Zen", "AVX2", "v3", 2),
    Setting("avx2", "Haswell", "AVX2", "own", 1),
    Setting("own", "SkylakeX", "", "v3", 2),
    Setting("default", "Prescott", "", "v3", 2),
)
"""Every vector unit meets one thread and two, and every level of numpy occurs; those first that differ most."""


def settings(count: int, seed: int) -> list[Setting]:
    """The first ``count`` fixed ones, then as many more as were asked for, drawn and all different."""
    chosen = list(FIXED[:count])
    draw = random.Random(seed)
    while len(chosen) < count:
        cpu, core, mkl, level = (draw.choice(list(each)) for each in (CPU, CORES, MKL, NUMPY))
        drawn = Setting(cpu, core, mkl, level, draw.randint(1, 2))
        if drawn not in chosen:
            chosen.append(drawn)
    return chosen


@dataclass(frozen=True)
class Result:
    """One setting's run. ``took``: what the libraries say they use. ``nearest``: largest share of a tolerance used, and
    where. ``path``: digest of the searches' trials, None where the checkout has no such script."""

    setting: Setting
    took: str
    status: int
    tally: str
    failed: tuple[str, ...]
    nearest: tuple[float, str]
    path: str | None
    seconds: float

    @property
    def fine(self) -> bool:
        """The tests passed, and none too narrowly."""
        return self.status == 0 and self.nearest[0] <= TOO_NEAR


ASK = """
import ctypes, glob, os, numpy, torch
from numpy._core import _multiarray_umath as umath
library = glob.glob(os.path.dirname(numpy.__file__) + ".libs/*openblas*")
name = "unknown core"
if library:
    get = ctypes.CDLL(library[0]).scipy_openblas_get_corename64_
    get.restype = ctypes.c_char_p
    name = get().decode()
units = [f for f in umath.__cpu_dispatch__ if umath.__cpu_features__[f]]
print(f"torch {torch.backends.cpu.get_cpu_capability()}, {name}, numpy {units[-1] if units else 'baseline'}, "
      f"{torch.get_num_threads()} threads")
"""


def numpy_features() -> dict[str, str]:
    """Names that this numpy knows for what is to be switched off."""
    from numpy._core import _multiarray_umath as umath

    known = set(umath.__cpu_dispatch__)
    table = NUMPY if "X86_V3" in known else NUMPY_BEFORE
    return {level: " ".join(name for name in names.split() if name in known) for level, names in table.items()}


def run(setting: Setting, tests: Sequence[str], jobs: int, seed: int, log: Path) -> Result:
    """Run the tests under one setting, in processes of their own, with the whole output in ``log``."""
    environment = os.environ | setting.environment(numpy_features())
    took = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    began = time.monotonic()
    margins = log.with_suffix(".margins")
    margins.unlink(missing_ok=True)
    processes = max(1, jobs // setting.threads)  # more threads than cores would mostly wait for one another
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes)]
    command += ["-m", "not gpu and not slow and not engines", f"--hypothesis-seed={seed}", *tests]
    with log.open("w") as file:
        status = subprocess.run(
            command,
            cwd=ROOT,
            env=environment | {MARGINS: str(margins)},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    lines = log.read_text(errors="replace").splitlines()
    failed = tuple(line.split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR ")))
    seconds = time.monotonic() - began
    tally = lines[-1].strip("= ") if lines else ""
    path = path_of_search(environment)
    return Result(setting, took.stdout.strip(), status, tally, failed, nearest(margins), path, seconds)


def path_of_search(environment: Mapping[str, str]) -> str | None:
    """Return the digest of the trials that searches propose; equal under every setting."""
    if not (ROOT / PATH_OF_SEARCH).exists():
        return None
    done = subprocess.run(
        [sys.executable, PATH_OF_SEARCH, "--digest"],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},  # a checkout need not be installed
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr.strip()[-60:]}"


def nearest(file: Path) -> tuple[float, str]:
    """The largest share of a tolerance that was used, and by which comparison."""
    seen = _margins(file) if file.exists() else iter(())
    return max(seen, default=(0.0, ""))


def _margins(file: Path) -> Iterator[tuple[float, str]]:
    for line in file.read_text().splitlines():
        for place, (share, _) in json.loads(line).items():
            if share < 1:  # more than all of it: a test that expects a difference, or one that failed anyway
                yield share, place


def table(results: Sequence[Result]) -> Table:
    """One row a setting."""
    shown = Table(title="tests under other processors' arithmetic")
    for column in ("setting", "in force", "tests", "nearest to its tolerance", "search path", "s"):
        shown.add_column(column)
    for result in results:
        asked = [f"{field.name}={getattr(result.setting, field.name)}" for field in dataclasses.fields(Setting)]
        words = [word for word in asked if not word.endswith(("=", "=own"))]
        share, place = result.nearest
        passed = re.sub(r" in [\d.]+s.*", "", result.tally)
        told = f"{share:.2f} {place}" if place else "-"
        shown.add_row(" ".join(words), result.took, passed, told, result.path or "-", f"{result.seconds:.0f}")
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="tests to run instead of the numerical ones")
    parser.add_argument("--short", action="store_true", help="two settings, the smallest set of tests")
    parser.add_argument("--settings", type=int, help=f"how many settings ({len(FIXED)} unless given)")
    parser.add_argument("--jobs", type=int, default=2, help="threads of tests at a time, in one process or several")
    parser.add_argument("--seed", type=int, help="of hypothesis and of the settings drawn; a new one unless given")
    parser.add_argument("--logs", type=Path, help="folder for the logs (a temporary one unless given)")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    logs = options.logs or Path(tempfile.mkdtemp(prefix="specdebug-portable-"))
    logs.mkdir(parents=True, exist_ok=True)
    tests = options.tests or (SHORT if options.short else NUMERICAL)
    console = Console(width=None if sys.stdout.isatty() else 220)
    results = []
    chosen = FIXED[1:3] if options.short and not options.settings else settings(options.settings or len(FIXED), seed)
    for number, setting in enumerate(chosen):
        results.append(run(setting, tests, options.jobs, seed + number, logs / f"{number}.log"))
        print(f"{number}: {results[-1].tally}", *results[-1].failed, sep="\n   ", flush=True)
    console.print(table(results))
    paths = {result.path for result in results}
    if len(paths) > 1:
        print("searches took different paths")
    bad = [result for result in results if not result.fine]
    print(f"{len(results) - len(bad)} of {len(results)} settings pass; repeat with --seed {seed}; logs in {logs}")
    return 1 if bad or len(paths) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
