"""What the memory checker adds to interpreted kernels: processor seconds of our engine's steps, with it and
without; and to torch operations while static buffers are looked at: microseconds of one.

python benchmarks/kernel_memory_cost.py [--steps 16] [--repeats 3]
"""

from __future__ import annotations

import argparse
import time

import torch

from specdebug import kernel_memory
from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.kernels.twin import interpret_on_cpu
from specdebug.kernel_memory.finding import KernelRule

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


def microseconds(operand: torch.Tensor, times: int = 20000) -> float:
    """Processor time of an addition to a small tensor."""
    began = time.process_time()
    for _ in range(times):
        operand + 1
    return (time.process_time() - began) / times * 1e6


def operations() -> tuple[float, float, float]:
    """An addition that is not looked at, one to another tensor that is, and one to a static buffer."""
    watch, other, static = kernel_memory.begin([KernelRule("*")]), torch.zeros(64), torch.zeros(64)
    watch.static.add("static", static)
    watch.static.batch(1)
    watch.static.begin("draft", lambda _: None)
    plain = microseconds(other)
    with watch.operations:
        microseconds(other, 1000)  # the first few are slower
        answer = plain, microseconds(other), microseconds(static)
    kernel_memory.end()
    return answer


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
    for _ in range(given.repeats):
        plain, looked, read = operations()
        print(f"an operation: {plain:.1f} us, looked at {looked:.1f} us, that reads a static buffer {read:.1f} us")


if __name__ == "__main__":
    main()
