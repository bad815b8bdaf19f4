"""How often the host waits for a GPU."""

from __future__ import annotations

from collections import Counter

import torch

from specdebug.engine import Engine


def waits_of_decode_steps(served: Engine, steps: int) -> Counter[str]:
    """Calls that wait in so many decode steps, by name; what torch itself knows for a wait is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(steps):
                assert served.step().kind == "decode"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Counter(event.name for event in profile.events() if "Synchronize" in event.name)
