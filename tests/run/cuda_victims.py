"""Arms that hurt their GPU: the real arm and run loop, over a stand-in engine that does one bad thing."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from specdebug import async_probe
from specdebug.run.arm import run_arm
from specdebug.targets import embedded
from tests.run.fakes import FakeEngine

BAD_STEP = 3
LAST_STEP = 6


def play(payload: Mapping[str, Any], sink: Any) -> None:
    """Do what the arm's name says. Stands in for ``specdebug.run.arm:run_arm``."""
    fate = payload["arm"]

    def build(options: Mapping[str, Any], seed: int) -> Any:
        if fate == "full_at_load":
            allocate_too_much()
        engine = FakeEngine()
        engine.config = SimpleNamespace(  # type: ignore[attr-defined]
            model="tiny", dtype="float32", device=options["device"], speculative=None
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
    torch.zeros(1, device="cuda").tolist()


def probe() -> None:
    async_probe.configure("assert")
    async_probe.maybe_detect_oob(torch.tensor([3, 12], device="cuda"), 0, 9, "verify.input_ids")


def allocate_too_much() -> None:
    torch.empty(2**50, dtype=torch.uint8, device="cuda")
