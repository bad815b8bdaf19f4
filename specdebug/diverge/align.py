"""Two recorded runs side by side: their differences, in the order in which they happened.

**In lockstep**, for arms of one engine that are configured alike: equal code does equal things to the bit, so the first
difference is the answer. **By request**, for arms configured otherwise, which may batch otherwise: both are cut down to
the sites and requests that they share, and a request's own decode steps are laid side by side by their number. Slots
and places in the batch may then differ, and floating-point values by rounding: ``rounding.py`` judges with the
values."""

import dataclasses
from array import array
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from specdebug.diverge.recording import Descriptor, RecordedStep, Share, without
from specdebug.engine.sites import held_at

SharePlace = tuple[str, str, int, str, int]
"""The place of a request's share in its run: request, kind and number of its step, site, and which of its calls of
that."""

PREFILL = "target_prefill.input_ids"  # the site that a step passes if it is a prefill
EXTENDED = "draft_extend."  # sites of what a draft is extended over, and of what comes of it
WRITTEN = "kv_pool.write."  # sites of what is written to a pool of KV
CACHED = ("prefix.", "snapshot.")  # sites of what is found in the cache and kept for it, which depends on others

Sides = Literal["engines", "workers", "arms"]
"""Two engines, two workers of our own, or one worker's arms that are configured otherwise."""


@dataclass(frozen=True)
class Difference:
    """One difference: of values, of the number of rows, of who or what was computed, or that one run had ended.
    ``left``, ``right``: the shares that differ, if any. ``step``: of the right one. ``text``: for people, else."""

    what: Literal["value", "shape", "schedule", "end"]
    step: int
    site: str
    owner: str | None = None
    left: Share | None = None
    right: Share | None = None
    text: str = ""

    @property
    def when(self) -> str:
        """The step's number; in both arms where they differ."""
        if self.left and self.right and self.left.step != self.right.step:
            return f"{self.left.step}/{self.right.step}"
        return str(self.step)

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
            site = next((part.descriptor.site for part in longer.parts()), "")
            yield Difference("end", longer.number, site, text=f"only the {side} arm has a step {longer.number}")
            return
        if one.rids != other.rids:
            names = [", ".join(each.rids) or "no" for each in (one, other)]
            text = f"requests {names[0]} are computed in the first arm, {names[1]} in the second"
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
    by right are passed over. Of prefills only those that end at the same position are compared, and shares with as many
    rows: the cuts of a prompt depend on the other requests. A request whose tensors cease to have counterparts is not
    looked at any further, nor is one that the left run ceases to show."""
    counterpart = dict(_placed(left))
    gone = {rid for step in left for rid in step.gone}
    lost: set[str] = set()
    for place, part in _placed(right):
        rid, kind, _, site, _ = place
        if rid in lost or is_where(site) or site.startswith(CACHED) or place in unlike:
            continue
        other = counterpart.get(place)
        if other is not None and other.rows == part.rows:
            if other.digest != part.digest:
                yield Difference("value", part.step, site, rid, other, part)
        elif kind == "decode":
            lost.add(rid)
            if other is None and rid in gone:
                continue
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


def _placed(steps: Sequence[RecordedStep]) -> Iterator[tuple[SharePlace, Share]]:
    """The shares of requests, each with its place. Of a decode step, its number among the request's; of a prefill, the
    position behind the share's last row."""
    decodes: dict[str, int] = {}
    for step in steps:
        rows = prefilled(step)
        for each in step.rids:
            decodes[each] = decodes.get(each, 0) + (each not in rows)
        for part in step.parts():
            if (rid := part.owner) is None:
                continue
            site, owners = part.descriptor.site, part.descriptor.owners
            if rid in rows:
                behind = owners[part.place + 1 :].count(owners[part.place])
                yield (rid, "prefill", step.starts.get(rid, 0) + rows[rid] - behind, site, part.nth), part
            else:
                yield (rid, "decode", decodes[rid], site, part.nth), part


def prefilled(step: RecordedStep) -> dict[str, int]:
    """By request that a step prefills, how many of its tokens."""
    rows: dict[str, int] = {}
    for part in step.parts():
        if part.descriptor.site == PREFILL and part.owner is not None:
            rows[part.owner] = rows.get(part.owner, 0) + (part.rows or 0)
    return rows


def computed_again(steps: Sequence[RecordedStep]) -> set[str]:
    """Requests that were prefilled after they had decoded: their later steps have other numbers than elsewhere."""
    decoded: set[str] = set()
    again: set[str] = set()
    for step in steps:
        rows = prefilled(step)
        again |= decoded & set(rows)
        decoded |= set(step.rids) - set(rows)
    return again


def prompts_of(left: Sequence[RecordedStep], right: Sequence[RecordedStep]) -> tuple[int, int, int]:
    """How many positions of prompts both computed, the first alone and the second alone, of requests that both have."""
    computed = []
    for side in (left, right):
        placed = (place for place, part in _placed(side) if part.descriptor.site == PREFILL)
        computed.append({(rid, position) for rid, _, position, _, _ in placed})
    both = set.intersection(*({rid for rid, _ in side} for side in computed))
    one, other = ({place for place in side if place[0] in both} for side in computed)
    return len(one & other), len(one - other), len(other - one)


def _shape(part: Share) -> str:
    rows = part.descriptor.rows
    return f"{sum(rows)} rows for {sum(owner >= 0 for owner in part.descriptor.owners)} requests" if rows else "a list"


@dataclass(frozen=True)
class Looked:
    """The part of two recordings that was compared. ``what``: whose recordings they are. ``sites``: those of both.
    ``only``: sites of the first alone, and of the second. ``alone``: requests that were not compared, and why not.
    ``left_out``: those that were up to a place, and why no further. ``prompts``: positions of prompts that both
    computed, the first alone and the second alone, of two engines. ``unlike``: by site, how
    many tensors were not compared, because the workers rightly have other rows there."""

    what: Sides
    sites: tuple[str, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    alone: Mapping[str, str]
    left_out: Mapping[str, str] = field(default_factory=dict)
    prompts: tuple[int, int, int] | None = None
    unlike: Mapping[str, int] = field(default_factory=dict)


def in_common(
    left: Sequence[RecordedStep], right: Sequence[RecordedStep], alone: Mapping[str, str], what: Sides
) -> tuple[list[RecordedStep], list[RecordedStep], Looked]:
    """The steps of both with the calls that both have, and with the requests not in ``alone``."""
    mine, others = sites_of(left), sites_of(right)
    gone = {rid: why for steps in (left, right) for step in steps for rid, why in step.gone.items()}
    rids = {rid for steps in (left, right) for step in steps for rid in step.rids}
    looked = Looked(
        what,
        tuple(sorted(mine & others)),
        (tuple(sorted(mine - others)), tuple(sorted(others - mine))),
        {rid: why for rid, why in alone.items() if rid in rids},
        {rid: why for rid, why in gone.items() if rid not in alone},
    )
    one, other = ([_only(step, mine & others, alone) for step in steps] for steps in (left, right))
    return one, other, looked


def unlike_by_worker(left: Sequence[RecordedStep], right: Sequence[RecordedStep]) -> frozenset[SharePlace]:
    """The places in requests' decode steps where the workers v1 and v2 rightly have other rows. v2 extends a draft over
    every node of a tree, v1 over what was accepted, so that they write other rows of KV. And where a request ends
    inside an accepted path, v1 extends it no further than that; what comes of it is not read. A step that only one of
    them made is a difference."""
    one, other = (dict(_placed(steps)) for steps in (left, right))
    made = [{place[:3] for place in side} for side in (one, other)]
    last: dict[str, int] = {}
    for rid, kind, number in made[0] | made[1]:
        if kind == "decode":
            last[rid] = max(last.get(rid, 0), number)

    def rightly(place: SharePlace) -> bool:
        rid, kind, number, site, _ = place
        if kind != "decode" or is_where(site) or not all(place[:3] in steps for steps in made):
            return False
        if site.startswith(EXTENDED) and number == last[rid]:
            return True
        mine, others = one.get(place), other.get(place)
        return site.startswith(WRITTEN) and (mine is None or others is None or mine.rows != others.rows)

    return frozenset(filter(rightly, one.keys() | other.keys()))


def sites_of(steps: Sequence[RecordedStep]) -> set[str]:
    """Every site that was passed, and not left out."""
    return {call.site for step in steps for call in step.calls if call.owners}


def _only(step: RecordedStep, sites: set[str], alone: Mapping[str, str]) -> RecordedStep:
    """The step with the calls of some sites, rows of other requests counting as padding. Calls keep their numbers,
    by which their tensors are found."""
    calls, digests, at = [], array("Q"), 0
    for call in step.calls:
        size = len(call.owners)
        if call.site in sites:
            calls.append(call)
            digests.extend(step.digests[at : at + size])
        else:
            calls.append(Descriptor(call.site, call.dtype, (), ()))
        at += size
    return without(dataclasses.replace(step, calls=tuple(calls), digests=digests), alone)
