"""Which of our looks have their places in a release of vLLM, by its files alone. Nothing of its is stood in for."""

from __future__ import annotations

from collections.abc import Iterator

from specdebug.targets.installs.fit import FitPart, source_of
from specdebug.targets.installs.store import Installed
from specdebug.targets.vllm.inside import second_runner
from specdebug.targets.vllm.inside.boundaries import DRAFTER_TAPS, RUNNER_TAPS, SCHEDULER_TAPS

_SCHEDULER, _POOL = "v1.core.sched.scheduler:Scheduler", "v1.core.block_pool:BlockPool"
_SPECULATOR = "v1.worker.gpu.spec_decode.eagle.speculator:EagleSpeculator"
LOOKS: dict[str, tuple[str, ...]] = {
    "the requests of a step": tuple(f"{_SCHEDULER}.{name}" for name in SCHEDULER_TAPS),
    "the stages of a step": (
        *(f"v1.worker.gpu_model_runner:GPUModelRunner.{name}" for name in RUNNER_TAPS),
        *(f"v1.spec_decode.eagle:EagleProposer.{name}" for name in DRAFTER_TAPS),
    ),
    "the stages of a step of its runner V2": (
        *(f"v1.worker.gpu.model_runner:GPUModelRunner.{name}" for name in second_runner.RUNNER_TAPS),
        *(f"{_SPECULATOR}.{name}" for name in second_runner.SPECULATOR_TAPS),
    ),
    "the scheduler's books": (
        *(f"{_SCHEDULER}.{name}" for name in ("kv_cache_manager", "requests", "running", "deferred_frees",
                                              "num_spec_tokens", "num_lookahead_tokens")),
        *(f"{_POOL}.{name}" for name in ("blocks", "free_block_queue", "null_block")),
    ),
}  # fmt: skip
"""The seats of each look."""


def parts_of(here: Installed) -> Iterator[FitPart]:
    """Every look."""
    source = source_of(here)
    for what, places in LOOKS.items():
        yield FitPart(what, False, tuple(f"vLLM has no {place}" for place in places if not source.has(place)))
