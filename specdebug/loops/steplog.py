"""A record of what each step of a run did, for those who show it: pages and traces. Verdicts do without.

A :class:`Recording` is handed to a replay; it sees every event of every arm and keeps the steps. Nobody who does not
ask for one pays for it, so that a soak's memory stays flat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One engine step.

    Attributes:
        number: counts from 1, as everywhere.
        kind: ``prefill``, ``decode`` or ``idle``.
        rids: the requests in the batch.
        emitted: tokens that came out, of all requests together.
        accept: of each request that was verified, the tokens accepted, the bonus token included.
        finished: requests that came to their end.
        retracted: requests that had to give their slots back.
        seconds: what the engine took: CPU time on a CPU, wall time on a GPU.
    """

    number: int
    kind: str
    rids: tuple[str, ...]
    emitted: int
    accept: Mapping[str, int]
    finished: tuple[str, ...]
    retracted: tuple[str, ...]
    seconds: float

    @property
    def accept_mean(self) -> float | None:
        """Mean accept length of the step's requests; None where none was verified."""
        return sum(self.accept.values()) / len(self.accept) if self.accept else None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> EngineStep:
        """The step that a worker's ``step`` event tells of."""
        return cls(
            number=event["step"],
            kind=event["kind"],
            rids=tuple(event["rids"]),
            emitted=sum(len(tokens) for tokens in event["emitted"].values()),
            accept=dict(event["accept"]),
            finished=tuple(event["finished"]),
            retracted=tuple(event["retracted"]),
            seconds=event["s"],
        )


@dataclass
class Recording:
    """The steps of every arm of a replay, by the arm run's key, in the order in which they were taken."""

    steps: dict[str, list[EngineStep]] = field(default_factory=dict)

    def take(self, key: str, event: Mapping[str, Any]) -> None:
        """Keep an arm's event if it is a step."""
        if event.get("event") == "step":
            self.steps.setdefault(key, []).append(EngineStep.of(event))

    def of(self, key: str) -> list[EngineStep]:
        """An arm's steps; none where it never came to one."""
        return self.steps.get(key, [])
