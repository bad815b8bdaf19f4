"""Scenarios drawn from a seed and a number, for an engine that has some options and lacks others.

A few scenarios in a row share an engine, so that a server is started once for them.
"""

from __future__ import annotations

from specdebug.apps.hunt.workload import LONGEST_PROMPT, MOST_NEW, Plain, groups
from specdebug.base.trial import stream
from specdebug.targets.options import TargetOptions

ARM = "drawn"
TOGETHER = 4
"""Scenarios in a row that have one engine."""


def drawn(seed: int, number: int, options: TargetOptions) -> Plain:
    """Scenario ``number`` of a seed, as a file says it."""
    rng = stream(seed, "hunt", "workload", number)
    engine, page = options.drawn(seed, number // TOGETHER, LONGEST_PROMPT + MOST_NEW)
    return {
        "name": f"hunt-{seed}-{number}",
        "description": f"Scenario {number} of the hunt of seed {seed}.",
        "seed": rng.getrandbits(31),
        "engine": engine,
        "workload": groups(rng, page if page > LONGEST_PROMPT else 0),
        "arms": {ARM: {}},
        "limits": {"max_steps": 3000, "timeout_s": 300},
    }
