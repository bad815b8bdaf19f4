"""Numbers of a written-out scenario's requests that may be made smaller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from specdebug.campaign.shrink.knob import Knob
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
        return Knob(f"{group.id}: {label}", _size(value), _least(value), partial(_with_group, index, field.split(".")))

    if group.turns is not None:
        yield knob("rounds", "turns.rounds", group.turns.rounds)
        yield knob("input_tokens", "turns.input_tokens", group.turns.input_tokens)
    elif isinstance(group.prompt, SharedPrefixPrompt):
        prefix, shared = group.prompt.prefix, group.prompt.name
        if shared is None:
            yield knob("prefix", "prompt.prefix", prefix)
        else:
            yield Knob(f"prefix {shared}", _size(prefix), _least(prefix), partial(_with_shared_prefix, shared))
        yield knob("suffix", "prompt.suffix", group.prompt.suffix)
    elif group.prompt is not None:
        yield knob("prompt", "prompt", group.prompt)
    yield knob("max_new_tokens", "max_new_tokens", group.max_new_tokens)
    for name in ("step", "jitter"):
        if value := getattr(group.arrive, name):
            yield replace(knob(f"arrive.{name}", f"arrive.{name}", value), target=0)


def _with_group(index: int, path: Sequence[str], scenario: Scenario, value: int) -> Scenario:
    groups = list(scenario.workload)
    groups[index] = _changed(groups[index], path, value)
    return replace(scenario, workload=tuple(groups))


def _with_shared_prefix(name: str, scenario: Scenario, value: int) -> Scenario:
    groups = [
        _changed(group, ("prompt", "prefix"), value) if getattr(group.prompt, "name", None) == name else group
        for group in scenario.workload
    ]
    return replace(scenario, workload=tuple(groups))


def _changed(record: Any, path: Sequence[str], value: int) -> Any:
    """Return the record with the field at the end of a path made smaller."""
    name, *rest = path
    old = getattr(record, name)
    return replace(record, **{name: _changed(old, rest, value) if rest else _reduced(old, value)})


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


def _reduced(old: Reducible, size: int) -> Reducible:
    if isinstance(old, int):
        return size
    if isinstance(old, tuple):
        return _capped(old, size)
    if isinstance(old, CorpusPrompt):
        return replace(old, tokens=_capped(old.tokens, size))
    return TokenPrompt(old.token_ids[:size]) if isinstance(old, TokenPrompt) else TextPrompt(old.text[:size])


def _capped(span: Span, size: int) -> Span:
    return min(span[0], size), min(span[1], size)
