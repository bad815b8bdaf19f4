"""A scenario's requests, each a group that can be dropped alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specdebug.base.errors import SpecDebugError
from specdebug.faults.model import Fault
from specdebug.scenario.grammar import (
    MAX_GROUPS,
    Arm,
    Expectation,
    Scenario,
    SharedPrefixPrompt,
    WorkloadGroup,
)


def written_out(scenario: Scenario, arm: str, reverts: Sequence[int] = ()) -> tuple[Scenario, dict[str, str]]:
    """Return one arm of a scenario, every request or conversation of it a group of its own, and of each of these groups
    which one it was of. ``reverts`` are fixes to revert besides the arm's own.

    Raises SpecDebugError when it has more requests than a scenario may have groups.
    """
    chosen = scenario.arms[arm]
    groups = [(group, _singles(group, scenario)) for group in scenario.workload]
    total = sum(len(singles) for _, singles in groups)
    if total > MAX_GROUPS:
        raise SpecDebugError(
            f"{scenario.path}: {total} requests are more than the {MAX_GROUPS} that can be told apart; "
            "lower the number of requests of its groups"
        )
    names = {group.id: tuple(single.id for single in singles) for group, singles in groups}
    origin = {name: group for group, singles in names.items() for name in singles}
    workload = [
        replace(single, arrive=replace(single.arrive, after=_all(names, single.arrive.after)))
        for _, singles in groups
        for single in singles
    ]
    all_reverts = tuple(dict.fromkeys((*chosen.revert, *reverts)))
    whole = replace(
        scenario,
        workload=tuple(workload),
        engine=scenario.engine_of(arm),
        faults=tuple(_readdressed(fault, names) for fault in scenario.faults_of(arm)),
        probes=scenario.probes_of(arm),
        oracles=scenario.oracles_of(arm),
        arms={arm: Arm(arm, revert=all_reverts, mode=chosen.mode)},
        expect={arm: Expectation("fail")},
        overrides={},
        source=None,
    )
    return whole, origin


def dropped(scenario: Scenario, gone: frozenset[int]) -> Scenario:
    """Return a scenario without these groups. What came after one of them comes after what that one came after."""
    names = {scenario.workload[index].id for index in gone}
    after = {group.id: group.arrive.after for group in scenario.workload}

    def left(waits_for: tuple[str, ...]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        stack = list(reversed(waits_for))
        while stack:
            name = stack.pop()
            if name in names:
                stack.extend(reversed(after[name]))
            else:
                found[name] = None
        return tuple(found)

    workload = [
        replace(group, arrive=replace(group.arrive, after=left(group.arrive.after)))
        for index, group in enumerate(scenario.workload)
        if index not in gone
    ]
    return replace(scenario, workload=tuple(workload))


def _singles(group: WorkloadGroup, scenario: Scenario) -> list[WorkloadGroup]:
    """Return each of the group's requests, or conversations, as a group."""
    count = group.requests if group.turns is None else group.turns.clients
    if count == 1:
        return [group]
    prompt = group.prompt
    if isinstance(prompt, SharedPrefixPrompt) and prompt.name is None:
        prefixes = {getattr(other.prompt, "name", "") for other in scenario.workload}
        prompt = replace(prompt, name=_unused(group.id, prefixes))
    taken = {other.id for other in scenario.workload}
    rounds = 1 if group.turns is None else group.turns.rounds
    singles = []
    for number in range(count):
        abort = group.abort
        if abort is not None and abort.requests is not None:
            abort = replace(abort, requests=None) if number in abort.requests else None
        singles.append(
            replace(
                group,
                id=_unused(f"{group.id}-{number}", taken),
                prompt=prompt,
                requests=1,
                turns=None if group.turns is None else replace(group.turns, clients=1),
                seed=None if group.seed is None else group.seed + number * rounds,
                arrive=replace(group.arrive, step=group.arrive.step + number * group.arrive.every, every=0),
                abort=abort,
            )
        )
    return singles


def _all(names: Mapping[str, tuple[str, ...]], groups: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for group in groups for name in names[group])


def _readdressed(fault: Fault, names: Mapping[str, tuple[str, ...]]) -> Fault:
    """Return the fault with its request, if it addresses one, called as it is now."""
    if fault.request is None:
        return fault
    group, number, *turn = fault.request.split(".")
    return replace(fault, request=".".join([names[group][int(number)], "0", *turn]))


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
