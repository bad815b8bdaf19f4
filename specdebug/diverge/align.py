"""Two recorded runs side by side: their differences, in the order in which they happened.

**In lockstep**, for arms whose engines are configured alike: equal code does equal things, to the bit, so the first
difference is the answer, be it one of rounding's size or one of the schedule.

**By request**, for arms whose engines are configured otherwise: one may batch as the other does not. A request's own
decode steps are laid side by side by their number, whenever each was made. Slots and places in the batch may then
differ, and floating-point values by rounding: those differences are handed on to the judge, who has the values.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from specdebug.diverge.stream import RecordedStep, Share
from specdebug.engine.sites import held_at

What = Literal["value", "shape", "schedule", "end"]
SharePlace = tuple[str, str, int, str, int]
"""The place of a request's share in its run: request, kind and number of its step, site, and which call of that."""

PREFILL = "target_prefill.input_ids"
"""The site that a step passes if it is a prefill."""


@dataclass(frozen=True)
class Difference:
    """One difference: of values, of the number of rows, of who or what was computed, or that one run had ended.

    ``left``, ``right``: the shares that differ, if any. ``step``: of the right one. ``text``: for people, else.
    """

    what: What
    step: int
    site: str
    owner: str | None = None
    left: Share | None = None
    right: Share | None = None
    text: str = ""

    @property
    def soft(self) -> bool:
        """True if rounding could explain it."""
        return self.what == "value" and self.left is not None and self.left.descriptor.is_float


def in_lockstep(left: Sequence[RecordedStep], right: Sequence[RecordedStep]) -> Iterator[Difference]:
    """Differences of two runs that should be equal, in program order, up to the first step with other calls."""
    for one, other in zip_longest(left, right):
        if one is None or other is None:
            longer = one or other
            side = "second" if one is None else "first"
            first = next(longer.parts(), None)
            site = first.descriptor.site if first is not None else ""
            yield Difference("end", longer.number, site, text=f"only the {side} arm has a step {longer.number}")
            return
        if one.rids != other.rids:
            text = f"requests {_named(one.rids)} are computed in the first arm, {_named(other.rids)} in the second"
            yield Difference("schedule", other.number, "", text=text)
            return
        for a, b in zip_longest(one.parts(), other.parts()):
            if a is None or b is None or a.descriptor.site != b.descriptor.site:
                sites = ["nothing more" if part is None else part.descriptor.site for part in (a, b)]
                text = f"the first arm reaches {sites[0]}, the second reaches {sites[1]}"
                yield Difference("schedule", other.number, sites[0] if b is None else sites[1], None, a, b, text)
                return
            if a.descriptor.owners != b.descriptor.owners or a.descriptor.rows != b.descriptor.rows:
                text = f"{_shape(a)} in the first arm, {_shape(b)} in the second"
                owner = a.owner if a.owner == b.owner else None
                yield Difference("shape", other.number, a.descriptor.site, owner, a, b, text)
                return
            if a.digest != b.digest or a.descriptor.dtype != b.descriptor.dtype:
                yield Difference("value", other.number, a.descriptor.site, a.owner, a, b)


def by_request(
    left: Sequence[RecordedStep], right: Sequence[RecordedStep], unlike: Container[SharePlace] = ()
) -> Iterator[Difference]:
    """Differences of the shares of each request, in the order of the right run. Places that are ``unlike`` in the two
    by right are passed over.

    Of prefills only those that end at the same position are compared, and shares with as many rows: the cuts of a
    prompt depend on the other requests. A request whose tensors cease to have counterparts is not looked at any
    further.
    """
    counterpart = dict(placed(left))
    lost: set[str] = set()
    for place, part in placed(right):
        rid, kind, _, site, _ = place
        if rid in lost or is_where(site) or place in unlike:
            continue
        other = counterpart.get(place)
        if other is not None and other.rows == part.rows:
            if other.digest != part.digest:
                yield Difference("value", part.step, site, rid, other, part)
        elif kind == "decode":
            lost.add(rid)
            there = "has no such step or tensor of the request" if other is None else f"has {_shape(other)}"
            text = f"the first arm {there}, the second {_shape(part)}"
            yield Difference("shape", part.step, site, rid, other, part, text)


def same_schedule(left: Sequence[RecordedStep], right: Sequence[RecordedStep]) -> int | None:
    """The first step in which other requests were computed or with other rows; None: there is none."""
    for one, other in zip_longest(left, right):
        if one is None or other is None:
            return (one or other).number
        shapes = [[(d.site, d.rows) for d in step.calls] for step in (one, other)]
        if one.rids != other.rids or shapes[0] != shapes[1]:
            return other.number
    return None


def is_where(name: str) -> bool:
    """True if a site's tensor says where something is, which depends on what else was served."""
    return held_at(name).places


def placed(steps: Sequence[RecordedStep]) -> Iterator[tuple[SharePlace, Share]]:
    """The shares of requests, each with its place."""
    counts: dict[tuple[str, str], int] = {}
    for step in steps:
        number, kind = _numbers(step, counts), _kind(step)
        for part in step.parts():
            if part.owner is not None:
                yield (part.owner, kind, number[part.owner], part.descriptor.site, _nth_of_owner(part, step)), part


def _numbers(step: RecordedStep, counts: dict[tuple[str, str], int]) -> dict[str, int]:
    """By request: which of its decode steps this one is; of a prefill, how far it has come with that."""
    kind = _kind(step)
    more = dict.fromkeys(step.rids, 1)
    if kind == "prefill":
        rows = (part for part in step.parts() if part.descriptor.site == PREFILL and part.owner is not None)
        more = dict.fromkeys(step.rids, 0) | {str(part.owner): part.rows or 0 for part in rows} | dict(step.before)
    for rid, count in more.items():
        counts[rid, kind] = counts.get((rid, kind), 0) + count
    return {rid: counts[rid, kind] for rid in step.rids}


def _kind(step: RecordedStep) -> str:
    return "prefill" if any(call.site == PREFILL for call in step.calls) else "decode"


def _nth_of_owner(part: Share, step: RecordedStep) -> int:
    """Calls of sampling sites are one request's each: their number depends on the batch."""
    if not part.descriptor.site.startswith("sampler."):
        return part.nth
    wanted = part.descriptor.site, part.descriptor.owners
    return sum((call.site, call.owners) == wanted for call in step.calls[: part.call])


def _shape(part: Share) -> str:
    rows = part.descriptor.rows
    return f"{sum(rows)} rows for {sum(owner >= 0 for owner in part.descriptor.owners)} requests" if rows else "a list"


def _named(rids: Sequence[str]) -> str:
    return ", ".join(rids) or "no"
