"""Find where two traces of one arm part: the first choice of each request that was made otherwise.

A trace holds whole numbers only: the requests in a step, the tokens emitted, how many were accepted, what came from the
cache, who finished and who was retracted. Of these a processor decides nothing but choices: which token is best where
two are as good as each other, and which drafts are in the tree. Everything else follows from them. So requests are
compared one by one: a token depends on those before it and not on the schedule, and a verify on what was emitted
before it. What a request does after its first other token has no counterpart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specdebug.scenario.workload import WorkloadRequest
from specdebug.verdict.ledger import TRACED

Kind = Literal["token", "draft", "sampled", "schedule"]

_NO_CHOICES = ("step", "kind", "rids", "cached", "retracted")  # facts that no choice of their own step decides
MAX_VALUES = 1 << 22  # of a trace that is compared: a short one takes some thirty times its text as an object


@dataclass(frozen=True)
class Parting:
    """One difference. ``step`` is of the recorded trace, from 1.

    ``kind``: ``token``: another token was emitted; ``draft``: the same tokens, but another number of them accepted;
    ``sampled``: either, of a request that draws its tokens; ``schedule``: nothing that a choice decides.
    ``position``: the token of the request's output that the choice is about; for a draft the last that both verifies
    gave: one of them had it as a draft and went on. ``recorded``, ``now``: the two tokens, or for a draft how many were
    accepted. ``ids``: prompt and output before the choice; for a draft, before the verify. ``path``: of a draft, the
    tokens up to the choice; shorter than it should be (``depth``) where an output ended.
    """

    step: int
    kind: Kind
    request: str = ""
    position: int = 0
    recorded: int | None = None
    now: int | None = None
    ids: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    depth: int = 0


@dataclass(frozen=True)
class _Event:
    """The share of one request in one step. ``accepted``: None where nothing was verified."""

    step: int
    tokens: tuple[int, ...]
    accepted: int | None


def partings(
    requests: Sequence[WorkloadRequest], recorded: Sequence[str], now: Sequence[str]
) -> tuple[Parting, ...] | None:
    """The first difference of each request, and what no choice explains, in the order of the recorded steps.

    Every request comes after the one it continues; ``recorded`` and ``now`` have a JSON line for each step. Returns
    None where the recorded lines are no trace that this version can read.
    """
    try:
        before, after = _read(recorded), _read(now)
        found = _of_requests(requests, before, after)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    schedule = _of_schedule(before, after, {each.step for each in found})
    return tuple(sorted((*found, *schedule), key=lambda each: each.step))


def _read(lines: Sequence[str]) -> list[dict[str, Any]]:
    if sum(line.count(",") + line.count("[") + line.count("{") for line in lines) > MAX_VALUES:
        raise ValueError("a trace of more values than are compared")
    steps = [dict(zip(TRACED, json.loads(line), strict=True)) for line in lines]
    tokens = (token for step in steps for each in step["emitted"].values() for token in each)
    if not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise ValueError("a token that is none")
    return steps


def _of_requests(
    requests: Sequence[WorkloadRequest], before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[Parting]:
    found: list[Parting] = []
    texts: dict[str, tuple[int, ...]] = {}  # prompt and output of the requests that both traces gave the same
    for request in requests:
        if request.continues is not None and request.continues not in texts:
            continue  # another prompt in each
        prompt = (*texts.get(request.continues or "", ()), *request.new_ids)
        sides = _events(request.rid, before), _events(request.rid, after)
        found += _of_one(request, prompt, *sides)
        one, other = (tuple(token for event in side for token in event.tokens) for side in sides)
        if one == other:
            texts[request.rid] = (*prompt, *one)
    return found


def _events(rid: str, steps: Sequence[Mapping[str, Any]]) -> list[_Event]:
    return [
        _Event(step["step"], tuple(step["emitted"][rid]), step["accept"].get(rid))
        for step in steps
        if rid in step["emitted"]
    ]


def _of_one(
    request: WorkloadRequest, prompt: tuple[int, ...], before: Sequence[_Event], after: Sequence[_Event]
) -> list[Parting]:
    """A draft that was accepted in one trace only, and the first other token."""
    kind: Kind = "sampled" if request.sampling.temperature > 0 else "draft"
    found: list[Parting] = []
    output: tuple[int, ...] = ()
    for one, other in zip(before, after, strict=False):
        alike = all(a == b for a, b in zip(one.tokens, other.tokens, strict=False))
        if not alike or (one.accepted is None) != (other.accepted is None):
            break  # the second: retracted in one trace only, and so prefilled again
        if one.accepted != other.accepted and one.accepted is not None and other.accepted is not None:
            depth = min(one.accepted, other.accepted)
            place, counts = len(output) + depth - 1, (one.accepted, other.accepted)
            path = max(one.tokens, other.tokens, key=len)[:depth]
            found.append(Parting(one.step, kind, request.rid, place, *counts, (*prompt, *output), path, depth))
            break
        output += one.tokens
    ours, theirs = ([(event.step, token) for event in side for token in event.tokens] for side in (before, after))
    for position, ((step, token), (_, now)) in enumerate(zip(ours, theirs, strict=False)):
        if token != now:
            ids = (*prompt, *(token for _, token in ours[:position]))
            kind = "sampled" if kind == "sampled" else "token"
            return [*found, Parting(step, kind, request.rid, position, token, now, ids)]
    return found


def _of_schedule(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], parted: set[int]
) -> list[Parting]:
    """The first step that differs, if that is not by a choice made in it."""
    for one, other in zip(before, after, strict=False):
        if one == other:
            continue
        by_choice = all(one[name] == other[name] for name in _NO_CHOICES) and one["step"] in parted
        return [] if by_choice else [Parting(one["step"], "schedule")]
    return [] if len(before) == len(after) else [Parting(min(len(before), len(after)) + 1, "schedule")]
