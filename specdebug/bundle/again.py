"""The replay of a bundle: the same arm once more, whether it came out as recorded, and if not, why.

A float that rounds otherwise on another processor, device or torch may change a choice between two that are as good as
each other, and with it the trace hash. That is told from a run that went otherwise by the first other choices of the
trace, each with how narrow it was.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from specdebug.base.abilities import DEFAULT
from specdebug.bundle.content import (
    Bundle,
    Traced,
    changed_versions,
    differences,
    recorded_of,
    run_traced,
    versions_here,
)
from specdebug.bundle.partings import TARGET, Parting, partings
from specdebug.campaign.loops.replay import Progress, Replay
from specdebug.campaign.loops.steplog import Recording
from specdebug.workers.child import WorkerStartError
from specdebug.workers.job import Job
from specdebug.workers.pool import WorkerPool, run_one


@dataclass(frozen=True)
class Weighed:
    """A parting and, by the reference, how narrow its choice was; the numbers are None where there are none. ``gap``:
    how far the worse token's logit lies below the best, or by how much log-probability a draft is in the tree or out of
    it; ``allowed``: how much rounding may move that; ``preferred``: the reference's token."""

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
        what = f"{one.recorded} accepted, now {one.now}" if one.depth else f"token {one.recorded}, now {one.now}"
        place = f"step {one.step}, {one.request} output {one.position}: {what}"
        if one.kind == "sampled":
            return f"{place}; the request is sampled, so no margin is known"
        if self.gap is None or self.allowed is None:
            return f"{place}; how narrow that was could not be found out"
        draft = f"what decides over draft {self.preferred} is {self.gap:.3g} of log-probability from even"
        token = f"the worse is {self.gap:.3g} logits below the best"
        return f"{place}; {draft if one.depth else token}, rounding allows {self.allowed:.2g}"

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
    weights: dict[int, dict[str, Any]] = {}  # a worker that ends badly has weighed less; that is then said
    if heavy and bundle.run.target == DEFAULT:
        limits = bundle.run.scenario.limits
        payload = {"shape": bundle.run.shape, "partings": heavy}
        with contextlib.suppress(WorkerStartError):  # the arm's own result stands; that they were not weighed is said
            job = Job("weighing", TARGET, payload, limits.timeout_s, float(limits.memory_mb))
            for event in run_one(pool, job)[0]:
                if event["event"] == "weighed":
                    told = {"gap": float(event["gap"]), "allowed": float(event["allowed"])}
                    weights[id(heavy[event["number"]])] = {**told, "preferred": event["preferred"]}
    return tuple(Weighed(parting, **weights.get(id(parting), {})) for parting in found)


Status = Literal["exact", "rounding", "different", "interrupted"]


@dataclass(frozen=True)
class Again:
    """A bundle's run and its repetition, None where that was interrupted before it began. ``weighed``: the partings of
    the two traces, None where they were not looked for."""

    bundle: Bundle
    traced: Traced | None
    wall_s: float
    weighed: tuple[Weighed, ...] | None = None

    @property
    def replay(self) -> Replay:
        """The repetition as a replay; what is asked for is its plain verdict."""
        results = () if self.traced is None else (self.traced.result,)
        return Replay(self.bundle.run.scenario, results, self.wall_s, self.status == "interrupted")

    @cached_property
    def differences(self) -> tuple[str, ...]:
        """The facts that did not come out as recorded, a line each. Of a run that was cut short nothing is said."""
        if self.traced is None or self.traced.interrupted:
            return ()
        return differences(self.bundle.recorded, recorded_of(self.traced))

    @cached_property
    def versions(self) -> tuple[str, ...]:
        """The versions that differ on this machine from the one the bundle is from, a line each."""
        stack = {} if self.traced is None else self.traced.result.outcome.stack
        return changed_versions(self.bundle.versions, versions_here(stack))

    @property
    def status(self) -> Status:
        """``exact``: verdict, signature and trace hash are as recorded. ``rounding``: verdict and signature are, and
        the first other choice of every request was as narrow as rounding is wide. Else ``different``."""
        if self.traced is None or self.traced.interrupted:
            return "interrupted"
        if not self.differences:
            return "exact"
        now, recorded = self.traced.result.outcome, self.bundle.recorded
        if self.weighed is None and now.trace_hash != recorded.trace_hash:
            return "interrupted"
        alike = (now.verdict, now.signature) == (recorded.verdict, recorded.signature)
        return "rounding" if alike and self.weighed and all(one.narrow for one in self.weighed) else "different"

    @property
    def reproduced(self) -> bool | None:
        """True if verdict, signature and trace hash are as recorded; None for a run that was cut short."""
        return None if self.status == "interrupted" else self.status == "exact"

    @property
    def first_difference(self) -> Weighed | None:
        """The first choice that rounding does not explain; if it explains all of them, the first."""
        found = self.weighed or ()
        return next((one for one in found if not one.narrow), next(iter(found), None))

    @property
    def lines(self) -> tuple[str, ...]:
        """For a person: whether it was reproduced, else what differs, and what might explain that."""
        recorded = self.bundle.recorded
        if self.reproduced is None:
            return (f"interrupted; recorded is {recorded.verdict}, {recorded.signature or 'no signature'}",)
        if self.reproduced:
            return (f"reproduced: verdict, signature and trace hash {recorded.trace_hash} are as recorded",)
        first = self.first_difference
        if self.status == "rounding" and first is not None:
            others = len(self.weighed or ()) - 1
            more = f" ({others} more of its kind)" if others else ""
            told = [f"same verdict and signature; other hash by rounding: {first.text}{more}"]
        else:
            told = [f"not as recorded in {self.bundle.path}:", *(f"  {line}" for line in self.differences)]
            if first is not None:
                told.append(f"  {'by rounding' if first.narrow else 'not by rounding'}: {first.text}")
        if self.versions:
            told += ["this machine differs from the one the bundle is from:", *(f"  {line}" for line in self.versions)]
        return tuple(told)

    def to_dict(self) -> dict[str, Any]:
        """For the JSON document of the replay."""
        recorded = self.bundle.recorded
        return {
            "bundle": {
                "path": self.bundle.path,
                "reproduced": self.reproduced,
                "status": self.status,
                "first_difference": None if self.first_difference is None else self.first_difference.to_dict(),
                "choices": [one.to_dict() for one in self.weighed or ()],
                "recorded": recorded.facts,
                "differences": list(self.differences),
                "versions": list(self.versions),
            }
        }


def run_again(
    pool: WorkerPool,
    bundle: Bundle,
    timeout_s: float | None = None,
    progress: Progress | None = None,
    recording: Recording | None = None,
) -> Again:
    """Run a bundle's arm, by ``timeout_s`` in place of its own limit. Raises as ``loops.replay.run_arms``."""
    began = time.monotonic()
    if timeout_s is not None:
        limits = replace(bundle.run.scenario.limits, timeout_s=timeout_s)
        bundle = replace(bundle, run=replace(bundle.run, scenario=replace(bundle.run.scenario, limits=limits)))
    traced = run_traced(pool, bundle, bundle.run, progress, recording)
    weighed = None
    if traced is not None and not traced.interrupted:
        with contextlib.suppress(KeyboardInterrupt):
            weighed = explain(pool, bundle, traced.steps)
    return Again(bundle, traced, time.monotonic() - began, weighed)
