"""The stages that ``suite.py`` runs, in the order they begin, with the time that each takes.

All that are not ``long`` fit in ten minutes on a bare machine. Those that are, are run by name, and two of them beside
each other fit as well. It imports nothing that a bare Python lacks.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PYTHON = sys.executable
SPECDEBUG = (PYTHON, "-m", "specdebug")
PLANS = ("triton", "fa3", "flashinfer")

PARTS = (
    ("10846", "10892", "19897", "22958", "23037"),
    ("25015", "26329", "26335", "26972", "27338", "27360", "27460", "28254"),
)
"""Every fix that can be reverted, in two parts of which the matrix has about as many rows."""
KEPT = {"triton": {"27360", "27460"}, "fa3": {"27338", "27460"}, "flashinfer": {"27360"}}
"""By plan: fixes that exist in others only. Their rows would keep another plan, and run there again."""

BASE = (
    *("torch", "triton", "numpy", "scipy", "safetensors", "tokenizers", "yaml", "rich", "typer", "packaging"),
    *("jinja2", "markupsafe", "xxhash"),
)
"""Packages that specdebug itself imports, on a GPU."""
TESTS = (*BASE, "pytest", "xdist", "hypothesis", "transformers")
"""Packages that the tests of a GPU need, those of specdebug included; tests that need others skip themselves."""
SERVERS = ("fastapi", "starlette", "uvicorn", "httpx", "prometheus_client", "h11")
"""Packages that other tests need to be collected."""
AGAINST = (*BASE, "transformers")

PADDED = ("graph_padding", "v1_padding", "mtp_padding", "frozen_kv_padding", "mla_padding")
"""A scenario of each worker, graphs on."""
ENGINE_TESTS = ("tests/engine/test_cuda.py", "tests/engine/test_latent.py")
"""Tests of whole engines, which take as long as all others together."""


@dataclass(frozen=True)
class Stage:
    """One command.

    Attributes:
        limit_s: seconds it may take.
        takes_s: about how long it takes on an H100 beside another; it is not begun when less time is left.
        needs: names of the packages that it imports.
        workers: processes that it computes in at a time.
        timed: it runs alone.
        long: it runs only when asked for.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    takes_s: float = 0.0
    needs: tuple[str, ...] = BASE
    workers: int = 1
    timed: bool = False
    long: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages that this Python does not find."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)


def stages(out: Path, jobs: int, *, bounds: bool = True) -> list[Stage]:
    """Return all in the order they begin: checks that take long before those that do not, what times at either end.

    bounds: a figure that misses its bound fails the stage that measured it.
    """
    free = () if bounds else ("--no-bounds",)
    decode = (PYTHON, str(HERE / "decode.py"), str(out), "--rounds", "8", *free)
    arms = (PYTHON, str(HERE / "scenarios.py"), str(out), "--device", "cuda", "--jobs", str(jobs))
    each_plan = [word for plan in PLANS for word in ("--backend", plan)]
    replay = (*SPECDEBUG, "replay", "topk_kv_indices", "--device", "cuda")
    lossless = (PYTHON, "-m", "benchmarks.lossless", "--device", "cuda", "--count", "3")  # one for each plan
    return [
        Stage("doctor", (*SPECDEBUG, "doctor"), 60, 10, timed=True),
        Stage("replay-first", replay, 120, 40, timed=True),
        Stage("replay-cold", replay, 60, 10, timed=True),
        *_tests(jobs),
        Stage("lossless", (*lossless, "--json", str(out / "lossless.json")), 300, 170, AGAINST, long=True),
        Stage("scenarios", (*arms, "--same-as-cpu"), 180, 105, workers=jobs),
        Stage("scenarios-bf16", (*arms, "--dtype", "bfloat16"), 150, 80, workers=jobs),
        *[_matrix(f"matrix-{plan}", plan, (*PARTS[0], *PARTS[1]), jobs) for plan in PLANS],
        Stage("determinism", _determinism(3, jobs, *PADDED), 120, 50, workers=jobs),
        Stage("scenarios-plans", (*arms, *each_plan, "--same-as-cpu"), 480, 200, workers=jobs, long=True),
        Stage("determinism-100", _determinism(100, jobs, "topk_page_table"), 240, 140, workers=jobs, long=True),
        *[_seeds(out, plan, part, jobs) for plan in PLANS for part in range(len(PARTS))],
        Stage("probes", (PYTHON, str(HERE / "probes.py"), str(out), *free), 120, 20, timed=True),
        Stage("decode", decode, 240, 80, AGAINST, timed=True),
        Stage("workers", (PYTHON, str(HERE / "workers.py"), str(out), "--rounds", "8", *free), 120, 30, timed=True),
        Stage("latent", (PYTHON, str(HERE / "latent.py"), str(out), "--mlp", "experts", *free), 120, 45, timed=True),
    ]


def _tests(jobs: int) -> list[Stage]:
    """Those of engines, and the others. Slow ones run the matrix, as stages of their own do."""
    command = (PYTHON, "-m", "pytest", "-q", "-n", str(jobs), "--dist", "worksteal", "-m", "gpu and not slow")
    others = [file for file in gpu_tests() if file not in ENGINE_TESTS]
    return [
        Stage("tests-engine", (*command, *ENGINE_TESTS), 300, 90, TESTS, jobs),
        Stage("tests", (*command, *others), 300, 95, TESTS, jobs),
    ]


def gpu_tests() -> list[str]:
    """Files with tests that need a GPU. To collect all others as well takes each worker longer than to run these."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "pytest.mark.gpu" in file.read_text(encoding="utf-8")]


def _determinism(runs: int, jobs: int, *scenarios: str) -> tuple[str, ...]:
    script = (PYTHON, "benchmarks/determinism.py", "--device", "cuda")
    return (*script, "--runs", str(runs), "--jobs", str(jobs), *scenarios)


def _verify(plan: str, numbers: tuple[str, ...], jobs: int) -> tuple[str, ...]:
    """The matrix of those of some fixes that exist in a plan."""
    there = (number for number in numbers if number not in KEPT[plan])
    return (*SPECDEBUG, "toggles", "verify", *there, "--jobs", str(jobs), "--device", "cuda", "--backend", plan)


def _matrix(name: str, plan: str, numbers: tuple[str, ...], jobs: int) -> Stage:
    return Stage(name, _verify(plan, numbers, jobs), 180, 65, workers=jobs)


def _seeds(out: Path, plan: str, part: int, jobs: int) -> Stage:
    """Twenty seeds of a part of the matrix. Where wrong outputs began is not looked for: that takes as long again."""
    name = f"seeds-{plan}-{part + 1}"
    seeds = ("--seeds", "20", "--no-locate", "--json-file", str(out / f"{name}.json"))
    return Stage(name, (*_verify(plan, PARTS[part], jobs), *seeds), 540, 465, workers=jobs, long=True)
