"""What of a trace may depend on the processor: choices that are as narrow as rounding is wide, and nothing else.

Arms run in workers that are told to compute as another processor would. Whatever this machine is, verdict and signature
are the same, and so is the trace but for such choices and what follows from them. In float32 none of the shipped arms
has been seen to differ anywhere; in half precision some do.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from specdebug.bundle.again import Weighed
from specdebug.bundle.content import Traced, run_traced
from specdebug.bundle.partings import partings, weigh
from specdebug.campaign.loops.replay import ArmRun, Choices, plan
from specdebug.campaign.preload import PRELOAD
from specdebug.scenario.library import Library
from specdebug.workers.pool import WorkerPool
from specdebug.workers.stack import SETTINGS
from tests.bundle.bundles import MINI, ROOT
from tests.run.fakes import ListSink

SHIPPED = tuple(sorted((ROOT / "scenarios").glob("*.yaml")))

NO_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
"""Torch packs half-precision attention for AMX where oneDNN has it, and then fails if its own capability is lower."""

PROCESSORS: dict[str, dict[str, str]] = {
    "this": {},
    "default": {"ATEN_CPU_CAPABILITY": "default", **NO_AMX},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "compatible": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "two threads": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
}


@cache
def planned(file: Path, dtype: str) -> tuple[ArmRun, ...]:
    library = Library()
    scenario = library.scenario(file)
    names = ("fixed",) if file == MINI else tuple(scenario.arms)
    return tuple(plan(scenario, Choices(arms=names, engine={"dtype": dtype}), library))


@cache
def traces(files: tuple[Path, ...], dtype: str, processor: str) -> dict[str, Traced]:
    """Every arm of these scenarios, as run on that processor."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in SETTINGS:
            patch.delenv(name, raising=False)
        for name, value in PROCESSORS[processor].items():
            patch.setenv(name, value)
        with WorkerPool(1, PRELOAD) as pool:
            for run in (run for file in files for run in planned(file, dtype)):
                limits = replace(run.scenario.limits, timeout_s=600.0)  # kernels for no processor take their time
                run = replace(run, scenario=replace(run.scenario, limits=limits))
                traced = run_traced(pool, Library(), run)
                assert traced is not None
                found[f"{run.scenario.name}: {run.arm}"] = traced
    return found


def weighed(run: ArmRun, here: Traced, there: Traced) -> tuple[Weighed, ...]:
    """What parts two runs of an arm, each with how narrow it was."""
    workload = Library().workload(run.scenario, run.arm, run.seed)
    found = partings(workload.requests, here.steps, there.steps)
    assert found is not None
    result = []
    for parting in found:
        sink = ListSink()
        if parting.kind in ("token", "draft"):
            weigh({"shape": run.shape, "partings": [parting]}, sink)
        numbers = {name: event[name] for event in sink.events for name in ("gap", "allowed", "preferred")}
        result.append(Weighed(parting, **numbers))
    return tuple(result)


def check_alike(here: Mapping[str, Traced], there: Mapping[str, Traced]) -> None:
    """Every arm has the same verdict and signature, and no choice parts its traces that rounding does not explain."""
    assert here.keys() == there.keys()
    for name, one in here.items():
        other = there[name]
        outcomes = [(traced.result.outcome.verdict, traced.result.outcome.signature) for traced in (one, other)]
        assert outcomes[0] == outcomes[1], name
        if one.steps == other.steps:
            assert one.result.outcome.trace_hash == other.result.outcome.trace_hash
            continue
        found = weighed(one.result.run, one, other)
        assert found, name
        for each in found:
            assert each.narrow or each.parting.kind == "sampled", f"{name}: {each.text}"


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_another_processor_changes_no_more_than_narrow_choices(dtype: str) -> None:
    check_alike(traces((MINI,), dtype, "this"), traces((MINI,), dtype, "default"))
