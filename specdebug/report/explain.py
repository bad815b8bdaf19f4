"""Reasons why an arm that should have failed may have passed, and advice on what to try next."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from specdebug.base.abilities import DEFAULT
from specdebug.campaign.loops.replay import ArmResult
from specdebug.report.words import some, times
from specdebug.scenario.library import engine_sites, live_in
from specdebug.targets.options import options_of

MAX_MISSED = 6
"""Sites that were never reached and are named."""

_sites = cache(engine_sites)


@dataclass(frozen=True)
class Probes:
    """The work of the probes: sites ``enabled`` by the packs, those of them ``reached``, calls in all, the others."""

    enabled: int
    reached: int
    evaluated: int
    missed: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The evidence for and against an arm in which nothing could be found.

    Attributes:
        reverted: by fix and edit of its revert, the number of times that it ran.
        oracles: by name, the number of looks; 0 for one that was switched off or had nothing to look at.
        near: the nearest things to a failure, a line each.
        next: the advice, a line each; commands begin with ``specdebug``.
    """

    reverted: dict[str, dict[str, int]]
    probes: Probes
    oracles: dict[str, int]
    near: tuple[str, ...]
    next: tuple[str, ...]

    @property
    def findings(self) -> list[str]:
        """The reverted lines that ran and the probes and oracles that looked, a line each."""
        told = []
        for number, edits in self.reverted.items():
            each = [f"{edit} {times(count) if count else 'never'}" for edit, count in edits.items()]
            detail = f" ({', '.join(each)})" if len(each) > 1 else ""
            told.append(f"reverted lines of {number} ran {times(sum(edits.values()))}{detail}")
        never = f"; never at {some(self.probes.missed, MAX_MISSED)}" if self.probes.missed else ""
        reached = f"{self.probes.reached} of {self.probes.enabled} enabled sites reached"
        told.append(f"probes: {reached}, {times(self.probes.evaluated)} in all{never}")
        idle = [name for name, count in self.oracles.items() if not count]
        looked = ", ".join(f"{name} {times(count)}" for name, count in self.oracles.items() if count) or "none"
        told.append(f"oracles that looked: {looked}" + (f"; that did not: {', '.join(idle)}" if idle else ""))
        return told + ([f"nearest to a failure: {'; '.join(self.near)}"] if self.near else [])

    @property
    def advice(self) -> list[str]:
        """The advice, a line each."""
        return [f"try: {one}" for one in self.next]

    @property
    def lines(self) -> list[str]:
        """The findings, then the advice."""
        return [*self.findings, *self.advice]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def explain(result: ArmResult) -> Explanation | None:
    """Explain an arm that passed though a failure was expected or fixes were reverted to see one; None for others."""
    expectation, run, outcome = result.run.expectation, result.run, result.outcome
    should_fail = bool(run.reverts) if expectation is None else expectation.verdict == "fail"
    if outcome.verdict != "pass" or not should_fail:
        return None
    enabled = set().union(*(live_in(pack, _sites()) for pack in run.packs))
    counts = {site: count for site, count in outcome.reached_sites.items() if count}
    missed = tuple(sorted(enabled - counts.keys()))
    wanted, steps = run.scenario.oracles_of(run.arm), outcome.metrics.steps
    looks = {"lossless": 0, "draft_kv": 0, **outcome.looks}
    looks |= {"pools": steps if wanted.pools else 0, "ends": steps if wanted.ends else 0}
    looks["guards"] = steps if run.asked.guards else 0
    looks["accept"] = sum(request.cold_accept_lengths is not None for request in outcome.requests)
    return Explanation(
        {number: dict(edits) for number, edits in outcome.reverted_hits.items()},
        Probes(len(enabled), len(enabled) - len(missed), sum(counts.values()), missed),
        looks,
        tuple(_near(result)),
        tuple(_next(result)),
    )


def _near(result: ArmResult) -> Iterator[str]:
    outcome, accept = result.outcome, result.run.scenario.oracles_of(result.run.arm).accept
    if outcome.ties:
        rid, tie = max(outcome.ties, key=lambda each: each[1].used)
        second = f"{rid} output {tie.position} was the reference's second choice by {tie.margin:.2g} logits"
        yield f"{second} ({tie.allowed:.2g} would be wrong)"
    hit, cold = outcome.metrics.accept_hit, outcome.metrics.accept_cold
    if accept is not None and accept.min_ratio is not None and hit is not None and cold and hit < cold:
        yield f"accept length {hit:.2f} after a cache hit, {cold:.2f} cold (less than {accept.min_ratio:g} of it fails)"


def _next(result: ArmResult) -> Iterator[str]:
    run = result.run
    asked = ",".join(map(str, run.added_reverts))
    here = os.path.relpath(run.scenario.path)
    file = str(run.scenario.path) if here.startswith(os.pardir) else here  # as one would type it here
    words = [file, "--arm", run.arm, *(("--revert", asked) if asked else ())]
    yield f"{shlex.join(['specdebug', 'flake', *words])} (more seeds: how often does it fail?)"
    if run.target == DEFAULT:
        yield from options_of(run.target).stricter(run.options)
    if any(pack.mode != "record" for pack in run.packs) and run.scenario.arms[run.arm].mode != "record":
        yield f"{shlex.join(['specdebug', 'replay', *words, '--mode', 'record'])} (probes note all that they find)"
    wanted = run.scenario.oracles_of(run.arm)
    names = ("lossless", "draft_kv", "sampling", "ends", "graphs", "pools")
    off = [f"{name}: true" for name in names if not getattr(wanted, name)]
    off += ["accept: {min_ratio: 0.8}"] if wanted.accept is None else []
    if off:
        yield f"oracles: {{{', '.join(off)}}} in the scenario (off in this arm)"
