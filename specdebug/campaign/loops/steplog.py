"""A record of the steps of runs, for pages and traces; a replay without one keeps none, so that memory stays flat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specdebug.verdict.ledger import accepted_in
from specdebug.verdict.outcome import mean


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One engine step.

    Attributes:
        number: counts from 1.
        kind: ``prefill``, ``decode`` or ``idle``; ``served`` of a target without steps: a look at what had ended.
        emitted: the number of tokens of all requests that came out.
        accept: by request the tokens that each verify accepted, the bonus token included.
        seconds: the engine's time: CPU time on a CPU, wall time on a GPU.
    """

    number: int
    kind: str
    rids: tuple[str, ...]
    emitted: int
    accept: Mapping[str, tuple[int, ...]]
    finished: tuple[str, ...]
    retracted: tuple[str, ...]
    seconds: float

    @property
    def accept_mean(self) -> float | None:
        """The mean accept length of the step's verifies; None where none was verified."""
        return mean(self.lengths)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(length for lengths in self.accept.values() for length in lengths)

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> EngineStep:
        return cls(
            number=event["step"],
            kind=event["kind"],
            rids=tuple(event["rids"]),
            emitted=sum(len(tokens) for tokens in event["emitted"].values()),
            accept=accepted_in(event),
            finished=tuple(event["finished"]),
            retracted=tuple(event["retracted"]),
            seconds=event["s"],
        )


@dataclass
class Recording:
    """The steps of every arm of a replay, by the arm run's key, in the order in which they were taken."""

    steps: dict[str, list[EngineStep]] = field(default_factory=dict)

    def take(self, key: str, event: Mapping[str, Any]) -> None:
        if event.get("event") == "step":
            self.steps.setdefault(key, []).append(EngineStep.of(event))

    def of(self, key: str) -> list[EngineStep]:
        """Return an arm's steps; none where it never came to one."""
        return self.steps.get(key, [])

    @property
    def retracted(self) -> set[str]:
        """The requests that had to give their slots back in some arm, and so were prefilled again."""
        return {rid for steps in self.steps.values() for step in steps for rid in step.retracted}
