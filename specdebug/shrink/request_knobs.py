"""Numbers of a written-out scenario's requests that may be made smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from specdebug.scenario.grammar import (
    CorpusPrompt,
    Scenario,
    SharedPrefixPrompt,
    SimplePrompt,
    Span,
    TextPrompt,
    TokenPrompt,
    WorkloadGroup,
)
from specdebug.shrink.knob import Knob


def request_knobs(scenario: Scenario) -> Iterator[Knob]:
    """Every number of a written-out scenario's requests, ``target`` being the least it may ever be."""
    seen: set[str] = set()
    for index, group in enumerate(scenario.workload):
        for knob in _group_knobs(index, group):
            if knob.label not in seen:  # a shared prefix is one number, however many share it
                seen.add(knob.label)
                yield knob


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
