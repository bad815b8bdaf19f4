"""Reasons why an arm that should have failed may have passed, and advice on what to try next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
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
        near = [f"nearest to a failure: {'; '.join(self.near)}"] if self.near else []
        return [*_reverted(self.reverted), _probes(self.probes), _oracles(self.oracles), *near]

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
    expectation, run = result.run.expectation, result.run
    should_fail = bool(run.reverts) if expectation is None else expectation.verdict == "fail"
    if result.outcome.verdict != "pass" or not should_fail:
        return None
    return Explanation(
        {number: dict(edits) for number, edits in result.outcome.reverted_hits.items()},
        _what_probes_did(result),
        _what_oracles_did(result),
        tuple(_near(result)),
        tuple(_next(result)),
    )


def _what_probes_did(result: ArmResult) -> Probes:
    enabled = set().union(*(live_in(pack, _sites()) for pack in result.run.packs))
    counts = {site: count for site, count in result.outcome.reached_sites.items() if count}
    missed = tuple(sorted(enabled - counts.keys()))
    return Probes(len(enabled), len(enabled) - len(missed), sum(counts.values()), missed)


def _what_oracles_did(result: ArmResult) -> dict[str, int]:
    run, outcome = result.run, result.outcome
    wanted = run.scenario.oracles_of(run.arm)
    looks = {"lossless": 0, "draft_kv": 0, **outcome.looks}
    looks["pools"] = outcome.metrics.steps if wanted.pools else 0
    looks["ends"] = outcome.metrics.steps if wanted.ends else 0
    looks["guards"] = outcome.metrics.steps if run.asked.guards else 0
    looks["accept"] = sum(request.cold_accept_lengths is not None for request in outcome.requests)
    return looks


def _near(result: ArmResult) -> Iterator[str]:
    outcome, accept = result.outcome, result.run.scenario.oracles_of(result.run.arm).accept
    if outcome.ties:
        rid, tie = max(outcome.ties, key=lambda each: each[1].used)
        yield (
            f"{rid} output {tie.position} was the reference's second choice by {tie.margin:.2g} logits "
            f"({tie.allowed:.2g} would be wrong)"
        )
    hit, cold = outcome.metrics.accept_hit, outcome.metrics.accept_cold
    if accept is not None and accept.min_ratio is not None and hit is not None and cold and hit < cold:
        yield f"accept length {hit:.2f} after a cache hit, {cold:.2f} cold (less than {accept.min_ratio:g} of it fails)"


def _next(result: ArmResult) -> Iterator[str]:
    run = result.run
    own = run.scenario.arms[run.arm].revert
    asked = ",".join(str(number) for number in run.reverts if number not in own)
    words = [_file(run.scenario.path), "--arm", run.arm, *(("--revert", asked) if asked else ())]
    yield f"{shlex.join(['specdebug', 'flake', *words])} (more seeds: how often does it fail?)"
    if run.target == DEFAULT:
        yield from options_of(run.target).stricter(run.options)
    if any(pack.mode != "record" for pack in run.packs) and run.scenario.arms[run.arm].mode != "record":
        yield f"{shlex.join(['specdebug', 'replay', *words, '--mode', 'record'])} (probes note all that they find)"
    wanted = run.scenario.oracles_of(run.arm)
    off = [
        f"{name}: true"
        for name in ("lossless", "draft_kv", "sampling", "ends", "graphs", "pools")
        if not getattr(wanted, name)
    ]
    if wanted.accept is None:
        off.append("accept: {min_ratio: 0.8}")
    if off:
        yield f"oracles: {{{', '.join(off)}}} in the scenario (off in this arm)"


def _file(path: Path) -> str:
    """The path as one would type it here."""
    here = os.path.relpath(path)
    return str(path) if here.startswith(os.pardir) else here


def _reverted(hits: dict[str, dict[str, int]]) -> Iterator[str]:
    for number, edits in hits.items():
        each = [f"{edit} {times(count) if count else 'never'}" for edit, count in edits.items()]
        detail = f" ({', '.join(each)})" if len(each) > 1 else ""
        yield f"reverted lines of {number} ran {times(sum(edits.values()))}{detail}"


def _probes(probes: Probes) -> str:
    never = f"; never at {some(probes.missed, MAX_MISSED)}" if probes.missed else ""
    reached = f"{probes.reached} of {probes.enabled} enabled sites reached"
    return f"probes: {reached}, {times(probes.evaluated)} in all{never}"


def _oracles(looks: dict[str, int]) -> str:
    idle = [name for name, count in looks.items() if not count]
    looked = ", ".join(f"{name} {times(count)}" for name, count in looks.items() if count) or "none"
    return f"oracles that looked: {looked}" + (f"; that did not: {', '.join(idle)}" if idle else "")
