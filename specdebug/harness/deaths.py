"""A worker that did not finish, as a violation: what killed it, and where it was.

``crash:<SIGNAL>``, ``oom``, ``hang`` and ``error@worker``. Where it was is read from the fault handler's
dump in its log; that is evidence for a reader, not part of the signature, which must not change with a line
number.
"""

from __future__ import annotations

import re

from specdebug.harness.outcome import Violation
from specdebug.targets.pool import WorkerEnd

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE)
_MOST_RECENT = "most recent call first"


def death_of(end: WorkerEnd, step: int, stage: str) -> Violation | None:
    """The violation a worker's end amounts to; None for an interrupted one, which is nobody's failure.

    Only for workers that have not reported that they are done.
    """
    where = f"in stage {stage}, after step {step}"
    frame = innermost_frame(end.log)
    at = f"; innermost specdebug frame {frame}" if frame else ""
    if end.kind == "interrupted":
        return None
    if end.kind == "timeout":
        return Violation("hang", "", step, f"killed after {end.wall_s:.1f} s {where}{at}")
    if end.kind == "memory":
        return Violation("oom", "", step, f"killed at {end.peak_rss_mb:.0f} MiB resident {where}{at}")
    if end.kind == "lost":
        return Violation("error", "worker", step, f"the fork server died under it {where}")
    if end.kind == "signal":
        name = end.signal_name
        hint = " (not by specdebug; often the kernel, out of memory)" if name == "SIGKILL" else ""
        return Violation(f"crash:{name}", "", step, f"killed by {name}{hint} {where}{at}")
    detail = f"left with exit status {end.status} and no result {where}{at}"
    return Violation("error", "worker", step, detail)


def innermost_frame(log: str) -> str | None:
    """``file:line in function`` of specdebug's innermost frame in the last fault handler dump of a log."""
    start = log.rfind("Current thread")
    if start < 0:
        start = log.rfind(_MOST_RECENT)
    if start < 0:
        return None
    for match in _FRAME.finditer(log, start):
        if "specdebug/" in match["file"]:
            short = "specdebug/" + match["file"].rpartition("specdebug/")[2]
            return f"{short}:{match['line']} in {match['name']}"
    return None
