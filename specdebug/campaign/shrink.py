"""Take parts away from a scenario, and write what is left to a file.

A scenario is first written out: one arm, and every request (or conversation) a group of its own, so that each can be
dropped alone. Then numbers are made smaller: first all at once, down to the least the engine takes; then those that the
failure needs, to the geometric mean of what fails and what does not, again and again."""

import contextlib
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from typing import Any

import yaml

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmResult
from specdebug.campaign.trials.campaign import Candidate
from specdebug.campaign.trials.scenario import WarmSource
from specdebug.faults.model import Fault
from specdebug.patching.toggles import Toggle
from specdebug.scenario.checks import check_scenario
from specdebug.scenario.grammar import (
    MAX_GROUPS,
    Arm,
    Arrive,
    CorpusPrompt,
    Expectation,
    Scenario,
    SharedPrefixPrompt,
    SimplePrompt,
    Span,
    TextPrompt,
    TokenPrompt,
    TwinSpec,
    WorkloadGroup,
    merge,
)
from specdebug.scenario.packs import ProbePack
from specdebug.search.minimise import Stage
from specdebug.targets.options import options_of
from specdebug.verdict.twins import TWIN


@dataclass(frozen=True)
class Knob:
    """A number called ``label`` that may be made smaller: from ``value`` to ``target``, by ``turn``."""

    label: str
    value: int
    target: int
    turn: Callable[[Scenario, int], Scenario]


def engine_knobs(scenario: Scenario) -> Iterator[Knob]:
    """Yield every number of its engine that may be made smaller, ``target`` being the least it may ever be."""
    (arm,) = scenario.arms

    def turned(path: tuple[str, ...], scenario: Scenario, value: int) -> Scenario:
        over: Any = value
        for key in reversed(path):
            over = {key: over}
        return replace(scenario, engine=merge(scenario.engine, over))

    for path, value, least in options_of(scenario.target_of(arm)).numbers(scenario.engine_of(arm)):
        yield Knob(".".join(path), value, least, partial(turned, path))


def made_consistent(scenario: Scenario) -> Scenario:
    (arm,) = scenario.arms
    return replace(scenario, engine=options_of(scenario.target_of(arm)).consistent(scenario.engine))


Reducible = SimplePrompt | Span | int


def request_knobs(scenario: Scenario) -> Iterator[Knob]:
    """Yield every number of a written-out scenario's requests, ``target`` being the least it may ever be."""
    knobs: dict[str, Knob] = {}
    for index, group in enumerate(scenario.workload):
        for knob in _group_knobs(index, group):
            knobs.setdefault(knob.label, knob)  # a shared prefix is one number, however many share it
    yield from knobs.values()


def _group_knobs(index: int, group: WorkloadGroup) -> Iterator[Knob]:
    def knob(label: str, field: str, value: Reducible) -> Knob:
        def turn(scenario: Scenario, size: int) -> Scenario:
            groups = list(scenario.workload)
            groups[index] = _changed(groups[index], field.split("."), size)
            return replace(scenario, workload=tuple(groups))

        return Knob(f"{group.id}: {label}", _size(value), _least(value), turn)

    if group.turns is not None:
        yield knob("rounds", "turns.rounds", group.turns.rounds)
        yield knob("input_tokens", "turns.input_tokens", group.turns.input_tokens)
    elif isinstance(group.prompt, SharedPrefixPrompt):
        prefix, shared = group.prompt.prefix, group.prompt.name

        def turn_all(scenario: Scenario, size: int) -> Scenario:
            groups = [
                _changed(each, ("prompt", "prefix"), size) if getattr(each.prompt, "name", None) == shared else each
                for each in scenario.workload
            ]
            return replace(scenario, workload=tuple(groups))

        if shared is None:
            yield knob("prefix", "prompt.prefix", prefix)
        else:
            yield Knob(f"prefix {shared}", _size(prefix), _least(prefix), turn_all)
        yield knob("suffix", "prompt.suffix", group.prompt.suffix)
    elif group.prompt is not None:
        yield knob("prompt", "prompt", group.prompt)
    yield knob("max_new_tokens", "max_new_tokens", group.max_new_tokens)
    for name in ("step", "jitter"):
        if value := getattr(group.arrive, name):
            yield replace(knob(f"arrive.{name}", f"arrive.{name}", value), target=0)


def _changed(record: Any, path: Sequence[str], size: int) -> Any:
    name, *rest = path
    old = getattr(record, name)
    new: Any
    if rest:
        new = _changed(old, rest, size)
    elif isinstance(old, int):
        new = size
    elif isinstance(old, tuple):
        new = _capped(old, size)
    elif isinstance(old, CorpusPrompt):
        new = replace(old, tokens=_capped(old.tokens, size))
    else:
        new = TokenPrompt(old.token_ids[:size]) if isinstance(old, TokenPrompt) else TextPrompt(old.text[:size])
    return replace(record, **{name: new})


def _size(value: Reducible) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, tuple):
        return value[1]
    if isinstance(value, CorpusPrompt):
        return value.tokens[1]
    return len(value.token_ids if isinstance(value, TokenPrompt) else value.text)


def _least(value: Reducible) -> int:
    """Return the least size; a prompt of nothing but white space is none."""
    return 1 + len(value.text) - len(value.text.lstrip()) if isinstance(value, TextPrompt) else 1


def _capped(span: Span, size: int) -> Span:
    return min(span[0], size), min(span[1], size)


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

    def waiting(single: WorkloadGroup) -> WorkloadGroup:
        after = tuple(name for group in single.arrive.after for name in names[group])
        return replace(single, arrive=replace(single.arrive, after=after))

    def readdressed(fault: Fault) -> Fault:
        """The fault with its request, if it addresses one, called as it is now."""
        if fault.request is None:
            return fault
        group, number, *turn = fault.request.split(".")
        return replace(fault, request=".".join([names[group][int(number)], "0", *turn]))

    whole = replace(
        scenario,
        workload=tuple(waiting(single) for _, singles in groups for single in singles),
        engine=scenario.engine_of(arm),
        faults=tuple(map(readdressed, scenario.faults_of(arm))),
        probes=scenario.probes_of(arm),
        oracles=scenario.oracles_of(arm),
        arms={arm: Arm(arm, revert=tuple(dict.fromkeys((*chosen.revert, *reverts))), mode=chosen.mode)},
        expect={arm: Expectation("fail")},
        expect_on={},
        twins=TwinSpec(),
        overrides={},
        source=None,
    )
    return whole, {name: group for group, singles in names.items() for name in singles}


def dropped(scenario: Scenario, gone: frozenset[int]) -> Scenario:
    """Return a scenario without these groups. What came after one of them comes after what that one came after."""
    names = {scenario.workload[index].id for index in gone}
    after = {group.id: group.arrive.after for group in scenario.workload}

    def left(waits_for: tuple[str, ...]) -> Iterator[str]:
        for name in waits_for:
            yield from left(after[name]) if name in names else (name,)

    workload = [
        replace(group, arrive=replace(group.arrive, after=tuple(dict.fromkeys(left(group.arrive.after)))))
        for group in scenario.workload
        if group.id not in names
    ]
    return replace(scenario, workload=tuple(workload))


def _singles(group: WorkloadGroup, scenario: Scenario) -> list[WorkloadGroup]:
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


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


ENOUGH = (2.5, 1.33)
"""A number is small enough when it is at most so many times one that does not fail: of the requests', which are many,
and of the engine's."""
EXACT = 8
"""Of numbers up to this, each is tried."""


def _stage(title: str, labels: Sequence[str], make: Callable[[frozenset[int]], Scenario]) -> Stage[Scenario]:
    """Some of what can be taken away; the rules of scenarios forbid some of what would be left."""

    def without(removed: frozenset[int]) -> Scenario | None:
        with contextlib.suppress(SpecDebugError):
            scenario = make(removed)
            if scenario.workload:
                check_scenario(scenario, None)
                return scenario
        return None

    return Stage(title, tuple(labels), without)


class ScenarioSpace:
    """Everything that can be taken away from one arm of a scenario. Takes what :func:`written_out` takes, and raises
    what that raises."""

    def __init__(self, scenario: Scenario, arm: str, reverts: Sequence[int] = ()) -> None:
        self.start, self.origin = written_out(scenario, arm, reverts)
        self._current = self.start
        self.arm = arm
        self._stage: Stage[Scenario] | None = None
        self._knobs: list[Knob] = []
        self._rounds = 0
        self._rejected: dict[str, int] = {}

    def next_stage(self) -> Stage[Scenario] | None:
        """Return the requests first; then their numbers, round by round; then the engine's, which small requests need
        less of."""
        if self._stage is None:
            whole, names = self._current, [group.id for group in self._current.workload]
            self._stage = _stage("requests", names, lambda gone: dropped(whole, gone))
            return self._stage
        for knobs in (request_knobs, engine_knobs):
            self._knobs = [knob for knob in self._proposals(knobs) if knob.target < knob.value]
            if self._knobs:
                self._stage = self._numbers(tuple(self._knobs))
                return self._stage
        return None

    def took(self, removed: frozenset[int], confirmed: frozenset[int]) -> None:
        """Go on from what is left; what is confirmed needed bounds the numbers from below."""
        assert self._stage is not None
        self._current = self._stage.without(removed) or self._current
        for index, knob in enumerate(self._knobs):
            if index not in removed:
                self._rejected[knob.label] = max(knob.target, self._rejected.get(knob.label, -1))

    def _numbers(self, knobs: tuple[Knob, ...]) -> Stage[Scenario]:
        whole = self._current
        self._rounds += 1

        def turned(which: frozenset[int]) -> Scenario:
            scenario = whole
            for index in sorted(which):
                scenario = knobs[index].turn(scenario, knobs[index].target)
            return made_consistent(scenario)

        labels = tuple(f"{knob.label} {knob.value} -> {knob.target}" for knob in knobs)
        kinds = [knob.label.rpartition(": ")[2] for knob in knobs]
        return replace(_stage(f"numbers, round {self._rounds}", labels, turned), kinds=kinds)

    def _proposals(self, knobs: Callable[[Scenario], Iterator[Knob]]) -> Iterator[Knob]:
        for knob in knobs(self._current):
            rejected = self._rejected.get(knob.label)
            if rejected is None:
                yield replace(knob, target=_lowest(knob, self._current))
            elif knob.value > max(rejected + 1, 0 if knob.value <= EXACT else ENOUGH[knobs is engine_knobs] * rejected):
                yield replace(knob, target=max(isqrt(knob.value * max(rejected, 1)), rejected + 1))


def _lowest(knob: Knob, scenario: Scenario) -> int:
    """Return the least value that scenarios may have there, the rest being as it is; this needs no trial."""

    def allowed(value: int) -> bool:
        try:
            check_scenario(made_consistent(knob.turn(scenario, value)), None)
        except SpecDebugError:
            return False
        return True

    low, high = knob.target, knob.value
    if low >= high or allowed(low):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return high


def scenario_text(scenario: Scenario, name: str, seed: int, signature: str, header: Sequence[str]) -> str:
    """Return the text of a written-out scenario, less defaults, which is expected to fail with ``signature`` under
    ``seed``, that of a broken twin included; ``header`` are lines of comment for its top."""
    plain = scenario.to_dict()
    bare = Scenario(name, scenario.workload, scenario.arms, scenario.expect).to_dict()
    (arm,) = scenario.arms
    parts = ("target", "engine", "faults", "probes", "oracles", "limits")

    def group_plain(group: WorkloadGroup) -> dict[str, Any]:
        plain, nothing = group.to_dict(), Arrive().to_dict()
        default = WorkloadGroup(group.id, prompt=group.prompt, turns=group.turns).to_dict()
        kept = {
            key: value for key, value in plain.items() if key in ("id", "prompt", "turns") or value != default.get(key)
        }
        if "arrive" in kept:
            kept["arrive"] = {key: value for key, value in kept["arrive"].items() if value != nothing[key]}
        return kept

    expected: dict[str, Any] = {"expect": {arm: {"verdict": "fail", "signature": signature}}}
    if signature.startswith(TWIN):
        relations = [signature.removeprefix(TWIN)]
        expected = {"twins": {"relations": relations, "broken": {arm: relations}}}
    document = {
        "name": name,
        "description": " ".join(header[0].split()),
        "seed": seed,
        **{key: value for key, value in plain.items() if key in parts and value != bare[key]},
        "workload": list(map(group_plain, scenario.workload)),
        "arms": {arm: {key: value for key, value in plain["arms"][arm].items() if value}},
        **expected,
    }
    wrapped = (part for line in header for part in textwrap.wrap(line, 117) or [""])
    comments = "".join(f"# {line}".rstrip() + "\n" for line in wrapped)
    body: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110)
    return comments + body


class ShrunkSource(WarmSource):
    """Runs the only arm of a scenario of which something was taken away, with its packs and the fixes it reverts."""

    candidates: tuple[Candidate, ...] = ()  # what can be taken away is known stage by stage

    def __init__(
        self, space: ScenarioSpace, packs: Sequence[ProbePack], toggles: Sequence[Toggle], jobs: int = 1
    ) -> None:
        asked = [str(toggle.pr) for toggle in toggles]
        super().__init__("minimise", space.start, space.arm, packs, asked=asked, own=toggles, jobs=jobs)
        self._origin = space.origin
        self._left: dict[int, Scenario] = {}

    def leave(self, number: int, left: Scenario) -> None:
        """Say what is left of the scenario in a trial that may be started."""
        self._left[number] = left

    def changed(self, trial: Trial) -> tuple[Scenario, Sequence[Toggle]]:
        return self._left.pop(trial.number), ()

    def may_be_wrong(self, trial: Trial) -> bool:
        """Return True once something could be run: then only what is left is wrong."""
        return self._has_run

    def result_of(self, trial: Trial, ended: ArmResult) -> TrialResult:
        """Return how the arm failed, if it did; a group in the signature is called as it was before it was written
        out."""
        outcome = ended.outcome
        if outcome.verdict != "fail" or outcome.signature is None:
            return TrialResult("pass", None, outcome.metrics.wall_s)
        kind, at, group = outcome.signature.partition("@")
        signature = f"{kind}{at}{self._origin.get(group, group)}" if kind == "accept-drop" else outcome.signature
        return TrialResult("fail", signature, outcome.metrics.wall_s, outcome.detail)
