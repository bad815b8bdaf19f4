"""The matrix: every registered fix, applied and reverted, seed by seed.

A toggle is **live** when its scenario is silent with the fix applied and fails as stated with the fix reverted, and
each of its edits has run in one of its scenarios (whose other arms are run, too, for the counts of edits that never
ran). One that the machine cannot run is **untested**, any other **rotten**. A fix that only exists in one attention
plan (:func:`exists_in`) is run with that plan, whichever was asked for, and its check says so."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from specdebug.async_probe.gate import KINDS
from specdebug.base import interrupts
from specdebug.base.attention_plans import PLANS
from specdebug.base.errors import SpecDebugError, Where
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Progress, run_arms
from specdebug.campaign.loops.warm import KeptServers
from specdebug.patching import Edit
from specdebug.patching.toggles import Toggle
from specdebug.scenario.checks import engine_shape
from specdebug.scenario.grammar import Arm, Expectation, Scenario
from specdebug.scenario.library import Library, engine_sites
from specdebug.targets.installs.fit import place_of
from specdebug.targets.installs.store import Installed
from specdebug.targets.settings import TargetChoice
from specdebug.verdict.outcome import EXIT_CODES, Outcome, not_engine_code
from specdebug.verdict.signatures import stated
from specdebug.workers.pool import WorkerPool

_ENGINE = "specdebug.engine."


def exists_in(toggle: Toggle, plan: str) -> bool:
    """Return True if a fix can be reverted and noticed under attention plan ``plan``, whose record says which modules
    hold its planner's lines: a fix in a planner, or noticed by a probe in one, exists where that planner runs."""
    if any(_only_elsewhere(patch.module, plan) for patch in toggle.patches):
        return False
    for signature in toggle.detected_by.signatures:
        kind, _, pattern = signature.partition("@")
        if kind not in KINDS:
            continue
        sites = [site for site in engine_sites() if site.kind == kind and fnmatchcase(site.name, pattern)]
        modules = {_ENGINE + site.path.removesuffix(".py").replace("/", ".") for site in sites}
        if modules and all(_only_elsewhere(module, plan) for module in modules):
            return False
    return True


def _only_elsewhere(module: str, plan: str) -> bool:
    """Return True if the module belongs to other plans' planners and not to this one's."""
    return module not in PLANS[plan].modules and any(module in each.modules for each in PLANS.values())


@dataclass(frozen=True)
class LatentCheck:
    """One fix. ``guard``: the guard's place, ``file:line`` in the engine; None where it is gone, as ``problem``
    says."""

    toggle: Toggle
    guard: str | None
    why: str
    problem: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "pr": self.toggle.pr,
            "title": self.toggle.title,
            "latent": self.guard is not None,
            "guard": self.guard,
            "why": self.why,
            "live": False,
            "untested": False,
            "problems": [self.problem] if self.problem else [],
        }


def check_latent(here: Installed, toggles: Iterable[Toggle]) -> list[LatentCheck]:
    """Look for the guard of each fix that nothing can reach in a release. Raises SpecDebugError where it cannot be
    read."""
    checks = []
    for toggle in toggles:
        if (guard := toggle.latent_in.get(here.engine)) is None:
            continue
        place, what = place_of(here, guard.patch)
        gone = f"its guard is not in {here.release}, so it may be live, and no scenario shows it: {what}"
        checks.append(LatentCheck(toggle, place, guard.why, "" if place else gone))
    return checks


@dataclass(frozen=True)
class ToggleCheck:
    """The matrix's verdict on one toggle in one of its scenarios, run with attention plan ``backend``.

    ``keeps_backend`` is True if another plan was asked for. ``elsewhere``: runs of other arms, and of its other
    scenarios, reverted.
    """

    toggle: Toggle
    applied: tuple[ArmResult, ...]
    reverted: tuple[ArmResult, ...]
    backend: str = ""
    keeps_backend: bool = False
    elsewhere: tuple[ArmResult, ...] = ()

    @property
    def key(self) -> tuple[int, str]:
        return self.toggle.pr, self.toggle.detected_by.scenario

    @property
    def noisy(self) -> list[ArmResult]:
        """The applied runs that did not pass."""
        return [result for result in self.applied if result.outcome.verdict != "pass"]

    @property
    def missed(self) -> list[ArmResult]:
        """The reverted runs that did not fail as stated."""
        wanted, found = self.toggle.detected_by.signatures, ((result, result.outcome) for result in self.reverted)
        return [r for r, found in found if found.verdict != "fail" or not stated(wanted, found.signature, found.seen)]

    @property
    def silent(self) -> int:
        return len(self.applied) - len(self.noisy)

    @property
    def detected(self) -> int:
        return len(self.reverted) - len(self.missed)

    @property
    def outcomes(self) -> list[Outcome]:
        return [result.outcome for result in (*self.applied, *self.reverted)]

    @property
    def problems(self) -> tuple[str, ...]:
        wanted = " or ".join(self.toggle.detected_by.signatures)
        said = [f"applied, {_found(result, '')}" for result in self.noisy]
        said += [f"reverted, {_found(result, 'nothing was found')}; stated is {wanted}" for result in self.missed]
        where = f"in any arm of {' or '.join(each.scenario for each in self.toggle.detections)}"
        said += [f"reverted, {_found(result, '')}" for result in self.elsewhere if result.outcome.unavailable]
        return (*said, *(f"{place(edit)}: edit {edit.id} never ran {where}" for edit in self.idle))

    @property
    def idle(self) -> tuple[Edit, ...]:
        """The edits that never ran, in no run that lived to count them."""
        ran = [each.outcome for each in (*self.reverted, *self.elsewhere) if not each.outcome.unavailable]
        counts = (outcome.reverted_hits.get(str(self.toggle.pr)) for outcome in ran)
        told = [each for each in counts if each is not None]
        edits = [edit for patch in self.toggle.patches for edit in patch.edits]
        return tuple(edit for edit in edits if told and not any(each.get(edit.id) for each in told))

    @property
    def live(self) -> bool:
        return not (self.noisy or self.missed or self.idle)

    @property
    def untested(self) -> bool:
        """True if all that it takes to be live are runs that this machine could not make."""
        could_run = self.idle and not any(result.outcome.unavailable for result in self.elsewhere)
        return not self.live and not could_run and all(r.outcome.unavailable for r in (*self.noisy, *self.missed))

    def to_dict(self) -> dict[str, Any]:
        outcomes = self.outcomes
        return {
            "pr": self.toggle.pr,
            "title": self.toggle.title,
            "scenario": self.toggle.detected_by.scenario,
            "signatures": list(self.toggle.detected_by.signatures),
            "live": self.live,
            "untested": self.untested,
            "seeds": len(self.applied),
            "silent": self.silent,
            "detected": self.detected,
            "problems": list(self.problems),
            "never_ran": [{"id": edit.id, "where": place(edit)} for edit in self.idle],
            "backend": self.backend,
            "keeps_backend": self.keeps_backend,
            "ties": sum(len(outcome.ties) for outcome in outcomes),
            "stack": next((dict(outcome.stack) for outcome in outcomes if outcome.stack), {}),
            "not_engine_code": not_engine_code(outcomes),
        }


def place(edit: Edit) -> str:
    at = edit.match_at
    here = os.path.relpath(at.path)
    return str(at if here.startswith(os.pardir) else Where(here, at.line))


def _found(result: ArmResult, nothing: str) -> str:
    outcome = result.outcome
    return f"seed {result.run.seed}: {outcome.verdict}, {outcome.signature or outcome.detail or nothing}"


def plan_matrix(
    library: Library,
    toggles: Sequence[Toggle],
    seeds: int,
    overrides: Mapping[str, Any] | None = None,
    target: TargetChoice | None = None,
) -> list[tuple[Toggle, list[ArmRun]]]:
    """Each toggle as one of its scenarios shows it, with its runs: seed by seed, with the fix applied, and reverted."""
    rows = []
    for toggle in (each.shown_by(detection) for each in toggles for detection in each.detections):
        scenario, base = _base(library, toggle, overrides or {}, target)
        packs = library.packs(scenario.probes_of(base.name))
        sides = ((), None), ((toggle,), Expectation("fail", toggle.detected_by.signatures))
        runs = [
            ArmRun(_key(scenario, base, seed, reverts), scenario, base.name, seed, packs, reverts, expected)
            for seed, (reverts, expected) in product(range(scenario.seed, scenario.seed + seeds), sides)
        ]
        rows.append((toggle, runs))
    return rows


def runs_once(rows: Sequence[tuple[Toggle, Sequence[ArmRun]]]) -> list[ArmRun]:
    return list({run.key: run for _, runs in rows for run in runs}.values())


@dataclass(frozen=True)
class Matrix:
    """The checks of all toggles, or of those that could be made before a Ctrl-C."""

    checks: tuple[ToggleCheck, ...]
    interrupted: bool

    @property
    def exit_code(self) -> int:
        """0 when all are live, 1 when one is rotten, 125 when one could not be tested here, 128 + N after signal N."""
        if self.interrupted:
            return interrupts.exit_code()
        if any(not check.live and not check.untested for check in self.checks):
            return EXIT_CODES["fail"]
        return EXIT_CODES["pass" if all(check.live for check in self.checks) else "unknown"]


def verify(
    pool: WorkerPool,
    library: Library,
    toggles: Sequence[Toggle],
    seeds: int,
    progress: Progress | None = None,
    overrides: Mapping[str, Any] | None = None,
    locate: Callable[[Sequence[ArmResult]], list[ArmResult]] = list,
    target: TargetChoice | None = None,
) -> Matrix:
    """Run the matrix and judge each toggle. ``overrides``: engine options over those of every scenario. ``locate``
    finds where failures began. ``target``: what runs instead of the scenarios' own."""
    overrides = overrides or {}

    if not toggles:
        raise SpecDebugError("no toggles to verify; `specdebug toggles list` shows what is registered")
    rows = plan_matrix(library, toggles, seeds, overrides, target)
    results, interrupted = _run(pool, library, runs_once(rows), progress, locate)
    checks = []
    for toggle, runs in rows:  # as they were planned: files may have changed since
        if all(run.key in results for run in runs):
            ended = tuple(results[run.key] for run in runs)
            backend = engine_shape(runs[0].scenario, runs[0].arm).attention_backend
            kept = backend != overrides.get("attention_backend", backend)
            checks.append(ToggleCheck(toggle, ended[::2], ended[1::2], backend, kept))
    checks = _with_siblings(checks)
    more = {check.key: _elsewhere(library, check, overrides, target) for check in checks if check.idle}
    if not more or interrupted:
        return Matrix(tuple(check for check in checks if check.key not in more), interrupted)
    results, interrupted = _run(pool, library, [run for runs in more.values() for run in runs], progress)
    found = {key: [results[run.key] for run in runs if run.key in results] for key, runs in more.items()}
    whole = [check for check in checks if len(found.get(check.key, ())) == len(more.get(check.key, ()))]
    looked = [dataclasses.replace(check, elsewhere=(*check.elsewhere, *found.get(check.key, ()))) for check in whole]
    return Matrix(tuple(_with_siblings(looked)), interrupted)


def _with_siblings(checks: Sequence[ToggleCheck]) -> list[ToggleCheck]:
    joined = []
    for check in checks:
        siblings = [each for each in checks if each.toggle.pr == check.toggle.pr and each is not check]
        seen = list(check.elsewhere)
        for result in (one for each in siblings for one in (*each.reverted, *each.elsewhere)):
            if not any(result is known for known in (*seen, *check.reverted)):
                seen.append(result)
        joined.append(dataclasses.replace(check, elsewhere=tuple(seen)))
    return joined


def _run(
    pool: WorkerPool,
    library: Library,
    runs: Sequence[ArmRun],
    progress: Progress | None,
    locate: Callable[[Sequence[ArmResult]], list[ArmResult]] = list,
) -> tuple[dict[str, ArmResult], bool]:
    """Return the results by key, without those that a Ctrl-C cut short, which say nothing; and True if one came."""
    with closing(KeptServers(pool.limit)) as servers:
        ended, interrupted = run_arms(pool, library, [servers.kept(run) for run in runs], progress=progress)
        answers = [dataclasses.replace(each, run=run) for run, each in zip(runs, ended, strict=True)]
        answers = answers if interrupted else locate(answers)
    return {r.run.key: r for r in answers if not (interrupted and r.outcome.verdict == "unknown")}, interrupted


def _elsewhere(
    library: Library, check: ToggleCheck, overrides: Mapping[str, Any], target: TargetChoice | None
) -> list[ArmRun]:
    """Return a toggle's runs in the arms of its scenario that the matrix passes over, under the scenario's own seed."""
    scenario, base = _base(library, check.toggle, overrides, target)
    others = [dataclasses.replace(arm, revert=()) for arm in scenario.arms.values() if arm.name != base.name]
    scenario = dataclasses.replace(scenario, arms={arm.name: arm for arm in (base, *others)})
    key, seed = _key(scenario, base, scenario.seed, (check.toggle,)), scenario.seed
    packs = {arm.name: library.packs(scenario.probes_of(arm.name)) for arm in others}
    return [ArmRun(f"{key}, {name}", scenario, name, seed, packs[name], (check.toggle,)) for name in packs]


def _base(
    library: Library, toggle: Toggle, overrides: Mapping[str, Any], target: TargetChoice | None
) -> tuple[Scenario, Arm]:
    """Return the scenario that detects a toggle, and the arm to run with and without it."""
    scenario = library.scenario(toggle.detected_by.scenario)
    if target is not None:
        scenario = scenario.on(target)
    own = [arm for arm in scenario.arms.values() if arm.revert == (toggle.pr,)]
    base = dataclasses.replace((own or list(scenario.arms.values()))[0], revert=())
    left_out = "attention_backend" in overrides and not exists_in(toggle, overrides["attention_backend"])
    options = {name: value for name, value in overrides.items() if name != "attention_backend" or not left_out}
    return dataclasses.replace(scenario, arms={**scenario.arms, base.name: base}, overrides=options), base


def _key(scenario: Scenario, base: Arm, seed: int, chosen: Sequence[Toggle]) -> str:
    what = f"{chosen[0].pr} reverted" if chosen else f"{base.name} applied"
    plan = scenario.overrides.get("attention_backend")
    return ", ".join([scenario.name, what, f"seed {seed}", *([plan] if plan else [])])
