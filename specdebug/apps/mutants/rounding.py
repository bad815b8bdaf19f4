"""A mutant's differences, with the values in hand: no more than rounding, or a wrong value.

Where the sound engine sums in another order, as with another number of parts, every later value moves by its rounding
and nothing is wrong. A mutant that does no more is not effective. Looked at is a mutant that no verdict saw and of
which nothing but floating-point values differed, in each arm that has such differences: the sound engine and the
mutant run again and keep those tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from specdebug.base.assets import checkpoint_path
from specdebug.campaign.loops.replay import ArmRun
from specdebug.diverge.align import Difference
from specdebug.diverge.rounding import compared, tolerance
from specdebug.reference.config import read_config

LOOKED_AT = 24
"""Differences that are looked at of each site: the first, and others evenly over the run, for errors that grow."""

Keep = tuple[tuple[int, int, str], ...]
"""Step, call and site of the tensors to keep."""


def chosen(found: Sequence[Difference]) -> tuple[Difference, ...]:
    """The differences whose values are to be looked at."""
    by_site = groupby(sorted(found, key=lambda each: each.site), key=lambda each: each.site)
    return tuple(each for _, some in by_site for each in _evenly(list(some)))


def to_keep(found: Iterable[Difference]) -> Keep:
    """The tensors that hold their values; both runs make the same calls, or more than values would differ."""
    shares = [each.left for each in found if each.left is not None]
    return tuple(sorted({(share.step, share.call, share.descriptor.site) for share in shares}))


def beyond_rounding(found: Iterable[Difference], run: ArmRun, sound: Path, mutant: Path) -> Difference | None:
    """The first difference that is wider than rounding makes it, by the tensors kept in two folders."""
    shape = run.shape
    model = read_config(checkpoint_path(shape.model))
    for each in sorted(found, key=lambda each: each.step):
        seen = compared(each, sound, mutant)
        allowed = tolerance(each.site, shape.dtype, model.num_layers, model.hidden_size)
        if seen is not None and seen.gap > allowed:
            return each
    return None


def _evenly(found: Sequence[Difference]) -> Iterator[Difference]:
    every = max(1.0, len(found) / LOOKED_AT)
    yield from (found[int(at * every)] for at in range(min(len(found), LOOKED_AT)))
