"""Which twins of a scenario are run, and how: an arm as it is, and beside it the same arm in each other way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdebug.base.errors import ContentError, SpecDebugError, did_you_mean
from specdebug.campaign.loops.replay import ArmRun, Choices, LeftOut, RunContent, planned, refusal, run_as
from specdebug.scenario.checks import check_scenario
from specdebug.scenario.grammar import Expectation, OracleSpec, Scenario, TwinSpec, merge
from specdebug.scenario.workload import Workload, WorkloadRequest
from specdebug.targets.registry import find_target
from specdebug.targets.relations import NAMED, RELATIONS, NoTwin, Relation, Twin
from specdebug.workers.home import Nest

DEFAULT = tuple(name for name in RELATIONS if name not in NAMED)
"""Those that are tried where none is named."""
SLOWER = 4
"""A twin may serve one request at a time, or all of them twice: its limits are so many times an arm's."""


@dataclass(frozen=True)
class FreshRun(ArmRun):
    """A run whose engine is built for it alone."""

    def nest(self, payload: Mapping[str, Any]) -> Nest | None:
        built = super().nest(payload)
        return None if built is None else built.of or built


@dataclass(frozen=True)
class TwinPair:
    """An arm and its twin.

    Attributes:
        base: the arm as it is, once for all its pairs.
        twin: how the other is served; ``other``: its run, None where a reference stands in its place.
        why_not: why there is no twin; empty where there is one.
        broken: it must not hold; None where nothing is expected.
    """

    relation: Relation
    base: ArmRun
    twin: Twin = field(default_factory=Twin)
    other: ArmRun | None = None
    why_not: str = ""
    broken: bool | None = None

    @property
    def runs(self) -> list[ArmRun]:
        """The runs that it takes."""
        return [] if self.why_not else [self.base, *([self.other] if self.other is not None else [])]


@dataclass(frozen=True)
class TwinPlan:
    """A scenario's pairs, and the arms that are not run on their target."""

    scenario: Scenario
    pairs: tuple[TwinPair, ...]
    left_out: tuple[LeftOut, ...] = ()


def relation_of(name: str) -> Relation:
    """Raises SpecDebugError."""
    if name not in RELATIONS:
        raise SpecDebugError(f"no relation '{name}'{did_you_mean(name, RELATIONS)}; {', '.join(RELATIONS)}")
    return RELATIONS[name]


def plan_twins(
    scenario: Scenario, choices: Choices, relations: Sequence[str], library: RunContent, prefix: str = ""
) -> TwinPlan:
    """The pairs of an arm, or of several: those that are named, else the first and those of which a broken twin is
    expected. ``relations``: in the place of the scenario's. ``prefix``: of the runs' keys. Raises SpecDebugError."""
    changed = scenario if choices.target is None else scenario.on(choices.target)
    first = next(iter(scenario.arms))
    arms = choices.arms or tuple(name for name in scenario.arms if name == first or changed.broken_twins(name))
    found = planned(scenario, replace(choices, arms=arms), library)
    if not found.runs:
        raise refusal(found.left_out)
    pairs: list[TwinPair] = []
    for run in found.runs:
        base = as_it_is(run, f"{prefix}{run.arm}")
        awaited = () if choices.plain else run.scenario.broken_twins(run.arm)
        wanted = (run.scenario.twins.relations or DEFAULT) if run.arm == first or choices.plain else ()
        asked = tuple(relations) or (*wanted, *awaited)
        workload = library.workload(base.scenario, base.arm, base.seed)
        for name in RELATIONS:
            if name in asked:
                broken = None if choices.plain else name in awaited
                pairs.append(replace(pair_of(relation_of(name), base, workload, library), broken=broken))
    return TwinPlan(scenario, tuple(pairs), found.left_out)


def pair_of(relation: Relation, base: ArmRun, workload: Workload, library: RunContent) -> TwinPair:
    """An arm's twin in one relation, or why it has none. ``base``: as :func:`as_it_is` returns it."""
    try:
        if relation.name in ("alone", "order", "interrupted", "retracted") and len(workload.requests) < 2:
            raise NoTwin("there is one request alone")
        target = find_target(base.target)
        twin = target.twin(relation, base.options, longest_prompt(workload.requests))
        return TwinPair(relation, base, twin, None if relation.of == "model" else _other(relation, base, twin, library))
    except NoTwin as error:
        return TwinPair(relation, base, why_not=str(error))
    except ContentError as error:
        return TwinPair(relation, base, why_not=error.problems[0].reason)


def as_it_is(run: ArmRun, key: str) -> ArmRun:
    """The run with its engine options in one place, without oracles and probes, which twins have no need of."""
    limits = run.scenario.limits
    wider = replace(limits, timeout_s=limits.timeout_s * SLOWER, max_steps=limits.max_steps * SLOWER)
    arm = replace(run.scenario.arms[run.arm], engine={}, oracles=None, probes=None)
    scenario = replace(
        run.scenario,
        engine=run.options,
        overrides={},
        arms={run.arm: arm},
        oracles=OracleSpec.none(),
        probes=(),
        limits=wider,
        expect={run.arm: Expectation()},
        expect_on={},
        twins=TwinSpec(),
    )
    logprobs = run.scenario.twins.logprobs
    more: dict[str, Any] = {"packs": (), "expectation": None, "logprobs": logprobs, "followed": True}
    return replace(run, key=key, scenario=scenario, **more)


def _other(relation: Relation, base: ArmRun, twin: Twin, library: RunContent) -> ArmRun:
    """The twin's run. Raises NoTwin, or ContentError for options that do not go together."""
    scenario = replace(base.scenario, engine=merge(base.options, twin.options))
    toggles = base.toggles
    if twin.target is not None:
        scenario = scenario.on(twin.target)
        if why := scenario.why_not(base.arm):
            raise NoTwin(f"not run on {twin.target}: {why}")
        toggles = library.toggles(base.reverts, twin.target)
    check_scenario(scenario, None)
    rework = relation.name if relation.of == "workload" else ""
    key = f"{base.key}, {relation.name}"
    other = replace(base, key=key, scenario=scenario, toggles=toggles, rework=rework)
    return run_as(FreshRun, other) if relation.of == "process" else other


def longest_prompt(requests: Sequence[WorkloadRequest]) -> int:
    """Tokens of the longest prompt, if each request that others go on from has as many as it may."""
    prompts: dict[str, int] = {}
    for each in requests:
        before = 0 if each.continues is None else prompts[each.continues]
        prompts[each.rid] = before + len(each.new_ids) + each.sampling.max_new_tokens
    return max(prompts[each.rid] - each.sampling.max_new_tokens for each in requests)
