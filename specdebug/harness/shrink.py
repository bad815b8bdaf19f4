"""What can be taken away from a scenario, and the file that what is left is written to.

A scenario is first written out: one arm, and every request (or conversation) a group of its own, so that each can be
dropped alone. What is drawn for a request depends on the seed and its own name, so dropping some leaves the others as
they were, and a seed that fails tends to go on failing. Then numbers are made smaller: first all that go down to the
least the engine takes at once, then, for those that the failure needs, half of the rest of the way, again and again.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from specdebug.engine.config import EngineConfig
from specdebug.errors import SpecDebugError
from specdebug.harness.scenario_checks import check_scenario, engine_config
from specdebug.harness.scenario_model import (
    Arm,
    Arrive,
    CorpusPrompt,
    Expectation,
    Prompt,
    Scenario,
    SharedPrefixPrompt,
    SimplePrompt,
    Span,
    TextPrompt,
    TokenPrompt,
    WorkloadGroup,
    merge,
)
from specdebug.harness.scenario_reader import MAX_GROUPS

PRECISION = 4
"""A number is small enough when one smaller by no more than a fourth of it does not fail any more."""


@dataclass(frozen=True)
class Elements:
    """Some of what can be taken away: a stage of the search."""

    title: str
    labels: tuple[str, ...]
    make: Callable[[frozenset[int]], Scenario]

    def without(self, removed: frozenset[int]) -> Scenario | None:
        """The scenario without these; None where the rules of scenarios forbid it."""
        try:
            scenario = self.make(removed)
            if scenario.workload:
                check_scenario(scenario, None)
                return scenario
        except SpecDebugError:
            return None
        return None


class ScenarioSpace:
    """Everything that can be taken away from one arm of a scenario: see ``specdebug.minimise.space``.

    Args:
        scenario: the whole.
        arm: the one that fails; the others are dropped.
        reverts: fixes to revert in it, besides its own.

    Raises:
        SpecDebugError: it has more requests than a scenario may have groups.
    """

    def __init__(self, scenario: Scenario, arm: str, reverts: Sequence[int] = ()) -> None:
        self.origin: dict[str, str] = {}
        self._current = self.start = self._written_out(scenario, arm, reverts)
        self.arm = arm
        self._elements: Elements | None = None
        self._knobs: list[Knob] = []
        self._rounds = 0
        self._rejected: dict[str, int] = {}

    def next_stage(self) -> Elements | None:
        """Requests first; then their numbers, round after round; then the engine's, which small requests need less of.
        """
        if self._elements is None:
            self._elements = self._requests()
            return self._elements
        self._knobs = []
        for knobs in (request_knobs, engine_knobs):
            self._knobs = [knob for knob in self._proposals(knobs) if knob.target < knob.value]
            if self._knobs:
                self._elements = self._numbers(tuple(self._knobs))
                return self._elements
        return None

    def took(self, removed: frozenset[int], confirmed: frozenset[int]) -> None:
        """Go on from what is left; what is confirmed needed bounds the numbers from below."""
        assert self._elements is not None
        self._current = self._elements.make(removed)
        for index, knob in enumerate(self._knobs):
            if index not in removed:
                self._rejected[knob.label] = max(knob.target, self._rejected.get(knob.label, -1))

    # -- writing out ------------------------------------------------------------------------------------------------

    def _written_out(self, scenario: Scenario, arm: str, reverts: Sequence[int]) -> Scenario:
        chosen = scenario.arms[arm]
        groups = [(group, self._singles(group, scenario)) for group in scenario.workload]
        total = sum(len(singles) for _, singles in groups)
        if total > MAX_GROUPS:
            raise SpecDebugError(
                f"{scenario.path}: {total} requests are more than the {MAX_GROUPS} that can be told apart; "
                "lower the number of requests of its groups"
            )
        names = {group.id: tuple(single.id for single in singles) for group, singles in groups}
        self.origin = {name: group for group, singles in names.items() for name in singles}
        workload = [
            replace(single, arrive=replace(single.arrive, after=_all(names, single.arrive.after)))
            for _, singles in groups
            for single in singles
        ]
        all_reverts = tuple(dict.fromkeys((*chosen.revert, *reverts)))
        alone = Arm(arm, revert=all_reverts, mode=chosen.mode)
        return replace(
            scenario,
            workload=tuple(workload),
            engine=scenario.engine_of(arm),
            probes=scenario.probes_of(arm),
            oracles=scenario.oracles_of(arm),
            arms={arm: alone},
            expect={arm: Expectation("fail")},
            overrides={},
            source=None,
        )

    def _singles(self, group: WorkloadGroup, scenario: Scenario) -> list[WorkloadGroup]:
        """The group's requests, or conversations, each as a group."""
        count = group.requests if group.turns is None else group.turns.clients
        if count == 1:
            return [group]
        prompt = group.prompt
        if isinstance(prompt, SharedPrefixPrompt) and prompt.name is None:
            prompt = replace(prompt, name=_unused(group.id, _prefix_names(scenario)))
        taken = {other.id for other in scenario.workload}
        singles = []
        for number in range(count):
            arrive = replace(group.arrive, step=group.arrive.step + number * group.arrive.every, every=0)
            abort = group.abort
            if abort is not None and abort.requests is not None and number not in abort.requests:
                abort = None
            rounds = 1 if group.turns is None else group.turns.rounds
            singles.append(
                replace(
                    group,
                    id=_unused(f"{group.id}-{number}", taken),
                    prompt=prompt,
                    requests=1,
                    turns=None if group.turns is None else replace(group.turns, clients=1),
                    seed=None if group.seed is None else group.seed + number * rounds,
                    arrive=arrive,
                    abort=None if abort is None else replace(abort, requests=None),
                )
            )
        return singles

    # -- stages -----------------------------------------------------------------------------------------------------

    def _requests(self) -> Elements:
        whole = self._current
        return Elements("requests", tuple(group.id for group in whole.workload), lambda gone: _dropped(whole, gone))

    def _numbers(self, knobs: tuple[Knob, ...]) -> Elements:
        whole = self._current
        self._rounds += 1

        def turned(which: frozenset[int]) -> Scenario:
            scenario = whole
            for index in sorted(which):
                scenario = knobs[index].turn(scenario, knobs[index].target)
            return _made_consistent(scenario)

        labels = tuple(f"{knob.label} {knob.value} -> {knob.target}" for knob in knobs)
        return Elements(f"numbers, round {self._rounds}", labels, turned)

    def _proposals(self, knobs: Callable[[Scenario], Iterator[Knob]]) -> Iterator[Knob]:
        for knob in knobs(self._current):
            rejected = self._rejected.get(knob.label)
            if rejected is None:
                yield replace(knob, target=_least(knob, self._current))
            elif knob.value - rejected > max(1, knob.value // PRECISION):
                yield replace(knob, target=(knob.value + rejected) // 2)


@dataclass(frozen=True)
class Knob:
    """A number that may be made smaller.

    Attributes:
        label: names it.
        value: what it is now.
        target: what to try.
        turn: gives the scenario with another value of it.
    """

    label: str
    value: int
    target: int
    turn: Callable[[Scenario, int], Scenario]


def request_knobs(scenario: Scenario) -> Iterator[Knob]:
    """Every number of a written-out scenario's requests, ``target`` being the least it may ever be."""
    seen: set[str] = set()
    for index, group in enumerate(scenario.workload):
        for knob in _group_knobs(index, group):
            if knob.label not in seen:  # a shared prefix is one number, however many share it
                seen.add(knob.label)
                yield knob


def engine_knobs(scenario: Scenario) -> Iterator[Knob]:
    """The same of its engine."""
    (arm,) = scenario.arms
    config = engine_config(scenario, arm)
    for path, least in _ENGINE_NUMBERS:
        value = _option(config, path)
        if value is not None:
            yield Knob(".".join(path), value, least, _engine_turn(path))


_ENGINE_NUMBERS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("max_running_requests",), 1),
    (("cuda_graph", "max_bs"), 1),
    (("page_size",), 1),
    (("speculative", "eagle_topk"), 1),
    (("speculative", "num_steps"), 1),
    (("speculative", "num_draft_tokens"), 2),
    (("context_length",), 8),
    (("memory", "num_slots"), 1),
)


def _option(config: EngineConfig, path: tuple[str, ...]) -> int | None:
    """A number of the engine's; None where it does not exist or follows from the others."""
    if path == ("speculative", "num_draft_tokens") and config.speculative is not None:
        return None if config.speculative.eagle_topk == 1 else config.speculative.tree_size
    if path[0] == "cuda_graph" and not config.cuda_graph.enabled:
        return None
    value: Any = config
    for key in path:
        value = None if value is None else getattr(value, key)
    return value if value is None else int(value)


def _engine_turn(path: tuple[str, ...]) -> Callable[[Scenario, int], Scenario]:
    def turn(scenario: Scenario, value: int) -> Scenario:
        over: Any = value
        for key in reversed(path):
            over = {key: over}
        return replace(scenario, engine=merge(scenario.engine, over))

    return turn


def _made_consistent(scenario: Scenario) -> Scenario:
    """Options that follow from others: how many nodes the verify tree can have, which batches can be captured."""
    engine = dict(scenario.engine)
    spec = engine.get("speculative")
    if isinstance(spec, Mapping) and spec.get("num_draft_tokens") is not None:
        steps, topk = spec.get("num_steps", 5), spec.get("eagle_topk", 1)
        most = 1 + topk + topk**2 * (steps - 1)
        nodes = steps + 1 if topk == 1 else min(spec["num_draft_tokens"], most)
        engine["speculative"] = {**spec, "num_draft_tokens": nodes}
    graph = engine.get("cuda_graph")
    if isinstance(graph, Mapping) and graph.get("capture_bs"):
        largest = graph.get("max_bs", 8)
        sizes = [size for size in graph["capture_bs"] if size <= largest] or [largest]
        engine["cuda_graph"] = {**graph, "capture_bs": sizes}
    return replace(scenario, engine=engine)


def _least(knob: Knob, scenario: Scenario) -> int:
    """The least value that scenarios may have there, the rest being as it is; needs no trial."""

    def allowed(value: int) -> bool:
        try:
            check_scenario(_made_consistent(knob.turn(scenario, value)), None)
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


# -- numbers of a group ---------------------------------------------------------------------------------------------


def _group_knobs(index: int, group: WorkloadGroup) -> Iterator[Knob]:
    def with_group(change: Callable[[WorkloadGroup, int], WorkloadGroup]) -> Callable[[Scenario, int], Scenario]:
        def turn(scenario: Scenario, value: int) -> Scenario:
            groups = list(scenario.workload)
            groups[index] = change(groups[index], value)
            return replace(scenario, workload=tuple(groups))

        return turn

    name = group.id
    if group.turns is not None:
        yield Knob(f"{name}: rounds", group.turns.rounds, 1, with_group(_with_rounds))
        yield Knob(f"{name}: input_tokens", group.turns.input_tokens[1], 1, with_group(_with_input))
    elif isinstance(group.prompt, SharedPrefixPrompt):
        prefix, suffix, shared = group.prompt.prefix, group.prompt.suffix, group.prompt.name
        if shared is None:
            yield Knob(f"{name}: prefix", _length(prefix), _shortest(prefix), with_group(_with_prefix))
        else:
            yield Knob(f"prefix {shared}", _length(prefix), _shortest(prefix), _shared_turn(shared))
        yield Knob(f"{name}: suffix", _length(suffix), _shortest(suffix), with_group(_with_suffix))
    elif group.prompt is not None:
        yield Knob(f"{name}: prompt", _length(group.prompt), _shortest(group.prompt), with_group(_with_prompt))
    yield Knob(f"{name}: max_new_tokens", group.max_new_tokens[1], 1, with_group(_with_output))
    if group.arrive.step:
        yield Knob(f"{name}: arrive.step", group.arrive.step, 0, with_group(_with_step))
    if group.arrive.jitter:
        yield Knob(f"{name}: arrive.jitter", group.arrive.jitter, 0, with_group(_with_jitter))


def _with_rounds(group: WorkloadGroup, value: int) -> WorkloadGroup:
    return group if group.turns is None else replace(group, turns=replace(group.turns, rounds=value))


def _with_input(group: WorkloadGroup, value: int) -> WorkloadGroup:
    if group.turns is None:
        return group
    return replace(group, turns=replace(group.turns, input_tokens=_capped(group.turns.input_tokens, value)))


def _with_prefix(group: WorkloadGroup, value: int) -> WorkloadGroup:
    prompt = group.prompt
    if not isinstance(prompt, SharedPrefixPrompt):
        return group
    return replace(group, prompt=replace(prompt, prefix=_cut(prompt.prefix, value)))


def _with_suffix(group: WorkloadGroup, value: int) -> WorkloadGroup:
    prompt = group.prompt
    if not isinstance(prompt, SharedPrefixPrompt):
        return group
    return replace(group, prompt=replace(prompt, suffix=_cut(prompt.suffix, value)))


def _with_prompt(group: WorkloadGroup, value: int) -> WorkloadGroup:
    if group.prompt is None or isinstance(group.prompt, SharedPrefixPrompt):
        return group
    return replace(group, prompt=_cut(group.prompt, value))


def _with_output(group: WorkloadGroup, value: int) -> WorkloadGroup:
    return replace(group, max_new_tokens=_capped(group.max_new_tokens, value))


def _with_step(group: WorkloadGroup, value: int) -> WorkloadGroup:
    return replace(group, arrive=replace(group.arrive, step=value))


def _with_jitter(group: WorkloadGroup, value: int) -> WorkloadGroup:
    return replace(group, arrive=replace(group.arrive, jitter=value))


def _shared_turn(name: str) -> Callable[[Scenario, int], Scenario]:
    def turn(scenario: Scenario, value: int) -> Scenario:
        groups = [
            _with_prefix(group, value)
            if isinstance(group.prompt, SharedPrefixPrompt) and group.prompt.name == name
            else group
            for group in scenario.workload
        ]
        return replace(scenario, workload=tuple(groups))

    return turn


def _length(prompt: SimplePrompt) -> int:
    if isinstance(prompt, CorpusPrompt):
        return prompt.tokens[1]
    return len(prompt.token_ids if isinstance(prompt, TokenPrompt) else prompt.text)


def _shortest(prompt: SimplePrompt) -> int:
    """The least length; a prompt of nothing but white space is none."""
    return 1 + len(prompt.text) - len(prompt.text.lstrip()) if isinstance(prompt, TextPrompt) else 1


def _cut(prompt: SimplePrompt, length: int) -> SimplePrompt:
    if isinstance(prompt, CorpusPrompt):
        return replace(prompt, tokens=_capped(prompt.tokens, length))
    if isinstance(prompt, TokenPrompt):
        return TokenPrompt(prompt.token_ids[:length])
    return TextPrompt(prompt.text[:length])


def _capped(span: Span, value: int) -> Span:
    return min(span[0], value), min(span[1], value)


# -- dropping requests ----------------------------------------------------------------------------------------------


def _dropped(scenario: Scenario, gone: frozenset[int]) -> Scenario:
    """Without these groups. What came after one of them comes after what that one came after."""
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


def _all(names: Mapping[str, tuple[str, ...]], groups: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for group in groups for name in names[group])


def _prefix_names(scenario: Scenario) -> set[str]:
    prompts: list[Prompt | None] = [group.prompt for group in scenario.workload]
    return {p.name for p in prompts if isinstance(p, SharedPrefixPrompt) and p.name is not None}


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


# -- the file -------------------------------------------------------------------------------------------------------


def scenario_text(scenario: Scenario, name: str, seed: int, signature: str, header: Sequence[str]) -> str:
    """The file of a written-out scenario, which is expected to fail with ``signature`` under ``seed``.

    Defaults are left out. ``header`` are lines of comment for its top.
    """
    plain = scenario.to_dict()
    bare = Scenario(name, scenario.workload, scenario.arms, scenario.expect).to_dict()
    (arm,) = scenario.arms
    kept = {
        key: value
        for key, value in plain.items()
        if key in ("engine", "probes", "oracles", "limits") and value != bare[key]
    }
    document = {
        "name": name,
        "description": " ".join(header[0].split()),
        "seed": seed,
        **kept,
        "workload": [_group_plain(group) for group in scenario.workload],
        "arms": {arm: {key: value for key, value in plain["arms"][arm].items() if value}},
        "expect": {arm: {"verdict": "fail", "signature": signature}},
    }
    wrapped = (part for line in header for part in textwrap.wrap(line, 117) or [""])
    comments = "".join(f"# {line}".rstrip() + "\n" for line in wrapped)
    body: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110)
    return comments + body


def _group_plain(group: WorkloadGroup) -> dict[str, Any]:
    plain = group.to_dict()
    default = WorkloadGroup(group.id, prompt=group.prompt, turns=group.turns).to_dict()
    kept = {key: value for key, value in plain.items() if key in ("id", "prompt", "turns") or value != default.get(key)}
    if "arrive" in kept:
        nothing = Arrive().to_dict()
        kept["arrive"] = {key: value for key, value in kept["arrive"].items() if value != nothing[key]}
    return kept
