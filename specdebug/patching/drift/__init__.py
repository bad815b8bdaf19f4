"""Find the registered patches that no longer fit a release of another engine, without importing it.

``open_dist`` reads a wheel, an sdist or a source tree; ``check`` matches every toggle's patches against it, and those
of the engine's own registry of reverts where it ships one: a patch names lines that may have moved since.
"""

from specdebug.base.errors import SpecDebugError
from specdebug.patching.drift.check import DriftReport, EditProblem, FixRow, check
from specdebug.patching.drift.dist import Dist, open_dist

__all__ = ["Dist", "DriftReport", "EditProblem", "FixRow", "SpecDebugError", "check", "open_dist"]
