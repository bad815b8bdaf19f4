"""What a rank tells of a step: the events that oracles hear, with its requests as they were at that moment, and the
facts that ranks which do the same must agree in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specdebug.events import (
    BatchBegan,
    Decided,
    DraftForward,
    Event,
    Finishing,
    InVain,
    Observers,
    Prefilled,
    Stepped,
)
from specdebug.targets.base import Session
from specdebug.targets.ranks.collectives import Collective
from specdebug.targets.requests import NotShown, RequestView, Sampling

KeysValues = tuple[Tensor, Tensor]
Fact = tuple[str, Any]
"""A name, as of a site, and a tensor, or plain data."""


@dataclass
class RankedRequest:
    """A request that another process serves, as ``requests.RequestView``, as far as that has told. ``kv``: by pool,
    keys and values of all its positions, each [layers, n, heads, head_dim]."""

    rid: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    speculative: bool
    part: int = 0
    output_ids: Sequence[int] = ()
    kv_len: int = 0
    accept_lengths: Sequence[int] = ()
    cached_tokens: int = 0
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    stored: Any = None
    logprobs: Sequence[float] = ()
    tops: Sequence[dict[int, float]] = ()
    kv: dict[str, KeysValues] = field(default_factory=dict)

    @property
    def all_ids(self) -> Sequence[int]:
        return [*self.prompt_ids, *self.output_ids]

    def update(self, facts: dict[str, Any]) -> None:
        """Take in what :func:`seen_of` has."""
        for name, value in facts.items():
            setattr(self, name, value)


_SEEN = (
    *("sampling", "kv_len", "cached_tokens", "finish_reason", "matched_stop", "stored"),
    *("output_ids", "accept_lengths", "logprobs", "tops"),
)


def seen_of(request: Any) -> dict[str, Any]:
    """A request's facts now, as they travel."""
    facts = {name: getattr(request, name) for name in _SEEN}
    return {name: list(each) if isinstance(each, Sequence) and not isinstance(each, str) else each
            for name, each in facts.items()}  # fmt: skip


_PARTED = (".target_kv", ".draft_kv", ".state")
"""Sites of keys, values and recurrent states by their heads, as names end."""


@dataclass
class Said:
    """An event, by the ids of its requests, and these as they were."""

    kind: type[Event]
    facts: dict[str, Any]
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    many: bool = False


@dataclass
class RankReport:
    """A rank's account of a step. ``hits``: passes through edits, by their counters."""

    stepped: Stepped
    said: list[Said]
    requests: dict[str, dict[str, Any]]
    facts: list[Fact]
    collectives: list[Collective]
    problems: list[str]
    findings: list[Any]
    hits: dict[int, int] = field(default_factory=dict)


class Noted:
    """The observer of one rank's session, which is ``leading`` where its events are told on. ``shows_kv``: requests are
    told with their keys and values when they are prefilled and when they end, and where they are ``handed`` over with
    their first verify."""

    hears = (BatchBegan, InVain, DraftForward, Decided, Prefilled, Finishing)

    def __init__(self, session: Session, *, leading: bool, shows_kv: bool, handed: bool = False) -> None:
        self._session, self._leading, self._shows_kv = session, leading, shows_kv
        self._awaited: set[str] | None = set() if handed else None  # those whose first verify is told
        self._said: list[Said] = []
        self._facts: list[Fact] = []

    def add(self, site: str, tensor: Tensor) -> None:
        """A tensor has passed a site; what a pool holds, of which each rank has a part, is no fact."""
        if not site.endswith(_PARTED):
            self._facts.append((site, tensor.detach().to("cpu", copy=True)))

    def on(self, event: Any) -> None:
        match event:
            case BatchBegan(kind, requests):
                self._facts += [("batch.kind", kind), ("batch.rids", [each.rid for each in requests])]
                self._facts.append(("batch.seq_lens", [each.kv_len for each in requests]))
            case Prefilled(request) | Finishing(request):
                self._said.append(Said(type(event), {}, {request.rid: seen_of(request) | self._kv(request)}))
            case Decided():
                facts = {each.name: getattr(event, each.name) for each in dataclasses.fields(event)}
                told = {each.rid: seen_of(each) | self._first(each) for each in facts.pop("requests")}
                self._tell(Said(Decided, facts, told, many=True))
            case _:
                facts = {each.name: getattr(event, each.name) for each in dataclasses.fields(event)}
                self._tell(Said(type(event), facts))

    def _tell(self, said: Said) -> None:
        if self._leading:
            self._said.append(said)

    def _first(self, request: RequestView) -> dict[str, Any]:
        if self._awaited is None or request.rid in self._awaited:
            return {}
        self._awaited.add(request.rid)
        return self._kv(request)

    def _kv(self, request: RequestView) -> dict[str, Any]:
        if not self._shows_kv:
            return {}
        kv: dict[str, KeysValues] = {}
        for pool, shown in (("target", self._session.target_kv), ("draft", self._session.draft_kv)):
            try:
                kv[pool] = shown(request, 0, request.kv_len)
            except (NotShown, AttributeError):  # there is no draft, or it keeps nothing like it
                continue
        return {"kv": kv}

    def report(self, stepped: Stepped, collectives: list[Collective], findings: list[Any]) -> RankReport:
        """All that was noted since the last."""
        said, self._said = self._said, []
        facts, self._facts = self._facts, []
        facts.append(("tokens", {rid: list(stepped.emitted[rid]) for rid in sorted(stepped.emitted)}))
        facts.append(("accept_lengths", dict(sorted(stepped.accept_lengths.items()))))
        facts.append(("finished", sorted(stepped.finished)))
        rids = dict.fromkeys((*stepped.rids, *stepped.finished))
        requests = {rid: seen_of(self._session.request(rid)) for rid in rids}
        problems = list(self._session.check_pools()) if "pools" in self._session.shows else []
        return RankReport(stepped, said, requests, facts, collectives, problems, findings)


def retold(reports: Sequence[RankReport], heads: int, requests: dict[str, RankedRequest], observers: Observers) -> None:
    """Tell what ranks that do the same have said, the first of which leads: of each request's keys and values all
    ``heads``, which lie apart."""
    shards: dict[tuple[str, type[Event]], list[dict[str, KeysValues]]] = {}
    for report in reports[1:]:
        for said in report.said:
            for rid, seen in said.requests.items():
                shards.setdefault((rid, said.kind), []).append(seen.get("kv", {}))
    for said in reports[0].said:
        for rid, seen in said.requests.items():
            if "kv" in seen and len(reports) > 1:
                parts = [seen["kv"], *shards.get((rid, said.kind), ())]
                seen["kv"] = {pool: _joined([part[pool] for part in parts if pool in part], heads) for pool in parts[0]}
            requests[rid].update(seen)
        if said.many:
            observers.tell(said.kind, requests=[requests[rid] for rid in said.requests], **said.facts)
        elif said.requests:
            observers.tell(said.kind, *(requests[rid] for rid in said.requests))
        else:
            observers.tell(said.kind, **said.facts)


def _joined(parts: Sequence[KeysValues], heads: int) -> KeysValues:
    """All heads of keys and values, of which each rank has some. Where there are too few for all, several ranks have
    the same, or on a CPU the last ranks have heads of zeros."""
    again = max(sum(part[0].shape[2] for part in parts) // heads, 1)
    if again > 1 and torch.equal(parts[0][0], parts[1][0]):
        parts = parts[::again]
    keys, values = (torch.cat([part[side] for part in parts], dim=2)[:, :, :heads] for side in (0, 1))
    return keys, values


def other_part(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first part in which two rows of what requests store differ; None where they are equal to the bit."""
    for name, value in one.items():
        ours, theirs = (torch.as_tensor(each).double() for each in (value, other[name]))
        if not torch.allclose(ours, theirs, 0.0, 0.0, equal_nan=True):
            return name
    return None
