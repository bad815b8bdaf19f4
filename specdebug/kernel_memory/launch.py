"""One launch of a kernel: the tensors that it was given, each under a tag, pointers that it makes of them, and each
access held against the memory that its pointers belong to.

A block whose least and greatest address lie where they belong costs two comparisons. Only else is it looked at lane by
lane. A lane that left its tensor does what it would on a GPU where that lies in another tensor's memory, which it
reads or overwrites. Memory without an owner is neither read nor written: a load gets bits that are all set.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from specdebug.kernel_memory.finding import Access
from specdebug.kernel_memory.regions import (
    MAX_TAG,
    Addresses,
    Extent,
    Owners,
    Plain,
    Region,
    base_of,
    is_mapped,
    name_of,
    plain,
    plain_of,
    region_of,
    tag_of,
    tags_of,
)
from specdebug.kernel_memory.shadows import Shadow

UNNAMED = "pointer"
"""Argument of a finding at an address that comes from none of the kernel's."""
_MOST_POINTERS = 1 << 16
"""Elements of an integer argument up to which it is searched for a pointer."""
Report = Callable[[str, str, Access, str, Callable[[], str], int], None]
"""Takes a finding: argument, kind, access, what was left (row, slice or tensor), what makes its words, bad lanes. Whose
memory was hit takes long to find out, so words are made of the first finding of its kind alone."""
Position = Callable[[str], Access]
"""Where the kernel is, for a load, store or atomic."""
ShadowOf = Callable[[Region], Shadow | None]
"""The shadow of what a region holds, if it has one."""


class Habits:
    """How far places of the code move pointers: those that have only ever moved one by whole rows, and at least once by
    some, move by rows. A move by nothing says nothing by itself."""

    def __init__(self) -> None:
        self._by_rows: dict[Hashable, bool] = {}

    def moves_by_rows(self, place: Hashable, whole: bool, moved: bool) -> bool:
        """Take in a move of a place; returns what is known of that then."""
        if not whole:
            self._by_rows[place] = False
        elif moved:
            self._by_rows.setdefault(place, True)
        return self._by_rows.get(place, False)


class KernelLaunch:
    """``arguments``: all of a kernel by name. Tensors are entered one by one (:meth:`enter`), as Triton converts them.

    Attributes:
        regions: what tags stand for.
        limits: by tag, the first and the end of the tagged addresses that need no second look, what makes a plain
            address of one, and the shadow of what lies there, if it has one.
    """

    def __init__(
        self,
        kernel: str,
        arguments: Mapping[str, Any],
        owners: Owners,
        shadow_of: ShadowOf,
        position: Position,
        report: Report,
    ) -> None:
        self.kernel = kernel
        self.owners = owners
        self.position = position
        self.report = report
        self.regions: dict[int, Region] = {}
        self.limits: dict[int, tuple[int, int, int, Shadow | None]] = {}
        self._shadow_of = shadow_of
        self._arguments = arguments
        self._numbers = {value for value in arguments.values() if type(value) is int}
        self._origins: dict[int, int] = {}
        self._rows: dict[tuple[int, int], int] = {}
        self._adopted: dict[int, int] = {}
        owners.stale()

    def enter(self, argument: str, tensor: Any) -> int:
        """Enter a tensor; returns its tag. Rows of it are held only if the kernel was given the distance between two,
        in elements: else it may well take the tensor as flat."""
        region = region_of(len(self.regions) + 1, argument, tensor)
        if region.pitch // region.item not in self._numbers:
            region = replace(region, pitch=0)
        return self._add(region)

    def placed(self, before: int, after: int, habits: Habits, place: Callable[[], Hashable]) -> int:
        """A pointer was moved by an offset at some ``place`` of the code; returns where it is then. What was moved to
        the start of a row by whole rows belongs to that row from then on."""
        region = self.regions.get(tag_of(before))
        if region is None or not region.pitch or tag_of(after) != region.tag:
            return after
        offset = plain_of(after) - region.view.start
        row, rest = divmod(offset, region.pitch)
        whole = not rest and not (after - before) % region.pitch
        if not habits.moves_by_rows(place(), whole, after != before):
            return after
        if not whole or not 0 <= offset < region.view.end - region.view.start:
            return after
        origin = self._origins.get(region.tag, region.tag)
        tag = self._rows.get((origin, row))
        if tag is None:
            if len(self.regions) >= MAX_TAG:
                return after
            tag = self._add(replace(self.regions[origin], tag=len(self.regions) + 1, row=row))
            self._rows[origin, row], self._origins[tag] = tag, origin
        return after - base_of(region.tag) + base_of(tag)

    def adopt(self, values: Addresses) -> Addresses:
        """Integers become pointers: each that lies in a tensor's memory is tagged as of that tensor."""
        tags = [self._adopt(value) for value in np.ravel(values).tolist()]
        bases: Addresses = np.array([base_of(tag) for tag in tags], dtype=np.uint64).reshape(np.shape(values))
        return values + bases

    def touched(self, tag: int, shadow: Shadow, addresses: Plain, what: str) -> None:
        """Memory that has a shadow is read or written."""
        if what != "store" and (misread := shadow.loaded(addresses)) is not None:
            argument = self.regions[tag].argument
            self.report(argument, misread.kind, self.position(what), "", misread.words, misread.count)
        if what != "load":
            shadow.stored(addresses)

    def source_of(self, address: int) -> str:
        """The argument that held an address as an integer, else the one whose memory is nearest."""
        for name, value in self._arguments.items():
            if type(value) is int and value == address:
                return name
            if getattr(value, "element_size", None) and value.element_size() == 8 and value.numel() <= _MOST_POINTERS:
                signed = address - (1 << 64) if address >> 63 else address
                if not value.is_floating_point() and signed in value.reshape(-1).tolist():
                    return name

        def distance(region: Region) -> int:
            return max(region.storage.start - address, address - region.storage.end, 0)

        near = min(self.regions.values(), key=distance, default=None)
        return UNNAMED if near is None else near.argument

    def victim_at(self, address: int) -> str:
        """Words for whose memory an address is."""
        for region in self.regions.values():
            if region.row is None and region.view.holds(address, address + 1):
                return f"in {region.argument} ({region.about})"
        owner = self.owners.at(address)
        return "in memory of no tensor" if owner is None else f"in {name_of(address, owner)}"

    def _adopt(self, value: int) -> int:
        if value not in self._adopted:
            owner = self.owners.at(value) if value else None
            tensor = None if owner is None else owner.tensor()
            if tensor is None or owner is None or len(self.regions) >= MAX_TAG:
                self._adopted[value] = 0
            else:
                whole = Extent(owner.start, owner.end)
                region = region_of(len(self.regions) + 1, self.source_of(value), tensor)
                self._adopted[value] = self._add(replace(region, view=whole, storage=whole, pitch=0))
        return self._adopted[value]

    def _add(self, region: Region) -> int:
        self.regions[region.tag] = region
        self.limits[region.tag] = (*region.limits(), self._shadow_of(region))
        return region.tag


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
