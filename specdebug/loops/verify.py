"""The matrix: every registered fix, applied and reverted, seed by seed.

A toggle is **live** when its scenario is silent with the fix applied and fails with the stated signature
with the fix reverted. Otherwise it is **rotten**: a detector that cannot see its bug, or sees one where
there is none. So the registry is a set of mutation tests of everything else here. One that the machine cannot run,
for lack of memory or of a library, is neither: **untested**.

The arm used is the scenario's own arm that reverts exactly this fix (without that revert for the applied
side), else its first one.

The matrix can be run on another device, in another dtype, or with another attention plan than the scenarios name. A
fix that only exists in one plan is then still run with that plan (see ``plans.py``), and its check says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from specdebug import interrupts
from specdebug.errors import SpecDebugError
from specdebug.loops import replay
from specdebug.loops.plans import exists_in
from specdebug.loops.replay import ArmResult, ArmRun, Progress, run_arms
from specdebug.scenario.checks import engine_config
from specdebug.scenario.grammar import Arm, Scenario
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.pool import WorkerPool

if TYPE_CHECKING:
    from specdebug.toggles import Toggle


class ScenarioContent(replay.RunContent, Protocol):
    """A source of scenarios, and of whatever else a run needs."""

    def scenario(self, name: str) -> Scenario: ...


@dataclass(frozen=True)
class ToggleCheck:
    """The matrix's verdict on one toggle; ``problems`` is empty when it is live.

    ``backend``: the attention plan it was run with; ``keeps_backend``: though another was asked for.
    """

    toggle: Toggle
    applied: tuple[ArmResult, ...]
    reverted: tuple[ArmResult, ...]
    backend: str = ""
    keeps_backend: bool = False

    @property
    def silent(self) -> int:
        """Seeds on which the applied side passed."""
        return sum(result.outcome.verdict == "pass" for result in self.applied)

    @property
    def detected(self) -> int:
        """Seeds on which the reverted side failed as stated."""
        return sum(_as_stated(self.toggle, result) for result in self.reverted)

    @property
    def problems(self) -> tuple[str, ...]:
        """Each deviation in one line."""
        said = []
        for result in self.applied:
            outcome = result.outcome
            if outcome.verdict != "pass":
                what = outcome.signature or outcome.detail
                said.append(f"applied, seed {result.run.seed}: {outcome.verdict}, {what}")
        for result in self.reverted:
            outcome = result.outcome
            if not _as_stated(self.toggle, result):
                what = outcome.signature or outcome.detail or "nothing was found"
                said.append(
                    f"reverted, seed {result.run.seed}: {outcome.verdict}, {what}; "
                    f"stated is {' or '.join(self.toggle.detected_by.signatures)}"
                )
        return tuple(said)

    @property
    def live(self) -> bool:
        return not self.problems

    @property
    def untested(self) -> bool:
        """Return whether nothing stands against it but that this machine could not run (all of) it."""
        bad = [result for result in self.applied if result.outcome.verdict != "pass"]
        bad += [result for result in self.reverted if not _as_stated(self.toggle, result)]
        return bool(bad) and all(result.outcome.unavailable for result in bad)

    def to_dict(self) -> dict[str, Any]:
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
            "backend": self.backend,
            "keeps_backend": self.keeps_backend,
            "ties": sum(len(result.outcome.ties) for result in (*self.applied, *self.reverted)),
            "stack": next((dict(r.outcome.stack) for r in (*self.applied, *self.reverted) if r.outcome.stack), {}),
        }


def _as_stated(toggle: Toggle, result: ArmResult) -> bool:
    outcome = result.outcome
    return outcome.verdict == "fail" and toggle.detected_by.recognises(outcome.signature or "")


def plan_matrix(
    library: ScenarioContent, toggles: Sequence[Toggle], seeds: int, overrides: Mapping[str, Any] | None = None
) -> list[ArmRun]:
    """Every run of the matrix. Applied runs that several toggles share are planned once."""
    runs: dict[str, ArmRun] = {}
    for toggle in toggles:
        scenario, base = _base(library, toggle, overrides or {})
        packs = library.packs(scenario.probes_of(base.name))
        for offset in range(seeds):
            seed = scenario.seed + offset
            for chosen in ((), (toggle,)):
                key = _key(scenario, base, seed, chosen)
                runs[key] = ArmRun(key, scenario, base.name, seed, packs, chosen)
    return list(runs.values())


@dataclass(frozen=True)
class Matrix:
    """Every toggle judged, or those that could be before a Ctrl-C."""

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
    library: ScenarioContent,
    toggles: Sequence[Toggle],
    seeds: int,
    progress: Progress | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Matrix:
    """Run the matrix and judge each toggle. ``overrides``: engine options over those of every scenario."""
    overrides = overrides or {}
    if not toggles:
        raise SpecDebugError("no toggles to verify; `specdebug toggles list` shows what is registered")
    answers, interrupted = run_arms(pool, library, plan_matrix(library, toggles, seeds, overrides), progress)
    # A run that a Ctrl-C cut short says nothing of its toggle.
    results = {r.run.key: r for r in answers if not (interrupted and r.outcome.verdict == "unknown")}
    checks = []
    for toggle in toggles:
        scenario, base = _base(library, toggle, overrides)
        seed_range = range(scenario.seed, scenario.seed + seeds)
        applied = [results.get(_key(scenario, base, seed, ())) for seed in seed_range]
        reverted = [results.get(_key(scenario, base, seed, (toggle,))) for seed in seed_range]
        silent, failing = (tuple(r for r in side if r is not None) for side in (applied, reverted))
        backend = engine_config(scenario, base.name).attention_backend
        kept = backend != overrides.get("attention_backend", backend)
        check = ToggleCheck(toggle, silent, failing, backend, kept)
        if len(check.applied) == len(check.reverted) == seeds:
            checks.append(check)
    return Matrix(tuple(checks), interrupted)


def _base(library: ScenarioContent, toggle: Toggle, overrides: Mapping[str, Any]) -> tuple[Scenario, Arm]:
    """The scenario that detects a toggle, and the arm to run with and without it."""
    scenario = library.scenario(toggle.detected_by.scenario)
    own = [arm for arm in scenario.arms.values() if arm.revert == (toggle.pr,)]
    base = dataclasses.replace((own or list(scenario.arms.values()))[0], revert=())
    over = dict(overrides)
    if "attention_backend" in over and not exists_in(toggle, over["attention_backend"]):
        del over["attention_backend"]
    return dataclasses.replace(scenario, arms={**scenario.arms, base.name: base}, overrides=over), base


def _key(scenario: Scenario, base: Arm, seed: int, chosen: Sequence[Toggle]) -> str:
    what = f"{chosen[0].pr} reverted" if chosen else f"{base.name} applied"
    plan = scenario.overrides.get("attention_backend")
    return ", ".join([scenario.name, what, f"seed {seed}", *([plan] if plan else [])])
