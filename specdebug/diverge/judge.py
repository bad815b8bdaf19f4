"""Differences of runs that were compared by request, judged with the values in hand: rounding, or the divergence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specdebug.base.assets import checkpoint_path
from specdebug.diverge.align import Difference, SharePlace, by_request
from specdebug.diverge.choices import DRAFT_LOGITS, DRAFTED, Place, explained, grounds
from specdebug.diverge.common import sites_of
from specdebug.diverge.stream import RecordedStep, Share
from specdebug.diverge.values import ValueDifference, difference, kept, tolerance
from specdebug.reference.config import read_config
from specdebug.targets.options import EngineShape

AFTER = 8
"""Sites named that differed right after the first."""
WINDOW = 3000
"""Tensors of each arm kept at a time, to tell rounding from more."""

Pairs = Sequence[tuple[Share | None, Share | None]]
"""Parts of the first arm and of the second."""
Look = Callable[[Pairs], AbstractContextManager[tuple[Path, Path]]]
"""Runs both arms again and gives the folders in which they kept those parts."""


@dataclass(frozen=True)
class Rounding:
    """Differences that another batch shape explains. ``widest``: as a part of a row's largest value.

    ``parted``: choices that rounding explains, after which their requests have no counterparts. ``unseen``: choices of
    the draft in half precision, of which there is no telling, for an arm does not show what it chose from; likewise.
    """

    shares: int = 0
    widest: float = 0.0
    first: Difference | None = None
    parted: tuple[Difference, ...] = ()
    unseen: tuple[Difference, ...] = ()

    def with_one(self, found: Difference, gap: float) -> Rounding:
        """These and one more."""
        return dataclasses.replace(
            self, shares=self.shares + 1, widest=max(self.widest, gap), first=self.first or found
        )


class Judgement(NamedTuple):
    """The first difference that is none of rounding, its values, the first at each site after it, and the rounding."""

    first: Difference | None
    values: ValueDifference | None
    after: tuple[Difference, ...]
    rounding: Rounding


def judge(
    left: Sequence[RecordedStep],
    right: Sequence[RecordedStep],
    look: Look,
    shape: EngineShape,
    unlike: Container[SharePlace] = (),
) -> Judgement:
    """Find the first difference between two arms that rounding does not explain.

    ``left``, ``right``: their steps, with a hash for each request's share. ``look`` gets at values. ``shape``: of
    both engines. ``unlike``: places not to compare.
    """
    steps = {step.number: step for step in left}, {step.number: step for step in right}
    model = read_config(checkpoint_path(shape.model))
    topk = 1 if shape.tree is None else shape.tree[0]
    found, rounding = list(by_request(left, right, unlike)), Rounding()
    if shape.dtype != "float32" and DRAFT_LOGITS not in sites_of(left) & sites_of(right):
        found, unseen = _without_drafted(found)
        rounding = Rounding(unseen=unseen)
    while found:
        hard = next((n for n, each in enumerate(found[:WINDOW]) if not each.soft), None)
        window = found[:WINDOW] if hard is None else found[: hard + 1]
        why = _grounds(window[-1], *steps)
        pairs: list[tuple[Share | None, Share | None]] = [(e.left, e.right) for e in window if e.what == "value"]
        pairs += [(part, None) for part in why[0].values()] + [(None, part) for part in why[1].values()]
        with look(pairs) as folders:
            values = [compared(each, *folders) if each.what == "value" else None for each in window]
            arms = _read(why[0], folders[0]), _read(why[1], folders[1])
        for each, seen in zip(window, values, strict=True):
            if each.soft and seen is None:
                continue  # equal after all: the hashes of two zeros differ
            allowed = tolerance(each.site, shape.dtype, model.num_layers, model.hidden_size)
            if each.soft and seen is not None and seen.gap <= allowed:
                rounding = rounding.with_one(each, seen.gap)
            elif each.right is not None and explained((each.site, each.right.nth), arms, topk):
                rounding = dataclasses.replace(rounding, parted=(*rounding.parted, each))
            else:
                return Judgement(each, seen, next_sites(found[found.index(each) :]), rounding)
        parted = {each.owner for each in rounding.parted}
        found = [each for each in found[len(window) :] if each.owner not in parted]
    return Judgement(None, None, (), rounding)


def compared(found: Difference, left: Path, right: Path) -> ValueDifference | None:
    """Compare the values that two arms kept of a place; None if they are equal, or one arm did not come that far."""
    assert found.left is not None
    assert found.right is not None
    one, other = _rows(found.left, left), _rows(found.right, right)
    return None if one is None or other is None else difference(one, other)


def next_sites(found: Sequence[Difference]) -> tuple[Difference, ...]:
    """The first difference at each site that follows the first difference's own."""
    firsts: dict[str, Difference] = {}
    for each in found:
        firsts.setdefault(each.site, each)
    return tuple(firsts.values())[1 : AFTER + 1]


def _without_drafted(found: Sequence[Difference]) -> tuple[list[Difference], tuple[Difference, ...]]:
    """The differences up to each request's first choice of the draft that differs, and those choices."""
    unseen: dict[str | None, Difference] = {}
    kept = []
    for each in found:
        if each.owner in unseen:
            continue
        if each.site in DRAFTED:
            unseen[each.owner] = each
        else:
            kept.append(each)
    return kept, tuple(unseen.values())


def _grounds(
    found: Difference, left: Mapping[int, RecordedStep], right: Mapping[int, RecordedStep]
) -> tuple[dict[Place, Share], dict[Place, Share]]:
    """The parts that decide a choice, in each arm; none if it is no choice that differs."""
    if found.what != "value" or found.soft or found.left is None or found.right is None:
        return {}, {}
    return grounds(found.left, left[found.left.step]), grounds(found.right, right[found.right.step])


def _read(parts: Mapping[Place, Share], folder: Path) -> dict[Place, np.ndarray]:
    return {place: rows for place, part in parts.items() if (rows := _rows(part, folder)) is not None}


def _rows(part: Share, folder: Path) -> np.ndarray | None:
    whole = kept(folder, (part.step, part.call))
    if whole is None or part.rows is None:
        return whole
    return whole[part.first_row : part.first_row + part.rows]
