"""Find where two traces of one arm part: the first choice of each request that was made otherwise.

Of the whole numbers that a trace holds a processor decides nothing but choices: which token is best where two are as
good as each other, and which drafts are in the tree; everything else follows. So requests are compared one by one, up
to their first other token. How narrow a choice was is weighed by the dense model of the oracles, in float32, in a
worker: a token is as good as the best, and a draft as good as in the tree or out of it, if no more decides it than
rounding moves logits in the engine's dtype (``lossless.TIE_MARGIN``, a part of the largest logit there)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from specdebug.scenario.workload import WorkloadRequest
from specdebug.targets.options import EngineShape
from specdebug.verdict.ledger import TRACED
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.run.dense import DenseReference


Kind = Literal["token", "draft", "sampled", "schedule"]

_NO_CHOICES = ("step", "kind", "rids", "cached", "retracted")  # facts that no choice of their own step decides
MAX_VALUES = 1 << 22  # of a trace that is compared: a short one takes some thirty times its text as an object


@dataclass(frozen=True)
class Parting:
    """One difference. ``step`` is of the recorded trace, from 1. ``kind``: ``token``: another token was emitted;
    ``draft``: the same tokens, but another number of them accepted; ``sampled``: either, of a request that draws its
    tokens; ``schedule``: nothing that a choice decides. ``position``: the token of the request's output that the choice
    is about; for a draft the last that both verifies gave: one of them had it as a draft and went on. ``recorded``,
    ``now``: the two tokens, or for a draft how many were accepted. ``ids``: prompt and output before the choice; for a
    draft, before the verify. ``path``: of a draft, the tokens up to the choice; shorter than it should be (``depth``)
    where an output ended."""

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
    """The first difference of each request, and what no choice explains, in the order of the recorded steps. Every
    request comes after the one it continues; ``recorded`` and ``now`` have a JSON line for each step. Returns None
    where the recorded lines are no trace that this version can read."""
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


TARGET = f"{__name__}:weigh"


def weigh(payload: Mapping[str, Any], sink: Sink) -> None:
    """Emit ``weighed`` for every parting, in order: the gap, what is allowed, and the token that is best there."""
    from specdebug.run.dense import DenseReference
    from specdebug.run.oracles.lossless import TIE_MARGIN

    shape: EngineShape = payload["shape"]
    reference = DenseReference(shape.model, shape.draft_model, shape.algorithm)
    for number, parting in enumerate(payload["partings"]):
        gap, size, preferred = _draft(reference, shape, parting) if parting.depth else _token(reference, parting)
        sink.emit("weighed", number=number, gap=gap, allowed=TIE_MARGIN[shape.dtype] * size, preferred=preferred)


def _token(reference: DenseReference, parting: Parting) -> tuple[float, float, int]:
    """The distance of the worse of the two tokens below the best."""
    gaps = []
    for token in (parting.recorded, parting.now):
        choices, gap, sizes = reference.judge([*parting.ids, token], len(parting.ids))  # type: ignore[list-item]
        gaps += gap
    return max(gaps), sizes[0], choices[0]


def _draft(reference: DenseReference, shape: EngineShape, parting: Parting) -> tuple[float, float, int]:
    """The amount by which the path that one trace accepted is in the tree, or is not. What was accepted beyond the end
    of an output was not given out, so its tokens are the reference's. Then it may as well be one of these that was
    narrow: by how far it is better than the second best."""
    from specdebug.reference.drafting import TreeShape, standing

    assert shape.tree is not None
    path = list(parting.path)
    if parting.depth > shape.tree[1]:  # no tree is so deep: the trace is not of this engine
        return float("inf"), 1.0, path[-1]
    unseen: list[tuple[float, float]] = []
    while len(path) < parting.depth:
        token, lead, size = reference.next_token([*parting.ids, *path])
        path.append(token)
        unseen.append((lead, size))
    found = standing(reference.drafted(parting.ids), len(parting.ids) - 1, path, TreeShape(*shape.tree))
    gap, size = min([(abs(found.slack), found.size), *unseen], key=lambda each: each[0] / each[1])
    return gap, size, path[-1]
