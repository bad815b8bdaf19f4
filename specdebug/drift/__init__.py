"""Does every registered patch still fit a release of another engine? Nothing of that engine is imported.

``open_dist`` reads a wheel, an sdist or a source tree; ``check`` matches every toggle's patches against it, and those
of the engine's own in-tree registry of reverts where it ships one. A registry rots in silence: a patch names lines
that somebody moves a week later, and the next person who needs the revert finds out. This finds out first.
"""

from specdebug.drift.check import FixRow, Report, check
from specdebug.drift.dist import Dist, open_dist
from specdebug.drift.errors import DistError
from specdebug.drift.fit import EditProblem

__all__ = ["Dist", "DistError", "EditProblem", "FixRow", "Report", "check", "open_dist"]
