"""For every class a small scenario that it certainly takes effect in, and the address there.

Small: a second on one core. The detection matrix runs these from seed to seed, which moves prompts, victims and places.
"""

from typing import Any

from specdebug.engine.workers.registry import LINEUP, WorkerEntry
from specdebug.faults.model import Fault, FaultClass, Steps

BUSY: Steps = (4, 40)
"""Steps in which several requests decode."""
TREE = (3, 2, 6)
"""Steps, branches and nodes of a draft, for a worker that has the choice."""

PLAIN: dict[str, Any] = {
    "id": "plain",
    "prompt": {"corpus": "stdlib", "tokens": 12},
    "max_new_tokens": 8,
    "speculative": False,
    "temperature": 0.8,
    "top_k": 20,
    "top_p": 0.9,
    "arrive": {"after": "warm"},
}
"""Decoded without drafts, and sampled."""


def server_of(kind: FaultClass, site: str | None = None) -> WorkerEntry:
    """The first worker that passes the site, or else the class's first one."""
    named = site or next(iter(kind.sites), None)
    return next(entry for entry in LINEUP.values() if named is None or entry.passes(named))


def minimal(
    kind: FaultClass, site: str | None = None, new_tokens: int = 10, worker: WorkerEntry | None = None
) -> tuple[dict[str, Any], Fault]:
    """A scenario (without the fault) in the file's grammar, and the fault to lay over it; ``site``: one of the class's
    other than the first; ``new_tokens``: of each request that may be hit; ``worker``: that serves it, by default the
    first that passes the site."""
    served = (worker or server_of(kind, site)).options(*TREE)
    # Prefills are few, and the first is as good as any.
    prefill = kind.name in ("draft_kv_not_written", "prompt_token_swapped", "target_only_restore", "rank_behind")
    prefill |= "transfers" in kind.needs
    steps = None if prefill or "prefill" in (site or "") else BUSY
    scenario: dict[str, Any] = {
        "name": f"minimal-{kind.name.replace('_', '-')}",
        "engine": {
            "model": served["model"],
            "page_size": 4,
            "context_length": 96,
            "max_running_requests": 4,
            "speculative": served["speculative"],
            "cuda_graph": {"max_bs": 4, "capture_bs": [4]},
            # Where released memory is NaN already, more NaN there changes nothing.
            "memory": {"num_slots": 512, "fill": "zeros" if kind.name == "nan_kv_unused" else "nan", "guards": True},
        },
        # A prefix that is cached, three requests that leave a padding row, and one that comes back to the prefix.
        "workload": [
            {"id": "warm", "prompt": {"corpus": "stdlib", "tokens": 24, "offset": 0}, "max_new_tokens": 4},
            {
                "id": "r",
                "requests": 3,
                "prompt": {"corpus": "stdlib", "tokens": [16, 24]},
                "max_new_tokens": new_tokens,
                "arrive": {"after": "warm"},
            },
            {
                "id": "hit",
                "prompt": {"corpus": "stdlib", "tokens": 40, "offset": 0},
                "max_new_tokens": 6,
                "arrive": {"after": "warm", "step": 3},
            },
        ],
        "oracles": {"each_step": True},
        "limits": {
            "timeout_s": 3 if kind.name == "worker_hangs" else 60,
            "max_steps": 200,
            # A fault that takes all there is should have it soon.
            "memory_mb": 768 if kind.name == "worker_out_of_memory" else 1536,
        },
    }
    if site is not None and site.startswith(("sampler.", "target_decode.")):
        scenario["workload"].append(PLAIN)
    return scenario, Fault(kind.name, step=steps, site=site)
