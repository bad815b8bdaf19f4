"""Explain why a trace is another one: by its first other choices, each with how narrow it was."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdebug.base.abilities import DEFAULT
from specdebug.bundle.partings import Parting, partings
from specdebug.bundle.weigh import TARGET
from specdebug.workers.child import WorkerStartError
from specdebug.workers.job import Job, WorkerEnd

if TYPE_CHECKING:
    from specdebug.bundle.content import Bundle
    from specdebug.workers.pool import WorkerPool


@dataclass(frozen=True)
class Weighed:
    """A parting and, by the reference, how narrow its choice was; the numbers are None where there are none.

    ``gap``: how far the worse token's logit lies below the best, or by how much log-probability a draft is in the tree
    or out of it; ``allowed``: how much rounding may move that; ``preferred``: the reference's token.
    """

    parting: Parting
    gap: float | None = None
    allowed: float | None = None
    preferred: int | None = None

    @property
    def narrow(self) -> bool:
        """Return True if rounding explains it."""
        return self.gap is not None and self.allowed is not None and self.gap <= self.allowed

    @property
    def text(self) -> str:
        """The parting in words, with its place."""
        one = self.parting
        if one.kind == "schedule":
            return f"step {one.step}: no choice of a token decides what differs there"
        place = f"step {one.step}, {one.request} output {one.position}"
        accepted = bool(one.depth)
        what = f"{one.recorded} accepted, now {one.now}" if accepted else f"token {one.recorded}, now {one.now}"
        if one.kind == "sampled":
            return f"{place}: {what}; the request is sampled, so no margin is known"
        if self.gap is None or self.allowed is None:
            return f"{place}: {what}; how narrow that was could not be found out"
        draft = f"what decides over draft {self.preferred} is {self.gap:.3g} of log-probability from even"
        token = f"the worse is {self.gap:.3g} logits below the best"
        return f"{place}: {what}; {draft if accepted else token}, rounding allows {self.allowed:.2g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        one = self.parting
        if one.kind == "schedule":
            return {"kind": one.kind, "step": one.step, "narrow": False, "text": self.text}
        return {
            **{name: getattr(one, name) for name in ("kind", "step", "request", "position", "recorded", "now")},
            "preferred": self.preferred,
            "gap": self.gap if self.gap is None or math.isfinite(self.gap) else None,
            "allowed": self.allowed,
            "narrow": self.narrow,
            "text": self.text,
        }


def explain(pool: WorkerPool, bundle: Bundle, steps: Sequence[str]) -> tuple[Weighed, ...]:
    """The partings of the bundle's trace from ``steps``, weighed, in order; none where the bundle's cannot be read."""
    found = partings(bundle.requests.requests, bundle.recorded.steps, steps) or ()
    heavy = [parting for parting in found if parting.kind in ("token", "draft")]
    listener = _Scales()
    if heavy and bundle.run.target == DEFAULT:
        limits = bundle.run.scenario.limits
        payload = {"shape": bundle.run.shape, "partings": heavy}
        with contextlib.suppress(WorkerStartError):  # the arm's own result stands; that they were not weighed is said
            pool.run([Job("weighing", TARGET, payload, limits.timeout_s, float(limits.memory_mb))], listener)
    weights = {id(parting): listener.weights.get(number, {}) for number, parting in enumerate(heavy)}
    return tuple(Weighed(parting, **weights.get(id(parting), {})) for parting in found)


class _Scales:
    """The reports of the worker that weighs. One that ends badly has weighed less; that is then said."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, Any]] = {}

    def started(self, job: Job) -> None: ...

    def event(self, job: Job, event: dict[str, Any]) -> None:
        if event["event"] == "weighed":
            gap, allowed = float(event["gap"]), float(event["allowed"])
            self.weights[event["number"]] = {"gap": gap, "allowed": allowed, "preferred": event["preferred"]}

    def ended(self, job: Job, end: WorkerEnd) -> None: ...

    def waiting(self) -> None: ...
