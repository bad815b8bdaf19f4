"""Run one arm and keep what every step decided; say how a run differs from a recorded one."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from specdebug import __version__
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Progress, RunContent, run_through
from specdebug.campaign.loops.steplog import Recording
from specdebug.verdict.ledger import TRACED
from specdebug.workers.stack import driver_version, versions

if TYPE_CHECKING:
    from specdebug.workers.pool import WorkerPool

MAX_SHOWN = 160
"""Characters of a step in a difference."""


@dataclass(frozen=True)
class Recorded:
    """The end of a run. ``steps``: one JSON line each, whose hash is ``trace_hash``."""

    verdict: str
    signature: str | None
    trace_hash: str
    steps: tuple[str, ...]

    @property
    def facts(self) -> dict[str, str | None]:
        return {"verdict": self.verdict, "signature": self.signature, "trace_hash": self.trace_hash}


@dataclass(frozen=True)
class Traced:
    """An arm that was run, and the decisions of each of its steps; cut short if it was ``interrupted``."""

    result: ArmResult
    steps: tuple[str, ...]
    interrupted: bool = False


def recorded_of(traced: Traced) -> Recorded:
    """The part of a run that is compared."""
    outcome = traced.result.outcome
    return Recorded(outcome.verdict, outcome.signature, outcome.trace_hash, traced.steps)


def run_traced(
    pool: WorkerPool,
    library: RunContent,
    run: ArmRun,
    progress: Progress | None = None,
    recording: Recording | None = None,
) -> Traced | None:
    """Run the arm in a worker of its own; None if a Ctrl-C came before. Raises as ``loops.replay.run_arms``."""
    trace = _Trace(page=recording)
    ran = run_through(pool, library, [run], progress, trace)
    if ran.trouble is not None:
        raise ran.trouble
    if run.key not in ran.spans and ran.interrupted:
        return None
    (result,) = ran.results
    return Traced(result, tuple(trace.lines), ran.interrupted)


def steps_hash(steps: Sequence[str]) -> str:
    """The trace hash of these steps, as the ledger of a run computes it."""
    total = hashlib.blake2b(digest_size=16)
    for step in steps:
        total.update(step.encode())
    return total.hexdigest()


def differences(recorded: Recorded, now: Recorded) -> tuple[str, ...]:
    """The differences from what was recorded, a line each; none if verdict, signature and trace hash are the same."""
    found = []
    for name in ("verdict", "signature"):
        before, after = getattr(recorded, name), getattr(now, name)
        if before != after:
            found.append(f"{name}: recorded {before or 'none'}, now {after or 'none'}")
    if recorded.trace_hash != now.trace_hash:
        found.append(f"trace hash: recorded {recorded.trace_hash}, now {now.trace_hash}")
        found += _first_step(recorded.steps, now.steps)
    return tuple(found)


def versions_here(stack: Mapping[str, Any]) -> dict[str, str]:
    """The versions that a run on this machine depends on. ``stack``: of the run's outcome."""
    found = {
        "specdebug": __version__,
        "python": platform.python_version(),
        **versions(),
        "os": platform.platform(),
        "machine": platform.machine(),
        **stack.get("arithmetic", {}),
        "dtype": stack.get("dtype"),
        "driver": driver_version(),
        "device": " ".join(str(stack[key]) for key in ("device", "name", "executor") if key in stack) or None,
    }
    return {name: str(version) for name, version in found.items() if version is not None}


def changed_versions(recorded: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """Versions that are not as recorded, a line each."""
    found = []
    for name in dict.fromkeys((*recorded, *here)):
        before, after = recorded.get(name, "none"), here.get(name, "none")
        if before != after:
            found.append(f"{name}: recorded {before}, here {after}")
    return tuple(found)


def _first_step(before: Sequence[str], after: Sequence[str]) -> list[str]:
    for number, (one, other) in enumerate(zip_longest(before, after), start=1):
        if one is None or other is None:
            return [f"steps: recorded {len(before)}, now {len(after)}; equal as far as both go"]
        if one != other:
            return [f"step {number}: recorded {_shown(one)}", f"step {number}: now {_shown(other)}"]
    return []


def _shown(step: str) -> str:
    return step if len(step) <= MAX_SHOWN else step[: MAX_SHOWN - 3] + "..."


@dataclass
class _Trace(Recording):
    """The lines of a run's steps; a page's recording hears of them, too, if there is one."""

    lines: list[str] = field(default_factory=list)
    page: Recording | None = None

    def take(self, key: str, event: Mapping[str, Any]) -> None:
        """Keep an arm's event if it is a step."""
        if event["event"] == "step":
            self.lines.append(json.dumps([event[name] for name in TRACED], sort_keys=True, separators=(",", ":")))
        if self.page is not None:
            self.page.take(key, event)
