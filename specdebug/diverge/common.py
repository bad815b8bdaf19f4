"""Recordings of arms that are not alike are cut down to what both have: sites, and requests that both compute alike."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specdebug.diverge.align import SharePlace, is_where, placed
from specdebug.diverge.stream import PADDING, Descriptor, RecordedStep

EXTENDED = "draft_extend."
"""Sites of what a draft is extended over, and of what comes of it."""
WRITTEN = "kv_pool.write."
"""Sites of what is written to a pool of KV."""

Sides = Literal["engines", "workers", "arms"]
"""Two engines, two workers of our own, or one worker's arms that are configured otherwise."""


@dataclass(frozen=True)
class Looked:
    """The part of two recordings that was compared.

    ``what``: whose recordings they are. ``sites``: those of both. ``only``: sites of the first alone, and of the
    second. ``alone``: requests that were not compared, and why not. ``left_out``: those that were up to a place, and
    why no further. ``prompts``: positions of prompts that both computed, the first
    alone and the second alone, where an engine cuts prompts otherwise. ``unlike``: by site, how many tensors were not
    compared, because the workers rightly have other rows there.
    """

    what: Sides
    sites: tuple[str, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    alone: Mapping[str, str]
    left_out: Mapping[str, str] = field(default_factory=dict)
    prompts: tuple[int, int, int] | None = None
    unlike: Mapping[str, int] = field(default_factory=dict)


def in_common(
    left: Sequence[RecordedStep],
    right: Sequence[RecordedStep],
    alone: Mapping[str, str],
    what: Sides,
) -> tuple[list[RecordedStep], list[RecordedStep], Looked]:
    """The steps of both with the calls that both have, and with the requests not in ``alone``."""
    mine, others = sites_of(left), sites_of(right)
    both = mine & others
    rids = {rid for steps in (left, right) for step in steps for rid in step.rids}
    looked = Looked(
        what,
        tuple(sorted(both)),
        (tuple(sorted(mine - both)), tuple(sorted(others - both))),
        {rid: why for rid, why in alone.items() if rid in rids},
    )
    one, other = ([_only(step, both, alone) for step in steps] for steps in (left, right))
    return one, other, looked


def unlike_by_worker(left: Sequence[RecordedStep], right: Sequence[RecordedStep]) -> frozenset[SharePlace]:
    """The places in requests' decode steps where the workers v1 and v2 rightly have other rows.

    v2 extends a draft over every node of a tree, v1 over what was accepted, so that they write other rows of KV. And
    where a request ends inside an accepted path, v1 extends it no further than that; what comes of it is not read. A
    step that only one of them made is a difference.
    """
    one, other = (dict(placed(steps)) for steps in (left, right))
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


def integers_of(steps: Sequence[RecordedStep]) -> dict[str, str]:
    """By site, the type of its tensor where that is one of integers."""
    return {call.site: call.dtype for step in steps for call in step.calls if "int" in call.dtype}


def _only(step: RecordedStep, sites: set[str], alone: Mapping[str, str]) -> RecordedStep:
    """The step with the calls of some sites, rows of other requests counting as padding. Calls keep their numbers,
    by which their tensors are found."""
    gone = {place for place, rid in enumerate(step.rids) if rid in alone}
    calls, digests, at = [], array("Q"), 0
    for call in step.calls:
        size = len(call.owners)
        if call.site in sites:
            owners = tuple(PADDING if owner in gone else owner for owner in call.owners)
            calls.append(dataclasses.replace(call, owners=owners))
            digests.extend(step.digests[at : at + size])
        else:
            calls.append(Descriptor(call.site, call.dtype, (), ()))
        at += size
    return RecordedStep(step.number, step.rids, tuple(calls), digests, step.before)
