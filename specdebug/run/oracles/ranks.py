"""Ranks: those that compute the same agree, step by step, in what is replicated, and all that share a group in the
collectives that they enter. The engine compares nothing itself: ranks that part go on until tokens or shapes differ."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from specdebug.events import RankStepped
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings
from specdebug.targets.ranks.collectives import SIDED
from specdebug.verdict.outcome import Violation


class RanksOracle(Oracle):
    """Compares each rank with the first that does the same, and reports where they part, once."""

    name = "ranks"
    hears = (RankStepped,)

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.spec.ranks and settings.target.ranks > 1

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._told: dict[int, RankStepped] = {}
        self._traces: dict[int, hashlib.blake2b] = {}
        self._parted = False

    def on(self, event: RankStepped) -> None:
        self._told[event.rank] = event
        trace = self._traces.setdefault(event.rank, hashlib.blake2b(digest_size=8))
        for part in _written(event):
            trace.update(part)
        self.bench.rank_traces[str(event.rank)] = trace.hexdigest()
        if self._parted or event.rank == 0:
            return
        self.bench.looked(self.name)
        first = self._told[event.alike[0]]
        if first is not event and (found := _unlike(first.facts, event.facts)) is not None:
            self._report(first.rank, event, *found)
            return
        for other in sorted(rank for rank in self._told if rank < event.rank):
            if (found := _entered_otherwise(self._told[other], event)) is not None:
                self._report(other, event, *found)
                return

    def _report(self, other: int, event: RankStepped, site: str, ours: str, theirs: str) -> None:
        self._parted = True
        detail = f"rank {event.rank} has {theirs}, rank {other} {ours}"
        data = {"rank": event.rank, "ranks": [f"rank {other} {ours}", f"rank {event.rank} {theirs}"]}
        self.bench.report(Violation("ranks", site, event.step, detail, data=data))


def _written(event: RankStepped) -> Iterator[bytes]:
    """Return a rank's facts of a step, in an order that is always the same."""
    for site, value in event.facts:
        yield site.encode()
        if isinstance(value, torch.Tensor):
            yield f"{value.dtype}{list(value.shape)}".encode()
            yield value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        else:
            yield repr(value).encode()
    yield repr([each.form for each in event.collectives]).encode()


Difference = tuple[str, str, str]
"""The site, and what the first rank and the other have there."""


def _unlike(one: Sequence[tuple[str, Any]], other: Sequence[tuple[str, Any]]) -> Difference | None:
    for (site, ours), (name, theirs) in zip(one, other, strict=False):
        if site != name:
            return site, f"passes {site}", f"passes {name}"
        if (found := _difference(ours, theirs)) is not None:
            return site, *found
    if len(one) != len(other):
        longer, at = (one, len(other)) if len(one) > len(other) else (other, len(one))
        site = longer[at][0]
        here, gone = f"passes {site}", "is over by then"
        return (site, here, gone) if longer is one else (site, gone, here)
    return None


def _difference(ours: Any, theirs: Any) -> tuple[str, str] | None:
    """The first difference of two facts, in words; None where they are equal, NaN included."""
    if not (isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)):
        return None if ours == theirs else (str(ours), str(theirs))
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return (f"{list(ours.shape)} of {ours.dtype}", f"{list(theirs.shape)} of {theirs.dtype}")
    wrong = ((ours != theirs) & ~((ours != ours) & (theirs != theirs))).nonzero()
    if not len(wrong):
        return None
    at = tuple(wrong[0].tolist())
    return f"{ours[at].item()} at {list(at)}", f"{theirs[at].item()} at {list(at)}"


def _entered_otherwise(one: RankStepped, other: RankStepped) -> Difference | None:
    """Where two ranks entered other collectives of a group that both are in."""
    mine, theirs = ([each for each in told.collectives if each.op not in SIDED] for told in (one, other))
    for group in dict.fromkeys(each.group for each in mine):
        ours, their = ([each for each in every if each.group == group] for every in (mine, theirs))
        if not their:  # it is in another group of that name
            continue
        for left, right in zip(ours, their, strict=False):
            if left.form != right.form:
                return left.op, f"enters {left}", f"enters {right}"
        if len(ours) != len(their):
            longer = ours if len(ours) > len(their) else their
            extra = longer[min(len(ours), len(their))]
            here, gone = f"enters {extra}", "does not"
            return (extra.op, here, gone) if longer is ours else (extra.op, gone, here)
    return None
