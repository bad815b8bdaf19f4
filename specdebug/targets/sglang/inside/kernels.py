"""SGLang's interpreted Triton kernels under the memory checker: what it finds is told after every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdebug import kernel_memory
from specdebug.kernel_memory.rules import KernelRule
from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.inside.words import say
from specdebug.targets.sglang.inside.batches import follow_batches
from specdebug.targets.sglang.inside.graph_buffers import KERNEL_MEMORY, shadow_graph_buffers
from specdebug.targets.sglang.inside.kv_slots import shadow_pools


def watch_kernels(rules: Sequence[Mapping[str, Any]]) -> Callable[[], Mapping[str, int]]:
    """Hold every launch to the memory that it was given, by some rules (``KernelRule`` as plain data); returns what
    counts the launches of each kernel."""
    watch = kernel_memory.begin([KernelRule(each["glob"], each["mode"], tuple(each["kinds"])) for each in rules])
    asked = {kind for each in rules if each["mode"] != "off" for kind in each["kinds"]}
    look = EngineLook(KERNEL_MEMORY)
    if "unwritten" in asked:
        shadow_pools(watch, look)
    if "stale" in asked:
        shadow_graph_buffers(watch, look)
    now = 0

    def begin(step: int) -> None:
        nonlocal now
        tell()
        now = step

    def tell() -> None:
        for finding in watch.poll():
            say(finding.message(now))

    follow_batches(begin, tell, tell, look)
    return kernel_memory.launches
