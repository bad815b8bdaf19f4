"""The end of an engine that serves: the signature that names it, by the rules of every verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdebug.verdict.deaths import death_by_machine, death_of, explained
from specdebug.verdict.outcome import Violation, merge_violations
from specdebug.workers.job import WorkerEnd
from specdebug.workers.machine_failure import TOLD


@dataclass(frozen=True)
class EngineFailure:
    """An engine that is gone. ``signature`` is None where it was the machine that failed, or it was told to end."""

    signature: str | None
    step: int | None
    detail: str

    def __str__(self) -> str:
        if self is ENDING:
            return self.detail
        named = "" if self.signature is None else f"fail {self.signature}: "
        return f"the engine has died: {named}{self.detail}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"signature": self.signature, "step": self.step, "detail": self.detail}


ENDING = EngineFailure(None, None, "the server is ending")
"""The end of an engine that was told to."""


def failure_of(
    end: WorkerEnd,
    told: Sequence[Violation],
    machine: Mapping[str, Any] | None,
    *,
    step: int,
    stage: str,
    coredump: str | None = None,
) -> EngineFailure:
    """The failure that an engine's end amounts to.

    ``told``: violations that it reported before it died; the first in order names the failure, so that a probe's
    finding comes before the crash that followed from it. ``machine``: the machine's failure, if it told of one.
    """
    if machine is not None:
        return EngineFailure(None, step, f"machine: {TOLD[machine['cause']]}: {machine['line']}")
    found = [explained(each, end.log, step, coredump) for each in told]
    lost = death_by_machine(end)
    if lost is not None and not found:
        return EngineFailure(None, step, lost.reason)
    # One that told why it leaves has an exit status that says no more.
    death = None if found and end.kind == "exit" else death_of(end, step, stage)
    if death is not None:
        found.append(death)
    if not found:
        return EngineFailure("error@worker", step, f"left with exit status {end.status} in stage {stage}")
    first = merge_violations(found)[0]
    after = f"; {death.detail}" if death is not None and first.signature != death.signature else ""
    return EngineFailure(first.signature, first.step, first.detail + after)
