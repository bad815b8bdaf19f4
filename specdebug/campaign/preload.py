"""The modules that the fork server loads besides torch: the harness side of a worker, which no revert touches.

Never code of ``specdebug.engine`` that a revert could change: it must be found not yet imported. The protocol of
observers and the table of sites hold none.
"""

from specdebug.workers.pool import PRELOAD as LIBRARIES

PRELOAD = (
    *LIBRARIES,
    "numpy.ma",  # numpy's own set operations import it when they are first used
    "specdebug.faults.injector",
    "specdebug.run.arm",
    "specdebug.run.dense",
    "specdebug.run.loop",
    "specdebug.run.judge",
    "specdebug.scenario.packs",
    "specdebug.scenario.grammar",
    "specdebug.patching",
    "specdebug.workers.device",
    "specdebug.patching.toggles",
)
