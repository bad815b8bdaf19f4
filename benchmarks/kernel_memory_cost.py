"""What the memory checker adds to interpreted kernels: processor seconds of our engine's steps, with it and without.

python benchmarks/kernel_memory_cost.py [--steps 16] [--repeats 3]
"""

from __future__ import annotations

import argparse
import time

from specdebug import kernel_memory
from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.kernels.twin import interpret_on_cpu
from specdebug.kernel_memory.rules import KernelRule

OPTIONS = {
    "model": "tiny",
    "attention_backend": "fa3",
    "page_size": 2,
    "context_length": 128,
    "max_running_requests": 2,
    "speculative": {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 8},
    "memory": {"num_slots": 512},
    "cuda_graph": {"max_bs": 2},
}


def seconds(steps: int, checked: bool) -> float:
    """Processor seconds of some steps of one request."""
    kernel_memory.end()
    if checked:
        kernel_memory.begin([KernelRule("*")])
    engine = Engine(EngineConfig.from_dict(OPTIONS))
    engine.add_request("a", list(range(5, 25)), SamplingParams(max_new_tokens=96), speculative=True)
    began = time.process_time()
    for _ in range(steps):
        engine.step()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    interpret_on_cpu()
    seconds(2, False)  # imports
    for _ in range(given.repeats):
        without, checked = seconds(given.steps, False), seconds(given.steps, True)
        print(f"{given.steps} steps: {without:.2f} s, with the checker {checked:.2f} s ({checked / without:.2f})")


if __name__ == "__main__":
    main()
