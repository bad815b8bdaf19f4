"""An access of a kernel held against the memory that its pointers belong to.

A block whose least and greatest address lie where they belong costs two comparisons. Only else is it looked at lane by
lane. A lane that left its tensor does what it would on a GPU where that lies in another tensor's memory, which it
reads or overwrites. Memory without an owner is neither read nor written: a load gets bits that are all set.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from specdebug.kernel_memory.launch import KernelLaunch
from specdebug.kernel_memory.owners import is_mapped
from specdebug.kernel_memory.pointers import Addresses, Plain, plain, tag_of, tags_of
from specdebug.kernel_memory.regions import Extent, Region

_PAGE = 4096
"""Bytes that a process has all of or none."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def look(launch: KernelLaunch, data: Addresses, mask: Mask, item: int, what: str) -> tuple[Addresses, Mask]:
    """The plain addresses of a block, and which lanes may be carried out. ``mask``: the lanes that are meant; ``item``:
    bytes of an element; ``what``: load, store or atomic."""
    active = data if mask.all() else data[mask]
    if not active.size:
        return data, mask
    low, high = int(active.min()), int(active.max())
    tag = tag_of(low)
    limits = launch.limits.get(tag)
    if limits is not None and limits[0] <= low and high + item <= limits[1]:
        if limits[3] is not None:
            launch.touched(tag, limits[3], plain(active), what)
        return data - np.uint64(limits[2]), mask
    return _Block(launch, data, mask, item, what).looked()


class _Block:
    """A block of which some lane may be somewhere else."""

    def __init__(self, launch: KernelLaunch, data: Addresses, mask: Mask, item: int, what: str) -> None:
        self._launch = launch
        self._tags = tags_of(data)
        self._plain = plain(data)
        self._mask = mask
        self._item = item
        self._what = what
        self._safe = mask.copy()

    def looked(self) -> tuple[Addresses, Mask]:
        for tag in np.unique(self._tags[self._mask]).tolist():
            lanes = self._mask & (self._tags == tag)
            region = self._launch.regions.get(tag)
            if region is None:
                self._stray(lanes)
            else:
                self._held(region, lanes)
        return self._plain.view(np.uint64), self._safe

    def _held(self, region: Region, lanes: Mask) -> None:
        """Lanes whose origin is known."""
        if (shadow := self._launch.limits[region.tag][3]) is not None:
            self._launch.touched(region.tag, shadow, self._plain[lanes], self._what)
        outside = lanes & ~self._within(region.storage)
        if outside.any():
            self._drop(outside)
            self._tell(region, outside, region.view, "tensor", region.about)
            return
        beyond = lanes & ~self._within(region.view)
        if beyond.any():
            self._tell(region, beyond, region.view, "slice", f"the slice {region.about}")
        elif region.row is not None and self._is_run(lanes):
            beyond = lanes & ~self._within(region.window)
            if beyond.any():
                self._tell(region, beyond, region.window, "row", f"row {region.row} of {region.about}")

    def _stray(self, lanes: Mask) -> None:
        """Lanes whose origin is not known: a number that was made a pointer. Memory that some tensor or other code has
        is nothing to tell of."""
        bad = np.zeros_like(lanes)
        pages: dict[int, bool] = {}
        for place in zip(*np.nonzero(lanes), strict=True):
            address = int(self._plain[place])
            if self._launch.owners.at(address) is None:
                page = address // _PAGE
                if page not in pages:
                    pages[page] = address > 0 and is_mapped(address)
                bad[place] = not pages[page]
        if bad.any():
            first, where = int(self._plain[bad][0]), self._launch.position(self._what)
            self._safe &= ~bad
            words = partial("address {:#x} is memory of no tensor".format, first)
            self._launch.report(self._launch.source_of(first), "oob", where, "tensor", words, int(bad.sum()))

    def _within(self, span: Extent) -> Mask:
        held: Mask = (self._plain >= span.start) & (self._plain + self._item <= span.end)
        return held

    def _is_run(self, lanes: Mask) -> bool:
        """Return True for elements side by side, as of one row; a block of two dimensions may well span rows."""
        return lanes.ndim <= 1 and bool((np.diff(self._plain[lanes]) == self._item).all())

    def _drop(self, outside: Mask) -> None:
        """Carry out no lane that hits memory without an owner."""
        for place in zip(*np.nonzero(outside), strict=True):
            address = int(self._plain[place])
            owner = self._launch.owners.at(address)
            self._safe[place] = owner is not None and address + self._item <= owner.end

    def _tell(self, region: Region, bad: Mask, span: Extent, left: str, name: str) -> None:
        addresses: Plain = self._plain[bad]
        first = int(addresses[0])
        behind = first + self._item > span.end
        if behind:
            steps = (addresses[addresses + self._item > span.end] - span.end) // self._item + 1
        else:
            steps = (span.start - addresses[addresses < span.start] + self._item - 1) // self._item
        near, far = max(1, int(steps.min())), max(1, int(steps.max()))
        count = f"{near}" if near == far else f"{near} to {far}"
        side = "behind the end of" if behind else "in front of"
        where = f"{count} element{'s' * (far > 1)} {side} {name}"

        def words() -> str:
            return f"{where}, {self._launch.victim_at(first)}"

        self._launch.report(region.argument, "oob", self._launch.position(self._what), left, words, int(bad.sum()))
