"""Run one arm and keep what every step decided; say how a run differs from a recorded one."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from specdebug import __version__
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Progress, RunContent
from specdebug.campaign.loops.steplog import Recording
from specdebug.verdict.ledger import TRACED
from specdebug.workers.job import Job, WorkerEnd
from specdebug.workers.stack import driver_version, versions

if TYPE_CHECKING:
    from specdebug.workers.pool import WorkerPool

STATED_SINCE = ("cpu", "cpu capability", "blas", "numpy", "threads", "settings", "dtype")
"""Versions that older bundles do not state."""

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
    listener = _Listener(run, progress, recording)
    interrupted = False
    try:
        pool.run([run.job(library)], listener)
    except KeyboardInterrupt:
        interrupted = True
    if listener.result is None:
        return None
    return Traced(listener.result, tuple(listener.steps), interrupted)


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
        unstated = name in STATED_SINCE and name not in recorded
        if before != after:
            found.append(f"{name}: {'not recorded' if unstated else f'recorded {before}'}, here {after}")
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


class _Listener:
    def __init__(self, run: ArmRun, progress: Progress | None, recording: Recording | None) -> None:
        self.result: ArmResult | None = None
        self.steps: list[str] = []
        self._run = run
        self._progress = progress
        self._recording = recording
        self._ledger = run.ledger()

    def started(self, job: Job) -> None:
        if self._progress is not None:
            self._progress.arm_started(self._run)

    def event(self, job: Job, event: dict[str, Any]) -> None:
        self._ledger.fold(event)
        if self._ledger.usage_error is not None and not self._ledger.unavailable:
            raise self._run.at_fault(self._ledger.usage_error, self._ledger.usage_option)
        if event["event"] == "step":
            facts = [event[key] for key in TRACED]
            self.steps.append(json.dumps(facts, sort_keys=True, separators=(",", ":")))
        if self._recording is not None:
            self._recording.take(self._run.key, event)
        if self._progress is not None:
            self._progress.arm_moved(self._run, self._ledger)

    def ended(self, job: Job, end: WorkerEnd) -> None:
        self.result = ArmResult(self._run, self._ledger.outcome(end))
        self._ledger.drop_log(self.result.outcome)
        if self._progress is not None:
            self._progress.arm_ended(self.result)

    def waiting(self) -> None:
        if self._progress is not None:
            self._progress.waiting()
