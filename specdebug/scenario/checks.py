"""The conditions of a scenario as a whole: names that refer to something, options that go together.

Every complaint is a ContentError at its key, and all are found at once; what could not be read (``broken``) is not
held against what refers to it. Needs no torch, checkpoint or GPU.
"""

import copy
import fnmatch
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specdebug.base.abilities import DEFAULT
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import (
    CheckpointError,
    ContentError,
    ContentErrors,
    InvalidOption,
    SpecDebugError,
    did_you_mean,
    raise_all,
)
from specdebug.base.yamlio import Doc, KeyPath, load_yaml, one_line
from specdebug.scenario.grammar import (
    CorpusPrompt,
    Expectation,
    Prompt,
    Scenario,
    SharedPrefixPrompt,
    SimplePrompt,
    TokenPrompt,
    WorkloadGroup,
    read_scenario,
)
from specdebug.scenario.target_ranges import TARGET_RANGE, complaint_of
from specdebug.targets.base import Asked
from specdebug.targets.options import OVERRIDES, EngineShape, options_of
from specdebug.targets.registry import find_target
from specdebug.verdict.signatures import names_place

MAX_REQUESTS = 10_000  # of all groups together; a mistyped number should not fill the memory
MAX_NAMED = 64  # requests among which the nearest name is looked for


@dataclass(frozen=True)
class KnownNames:
    """The names outside its own file that a scenario can refer to. ``elsewhere``: fixes that only other engines have.
    ``checkpoints``: the checkpoints it names must be here."""

    toggles: Collection[int]
    packs: Collection[str]
    elsewhere: Collection[int] = ()
    checkpoints: bool = False


def check_scenario(scenario: Scenario, known: KnownNames | None) -> None:
    """Raise ContentErrors with all that is wrong. Without ``known`` outside names are trusted."""
    raise_all(problems_of(scenario, known))


def problems_of(scenario: Scenario, known: KnownNames | None, broken: Collection[KeyPath] = ()) -> list[ContentError]:
    """All that is wrong with a scenario, each thing once. In place of the paths ``broken`` it has defaults."""
    return list({str(problem): problem for problem in _problems(scenario, known, _Broken(broken))}.values())


class _Broken(frozenset[KeyPath]):
    """Paths of what could not be read."""

    def within(self, *path: str | int) -> bool:
        """Return True if one is the value at ``path``, one of those around it, or part of it."""
        return any(each[: len(path)] == path[: len(each)] for each in self)

    @property
    def ids(self) -> bool:
        """Return True if a group's id may be another than it seems."""
        return any(path[:1] == ("workload",) and (len(path) < 3 or path[2] == "id") for path in self)


def _problems(scenario: Scenario, known: KnownNames | None, broken: _Broken) -> Iterator[ContentError]:
    if not broken.ids:
        yield from _wrong_groups(scenario)
    yield from _wrong_shared_prefixes(scenario, broken)
    if known is not None:
        yield from _wrong_probes(scenario, known.packs)
        yield from _wrong_reverts(scenario, known)
    yield from _wrong_expectations(scenario, broken)
    yield from _wrong_target_ranges(scenario)
    yield from _wrong_twins(scenario, broken)
    for arm in scenario.arms:
        if broken.within("arms", arm, "engine") or broken.within("engine"):
            continue
        wrong, engine = _invalid_options(scenario, arm, scenario.engine_of(arm))
        yield from (_invalid(scenario, arm, error) for error in wrong)
        if scenario.target_of(arm) != DEFAULT:
            try:
                asked_of(scenario, arm)
            except ContentError as error:
                yield error  # of options it is one of those above, and said once
            continue
        if known is not None and known.checkpoints:
            yield from _missing_checkpoints(scenario, arm, engine)
        if wrong:
            continue
        yield from _too_large_groups(scenario, arm, broken)
        if not broken.ids:
            yield from (each for each in _unfit_faults(scenario, arm) if isinstance(each, ContentError))


def engine_shape(scenario: Scenario, arm: str) -> EngineShape:
    """What an arm's engine computes with. Raises ContentError where an option stands that cannot be."""
    try:
        return options_of(scenario.target_of(arm)).shape(scenario.engine_of(arm))
    except InvalidOption as error:
        raise _invalid(scenario, arm, error) from None


def check_features(scenario: Scenario, arm: str) -> None:
    """Raise ContentErrors for what requests ask for that the arm's target has not."""
    traits, wrong = find_target(scenario.target_of(arm)).traits, list[ContentError]()
    for number, group in enumerate(scenario.workload):
        if lacking := [name for name in group.features.asked if name not in traits.features]:
            told = f"target {traits.name} has no {', '.join(lacking)} (arm '{arm}')"
            place = scenario.where("workload", number, "features")
            wrong.append(ContentError(f"workload[{number}].features: {told}", place))
    raise_all(wrong)


def asked_of(scenario: Scenario, arm: str) -> Asked:
    """The wishes of an arm of its target. Raises ContentError where the target is named, or where the option stands."""
    try:
        return find_target(scenario.target_of(arm)).asked(scenario.engine_of(arm))
    except InvalidOption as error:
        raise _invalid(scenario, arm, error) from None
    except SpecDebugError as error:
        path = ("target",) if scenario.arms[arm].target is None else ("arms", arm, "target")
        raise ContentError(one_line(str(error), 200), scenario.where(*path)) from None


def _invalid(scenario: Scenario, arm: str, error: InvalidOption) -> ContentError:
    beside = ""
    if _option_path(scenario, arm, error.key_path)[0] == "engine":
        alone = {wrong.reason for wrong in _invalid_options(scenario, arm, scenario.engine)[0]}
        if error.reason not in alone:  # the scenario's option is wrong only beside what the arm says
            beside = f" (in arm '{arm}')"
    return option_error(scenario, arm, error.key_path, one_line(error.reason, 200) + beside)


def _invalid_options(
    scenario: Scenario, arm: str, options: Mapping[str, Any]
) -> tuple[list[InvalidOption], dict[str, Any]]:
    """Every option that the arm's target cannot have, each looked for without those found before, and the others."""
    left, errors = copy.deepcopy(dict(options)), list[InvalidOption]()
    while True:
        try:
            find_target(scenario.target_of(arm)).asked(left)
        except InvalidOption as error:
            errors.append(error)
            if _without(left, error.key_path):
                continue
            left = {}
        except SpecDebugError:  # it is not about one option; `asked_of` says it
            pass
        return errors, left


def _without(options: dict[str, Any], path: tuple[str, ...]) -> bool:
    for key in path[:-1]:
        below = options.get(key)
        if not isinstance(below, dict):
            return False
        options = below
    return bool(path) and options.pop(path[-1], _ABSENT) is not _ABSENT


def option_error(scenario: Scenario, arm: str, option: tuple[str, ...], reason: str) -> ContentError:
    """The error of an engine option of an arm, at its place in the file, or on the command line if that set it."""
    if option and option[0] in scenario.overrides:
        return ContentError(f"{OVERRIDES[option[0]]} {scenario.overrides[option[0]]}: {reason}")
    name = "engine" if not option else f"engine.{one_line('.'.join(option), 80)}"
    return ContentError(f"{name}: {reason}", scenario.where_key(*_option_path(scenario, arm, option)))


def _option_path(scenario: Scenario, arm: str, option: tuple[str, ...]) -> tuple[str, ...]:
    """The place at which the arm, or else the scenario, sets an option or the nearest mapping around it."""
    for length in range(len(option), 0, -1):
        for root, options in ((("arms", arm, "engine"), scenario.arms[arm].engine), (("engine",), scenario.engine)):
            value: object = options
            for key in option[:length]:
                value = value.get(key, _ABSENT) if isinstance(value, dict) else _ABSENT
            if value is not _ABSENT:
                return (*root, *option[:length])
    return ("arms", arm, "engine") if scenario.arms[arm].engine else ("engine",)


_ABSENT = object()


def _missing_checkpoints(scenario: Scenario, arm: str, engine: Mapping[str, Any]) -> Iterator[ContentError]:
    for option, name in options_of(scenario.target_of(arm)).checkpoints(engine):
        try:
            checkpoint_path(name)
        except CheckpointError as error:
            yield option_error(scenario, arm, option, one_line(str(error), 200))
            return


def _wrong_groups(scenario: Scenario) -> Iterator[ContentError]:
    ids = [group.id for group in scenario.workload]
    for number, group in enumerate(scenario.workload):
        first = ids.index(group.id)
        if first != number:
            where = scenario.where("workload", number, "id")
            yield ContentError(f"group id '{group.id}' is already that of workload[{first}]", where)
        for name in group.arrive.after:
            if name and name not in ids:
                yield ContentError(
                    f"no group '{one_line(name, 60)}' to arrive after{did_you_mean(name, ids)}",
                    scenario.where("workload", number, "arrive", "after"),
                )
    total = sum(group.num_requests for group in scenario.workload)
    if total > MAX_REQUESTS:
        yield ContentError(f"asks for {total} requests, more than {MAX_REQUESTS}", scenario.where_key("workload"))
    yield from _circle(scenario)


def _circle(scenario: Scenario) -> Iterator[ContentError]:
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
    where = scenario.where("workload", number, "arrive", "after")
    yield ContentError(f"groups wait for each other: {one_line(circle, 200)}", where)


def _wrong_shared_prefixes(scenario: Scenario, broken: _Broken) -> Iterator[ContentError]:
    seen: dict[str, tuple[int, SimplePrompt]] = {}
    for number, group in enumerate(scenario.workload):
        prompt, unread = group.prompt, broken.within("workload", number, "prompt")
        if not isinstance(prompt, SharedPrefixPrompt) or prompt.name is None or unread:
            continue
        first, prefix = seen.setdefault(prompt.name, (number, prompt.prefix))
        if prefix != prompt.prefix:
            yield ContentError(
                f"shared prefix '{prompt.name}' is described differently in workload[{first}]",
                scenario.where("workload", number, "prompt", "shared_prefix"),
            )


def _wrong_probes(scenario: Scenario, packs: Collection[str]) -> Iterator[ContentError]:
    named = {("arms", name, "probes"): arm.probes or () for name, arm in scenario.arms.items()}
    for path, names in ({("probes",): scenario.probes} | named).items():
        for index, name in enumerate(names):
            if name and name not in packs:
                message = f"no probe pack '{one_line(name, 60)}'{did_you_mean(name, packs)}"
                yield ContentError(message, scenario.where(*path, index))


def _wrong_reverts(scenario: Scenario, known: KnownNames) -> Iterator[ContentError]:
    for name, arm in scenario.arms.items():
        for index, pr in enumerate(arm.revert):
            if pr in arm.revert[:index]:
                continue  # said by the reader
            where = scenario.where("arms", name, "revert", index)
            if pr in known.elsewhere:
                yield ContentError(f"PR {pr} is a fix of another engine; it cannot be reverted in this one", where)
            elif pr and pr not in known.toggles:
                yield ContentError(f"no toggle for PR {pr}{did_you_mean(str(pr), map(str, known.toggles))}", where)


def _wrong_target_ranges(scenario: Scenario) -> Iterator[ContentError]:
    """Of what a scenario says of other targets than its own, the names that no target has."""
    tables: dict[KeyPath, Collection[str]] = {("not_on",): scenario.not_on, ("expect_on",): scenario.expect_on}
    tables[("twins", "broken_on")] = scenario.twins.broken_on
    tables |= {("arms", name, "not_on"): arm.not_on for name, arm in scenario.arms.items()}
    for path, names in tables.items():
        for name in names:
            if re.fullmatch(TARGET_RANGE, name) and (wrong := complaint_of(name)):
                yield ContentError(one_line(wrong, 200), scenario.where_key(*path, name))


def _wrong_expectations(scenario: Scenario, broken: _Broken) -> Iterator[ContentError]:
    groups = [group.id for group in scenario.workload]
    tables: dict[tuple[str, ...], Mapping[str, Expectation]] = {("expect",): scenario.expect}
    tables |= {("expect_on", name): each for name, each in scenario.expect_on.items()}
    tables = {path: each for path, each in tables.items() if len(path) == 1 or not broken.within(*path)}
    for path, arm, expectation in ((path, *each) for path, table in tables.items() for each in table.items()):
        if arm not in scenario.arms and ("arms",) not in broken:
            message = f"{path[0]} names no arm '{one_line(arm, 60)}'{did_you_mean(arm, scenario.arms)}"
            yield ContentError(message, scenario.where_key(*path, arm))
        where = scenario.where(*path, arm, "signature")
        if expectation.signatures and expectation.verdict != "fail" and not broken.within(*path, arm, "verdict"):
            message = f"only a failure has a signature; the verdict expected of '{arm}' is {expectation.verdict}"
            yield ContentError(message, where)
        for pattern in expectation.signatures:
            kind, _, site = pattern.partition("@")
            of_group = kind == "accept-drop" and not names_place(pattern) and not broken.ids
            if of_group and not fnmatch.filter(groups, site):
                hint = did_you_mean(site, groups)
                yield ContentError(f"signature accept-drop@ has no group '{one_line(site, 60)}'{hint}", where)


def _wrong_twins(scenario: Scenario, broken: _Broken) -> Iterator[ContentError]:
    tables: dict[tuple[str, ...], Collection[str]] = {("twins", "broken"): scenario.twins.broken}
    tables |= {("twins", "broken_on", name): arms for name, arms in scenario.twins.broken_on.items()}
    for path, names in tables.items():
        for arm in names if not broken.within(*path) and ("arms",) not in broken else ():
            if arm not in scenario.arms:
                message = f"{path[1]} names no arm '{one_line(arm, 60)}'{did_you_mean(arm, scenario.arms)}"
                yield ContentError(message, scenario.where_key(*path, arm))


def check_faults(scenario: Scenario, arm: str) -> None:
    """Raise ContentError, or BadFault for one of the command line, for a fault that cannot act in an arm."""
    for error in _unfit_faults(scenario, arm):
        raise error


def _unfit_faults(scenario: Scenario, arm: str) -> Iterator[SpecDebugError]:
    rids = [rid for group in scenario.workload for rid in group.rids]
    target = scenario.target_of(arm)
    for fault in scenario.faults_of(arm):
        try:
            options_of(target).check_fault(scenario.engine_of(arm), fault, f"arm '{arm}'")
        except InvalidOption as error:
            yield _invalid(scenario, arm, error)
            return
        except SpecDebugError as error:
            yield error
        there = find_target(target).traits.faults
        if there is not None and (why := there.refusal(fault)):
            yield fault.error(why)
        if fault.request is not None and fault.request not in rids:
            hint = did_you_mean(fault.request, rids) if len(rids) <= MAX_NAMED else ""
            yield fault.error(f"no request '{one_line(fault.request, 60)}'{hint}")


def _too_large_groups(scenario: Scenario, arm: str, broken: _Broken) -> Iterator[ContentError]:
    """Groups with a prompt that the engine may not take, or none of whose requests it would take, however their lengths
    are drawn."""
    options, engine = options_of(scenario.target_of(arm)), scenario.engine_of(arm)
    for number, group in enumerate(scenario.workload):
        if broken.within("workload", number):
            continue
        later = 0 if group.turns is None else group.turns.rounds - 1
        fewest = _prompt_tokens(group, 0) + group.max_new_tokens[0]
        longest = (later + 1) * _prompt_tokens(group, 1) + later * group.max_new_tokens[1]
        if found := options.no_room(engine, f"arm '{arm}'", longest, fewest):
            what, why = found
            key = "max_new_tokens" if what == "request" else "turns" if group.turns else "prompt"
            yield ContentError(f"a {what} of group '{group.id}' {why}", scenario.where_key("workload", number, key))


def _prompt_tokens(group: WorkloadGroup, end: Literal[0, 1]) -> int:
    """Tokens of a prompt at one end of their span; text counts as none, as only a tokenizer can tell."""
    if group.turns is not None:
        return group.turns.input_tokens[end]
    return 0 if group.prompt is None else _tokens(group.prompt, end)


def _tokens(prompt: Prompt, end: Literal[0, 1]) -> int:
    if isinstance(prompt, SharedPrefixPrompt):
        return _tokens(prompt.prefix, end) + _tokens(prompt.suffix, end)
    if isinstance(prompt, CorpusPrompt):
        return prompt.tokens[end]
    return len(prompt.token_ids) if isinstance(prompt, TokenPrompt) else 0


__all__ = ["KnownNames", "Scenario", "load_scenario", "scenario_of"]


def load_scenario(path: str | Path, registry: KnownNames | None = None) -> Scenario:
    """Read and check the scenario in ``path``. ``registry`` holds the toggles and packs it may refer to; without one,
    such names are taken on trust. Raises ContentError; its ``problems`` are all that is wrong."""
    try:
        doc = load_yaml(path)
    except ContentErrors as errors:  # it is YAML, but for duplicate keys
        try:
            scenario_of(errors.partial, registry)
        except ContentError as more:
            raise ContentErrors((*errors.problems, *more.problems)) from None
        raise
    return scenario_of(doc, registry)


def scenario_of(doc: Doc, registry: KnownNames | None = None) -> Scenario:
    """Like ``load_scenario``, of a document already parsed."""
    try:
        scenario = read_scenario(doc)
    except ContentErrors as errors:
        if errors.partial is None:
            raise
        broken = [problem.path for problem in errors.problems if problem.path is not None]
        raise ContentErrors((*errors.problems, *problems_of(errors.partial, registry, broken))) from None
    check_scenario(scenario, registry)
    return scenario
