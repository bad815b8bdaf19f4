"""What the fork server loads besides torch: the harness side of a worker, which no revert touches.

Never anything of ``specdebug.engine``: a revert must find it not yet imported.
"""

from __future__ import annotations

from specdebug.targets.pool import PRELOAD as LIBRARIES

PRELOAD = (
    *LIBRARIES,
    "numpy.ma",  # numpy's own set operations import it when they are first used
    "specdebug.faults.injector",
    "specdebug.harness.arm",
    "specdebug.harness.dense",
    "specdebug.harness.loop",
    "specdebug.harness.oracle",
    "specdebug.harness.probe_packs",
    "specdebug.harness.scenario_model",
    "specdebug.patching",
    "specdebug.targets.compiling",
    "specdebug.targets.device",
    "specdebug.toggles",
)
