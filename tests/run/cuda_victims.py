"""Arms that hurt their GPU: the real arm and run loop, over a stand-in engine that does one bad thing."""

import contextlib
import ctypes
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from specdebug import async_probe
from specdebug.campaign.loops.replay import Choices, replay
from specdebug.campaign.preload import PRELOAD
from specdebug.run.arm import run_arm
from specdebug.scenario.grammar import Arm, OracleSpec, Scenario, TokenPrompt, WorkloadGroup
from specdebug.scenario.workload import RequestSampling, Workload, WorkloadRequest
from specdebug.targets import embedded
from specdebug.verdict.outcome import Outcome
from specdebug.workers.pool import WorkerPool
from tests.run.fakes import FakeEngine, FakeLibrary

BAD_STEP = 3
LAST_STEP = 6


class VictimLibrary(FakeLibrary):
    def workload(self, scenario: Any, arm: str, seed: int) -> Workload:
        return Workload((WorkloadRequest("g0.0", "g0", (1, 2, 3, 4), RequestSampling(LAST_STEP)),))


def outcomes(fates: Iterable[str], device: str = "cuda") -> dict[str, Outcome]:
    """Run an arm for each fate, and return its outcome; ``loops.replay.TARGET`` is to be :func:`play`."""
    scenario = Scenario(
        name="fates",
        workload=(WorkloadGroup("g0", TokenPrompt((1, 2))),),
        arms={fate: Arm(fate) for fate in fates},
        expect={},
        engine={"device": device},
        probes=(),
        oracles=OracleSpec(lossless=False, draft_kv=False, ends=False),  # its accept lengths are made up
    )
    with WorkerPool(preload=PRELOAD) as pool:
        answer = replay(pool, VictimLibrary(), scenario, Choices())
    return {result.run.arm: result.outcome for result in answer.results}


def play(payload: Mapping[str, Any], sink: Any) -> None:
    """Do what the arm's name says. Stands in for ``specdebug.run.arm:run_arm``."""
    fate = payload["arm"]

    def build(options: Mapping[str, Any], seed: int) -> Any:
        if fate == "full_at_load":
            allocate_too_much()
        engine = FakeEngine()
        engine.view = SimpleNamespace(worker=None)  # type: ignore[attr-defined]
        engine.config = SimpleNamespace(  # type: ignore[attr-defined]
            model="tiny", dtype="float32", device=options["device"], speculative=None, radix_cache=False
        )
        engine.before_step = lambda step: act(fate, step)
        return engine

    embedded.build_engine = build  # this process is a fork and serves this job alone
    run_arm(payload, sink)


def act(fate: str, step: int) -> None:
    """The bad thing, then what an engine does in every step: it waits for its tokens."""
    if fate == "late":
        if step == LAST_STEP:
            probe()
        return
    if step == BAD_STEP:
        if fate == "probe":
            probe()
        elif fate == "index":
            _ = torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")]
        elif fate == "illegal":
            from tests.run.cuda_kernels import store_far_away

            store_far_away()
        elif fate == "full":
            allocate_too_much()
        elif fate == "terminated":
            found_only()
            terminate()
        elif fate == "pinned":
            drop_pinned_memory_of_a_lost_device()
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda").tolist()


def probe() -> None:
    async_probe.configure("assert")
    async_probe.maybe_detect_oob(torch.tensor([3, 12], device="cuda"), 0, 9, "verify.input_ids")


def found_only() -> None:
    """As :func:`probe`, but the run goes on."""
    async_probe.configure("record")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    async_probe.maybe_detect_oob(torch.tensor([3, 12], device=device), 0, 9, "verify.input_ids")


def terminate() -> None:
    """As C++ code that cannot go on."""
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()


def drop_pinned_memory_of_a_lost_device() -> None:
    """An upload drops its pinned memory after the device is lost; torch's destructor then has C++ end the process."""
    found_only()
    pinned = torch.zeros(8, pin_memory=True)
    there = pinned.to("cuda", non_blocking=True)
    with contextlib.suppress(RuntimeError):
        there[torch.tensor([9], device="cuda")].tolist()
    del pinned


def allocate_too_much() -> None:
    torch.empty(2**50, dtype=torch.uint8, device="cuda")
