"""What a scenario must satisfy as a whole: names that refer to something, options that go together.

``scenario_reader.py`` has already checked each value for itself. Every complaint is a ContentError at the key
it is about, so a scenario that passes here fails later only for reasons that depend on the machine or the
checkpoint.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from specdebug.engine.config import EngineConfig, InvalidOption
from specdebug.errors import ContentError, did_you_mean
from specdebug.faults.fit import check_fit
from specdebug.harness.scenario_model import (
    CorpusPrompt,
    Prompt,
    Scenario,
    SharedPrefixPrompt,
    SimplePrompt,
    TokenPrompt,
    WorkloadGroup,
)
from specdebug.yamlio import one_line

MAX_REQUESTS = 10_000
"""Of all groups together; a mistyped number should not fill the memory."""
MAX_NAMED = 64
"""Requests among which the nearest name is looked for."""


@dataclass(frozen=True)
class KnownNames:
    """What a scenario can refer to outside its own file. ``elsewhere``: fixes that only other engines have."""

    toggles: Collection[int]
    packs: Collection[str]
    elsewhere: Collection[int] = ()


def check_scenario(scenario: Scenario, known: KnownNames | None) -> None:
    """Raises ContentError for the first thing found wrong. Without ``known`` outside names are trusted."""
    _check_groups(scenario)
    _check_shared_prefixes(scenario)
    if known is not None:
        _check_probes(scenario, known.packs)
        _check_reverts(scenario, known)
    _check_expectations(scenario)
    for arm in scenario.arms:
        config = engine_config(scenario, arm)
        _check_prompts_fit(scenario, arm, config)
        check_faults(scenario, arm, config)


OVERRIDES = {
    "device": "--device",
    "dtype": "--dtype",
    "attention_backend": "--backend",
    "page_size": "--page-size",
}
"""Engine options that the command line can override, and how."""


def engine_config(scenario: Scenario, arm: str) -> EngineConfig:
    """The arm's engine options, merged and checked. Raises ContentError where the option stands."""
    try:
        return EngineConfig.from_dict(scenario.engine_of(arm))
    except InvalidOption as error:
        beside = ""
        if _option_path(scenario, arm, error.key_path)[0] == "engine" and _complaint(scenario.engine) != error.reason:
            beside = f" (in arm '{arm}')"  # the scenario's option is wrong only beside what the arm says
        raise option_error(scenario, arm, error.key_path, one_line(error.reason, 200) + beside) from None


def option_error(scenario: Scenario, arm: str, option: tuple[str, ...], reason: str) -> ContentError:
    """What is wrong with an engine option of an arm, at its place in the file, or on the command line if that set
    it."""
    if option and option[0] in scenario.overrides:
        return ContentError(f"{OVERRIDES[option[0]]} {scenario.overrides[option[0]]}: {reason}")
    name = "engine" if not option else f"engine.{one_line('.'.join(option), 80)}"
    return ContentError(f"{name}: {reason}", scenario.where_key(*_option_path(scenario, arm, option)))


def _complaint(options: dict[str, Any]) -> str | None:
    try:
        EngineConfig.from_dict(options)
    except InvalidOption as error:
        return error.reason
    return None


def _option_path(scenario: Scenario, arm: str, option: tuple[str, ...]) -> tuple[str, ...]:
    """Where the arm, or else the scenario, sets an option or the nearest mapping around it."""
    for length in range(len(option), 0, -1):
        for root, options in (
            (("arms", arm, "engine"), scenario.arms[arm].engine),
            (("engine",), scenario.engine),
        ):
            value: object = options
            for key in option[:length]:
                value = value.get(key, _ABSENT) if isinstance(value, dict) else _ABSENT
            if value is not _ABSENT:
                return (*root, *option[:length])
    return ("arms", arm, "engine") if scenario.arms[arm].engine else ("engine",)


_ABSENT = object()


def _check_groups(scenario: Scenario) -> None:
    ids = [group.id for group in scenario.workload]
    for number, group in enumerate(scenario.workload):
        first = ids.index(group.id)
        if first != number:
            raise ContentError(
                f"group id '{group.id}' is already that of workload[{first}]",
                scenario.where("workload", number, "id"),
            )
        for name in group.arrive.after:
            if name not in ids:
                raise ContentError(
                    f"no group '{one_line(name, 60)}' to arrive after{did_you_mean(name, ids)}",
                    scenario.where("workload", number, "arrive", "after"),
                )
    total = sum(group.num_requests for group in scenario.workload)
    if total > MAX_REQUESTS:
        where = scenario.where_key("workload")
        raise ContentError(f"asks for {total} requests, more than {MAX_REQUESTS}", where)
    _check_no_cycle(scenario)


def _check_no_cycle(scenario: Scenario) -> None:
    """Kahn's algorithm: groups whose predecessors are settled are settled; what is left waits for itself."""
    left = {group.id: set(group.arrive.after) for group in scenario.workload}
    while ready := [name for name, others in left.items() if not others & left.keys()]:
        for name in ready:
            del left[name]
    if not left:
        return
    chain = [next(iter(left))]
    while (following := next(name for name in sorted(left[chain[-1]]) if name in left)) not in chain:
        chain.append(following)
    circle = " after ".join([*chain[chain.index(following) :], following])
    number = next(n for n, group in enumerate(scenario.workload) if group.id == following)
    raise ContentError(
        f"groups wait for each other: {one_line(circle, 200)}",
        scenario.where("workload", number, "arrive", "after"),
    )


def _check_shared_prefixes(scenario: Scenario) -> None:
    seen: dict[str, tuple[int, SimplePrompt]] = {}
    for number, group in enumerate(scenario.workload):
        prompt = group.prompt
        if not isinstance(prompt, SharedPrefixPrompt) or prompt.name is None:
            continue
        first, prefix = seen.setdefault(prompt.name, (number, prompt.prefix))
        if prefix != prompt.prefix:
            raise ContentError(
                f"shared prefix '{prompt.name}' is described differently in workload[{first}]",
                scenario.where("workload", number, "prompt", "shared_prefix"),
            )


def _check_probes(scenario: Scenario, packs: Collection[str]) -> None:
    named: list[tuple[tuple[str, ...], tuple[str, ...]]] = [(scenario.probes, ("probes",))]
    named += [(arm.probes or (), ("arms", name, "probes")) for name, arm in scenario.arms.items()]
    for names, path in named:
        for index, name in enumerate(names):
            if name not in packs:
                raise ContentError(
                    f"no probe pack '{one_line(name, 60)}'{did_you_mean(name, packs)}",
                    scenario.where(*path, index),
                )


def _check_reverts(scenario: Scenario, known: KnownNames) -> None:
    for name, arm in scenario.arms.items():
        for index, pr in enumerate(arm.revert):
            where = scenario.where("arms", name, "revert", index)
            if pr in known.elsewhere:
                raise ContentError(f"PR {pr} is a fix of another engine; it cannot be reverted in this one", where)
            if pr not in known.toggles:
                raise ContentError(f"no toggle for PR {pr}{did_you_mean(str(pr), map(str, known.toggles))}", where)


def _check_expectations(scenario: Scenario) -> None:
    groups = [group.id for group in scenario.workload]
    for arm, expectation in scenario.expect.items():
        if arm not in scenario.arms:
            raise ContentError(
                f"expect names no arm '{one_line(arm, 60)}'{did_you_mean(arm, scenario.arms)}",
                scenario.where_key("expect", arm),
            )
        where = scenario.where("expect", arm, "signature")
        if expectation.signatures and expectation.verdict != "fail":
            raise ContentError(
                f"only a failure has a signature; the verdict expected of '{arm}' is {expectation.verdict}",
                where,
            )
        for pattern in expectation.signatures:
            kind, _, site = pattern.partition("@")
            if kind == "accept-drop" and not fnmatch.filter(groups, site):
                raise ContentError(
                    f"signature accept-drop@ has no group '{one_line(site, 60)}'{did_you_mean(site, groups)}",
                    where,
                )


def check_faults(scenario: Scenario, arm: str, config: EngineConfig) -> None:
    """Raises ContentError, or BadFault for one of the command line, for a fault that cannot act in an arm."""
    rids = [rid for group in scenario.workload for rid in group.rids]
    for fault in scenario.faults_of(arm):
        check_fit(fault, config, arm)
        if fault.request is not None and fault.request not in rids:
            hint = did_you_mean(fault.request, rids) if len(rids) <= MAX_NAMED else ""
            raise fault.error(f"no request '{one_line(fault.request, 60)}'{hint}")


def _check_prompts_fit(scenario: Scenario, arm: str, config: EngineConfig) -> None:
    for number, group in enumerate(scenario.workload):
        longest = _longest_prompt(group)
        if longest >= config.context_length:
            raise ContentError(
                f"a prompt of group '{group.id}' can reach {longest} tokens, but the context_length of arm "
                f"'{arm}' is {config.context_length}; shorten it or raise engine.context_length",
                scenario.where_key("workload", number, "turns" if group.turns else "prompt"),
            )


def _longest_prompt(group: WorkloadGroup) -> int:
    """Most tokens a prompt of the group can have; text counts as none, as only a tokenizer can tell."""
    if group.turns is not None:
        rounds = group.turns.rounds
        return rounds * group.turns.input_tokens[1] + (rounds - 1) * group.max_new_tokens[1]
    return 0 if group.prompt is None else _most_tokens(group.prompt)


def _most_tokens(prompt: Prompt) -> int:
    if isinstance(prompt, SharedPrefixPrompt):
        return _most_tokens(prompt.prefix) + _most_tokens(prompt.suffix)
    if isinstance(prompt, CorpusPrompt):
        return prompt.tokens[1]
    return len(prompt.token_ids) if isinstance(prompt, TokenPrompt) else 0
