"""One launch of a kernel: the tensors that it was given, each under a tag, and pointers that it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from specdebug.kernel_memory.finding import Access
from specdebug.kernel_memory.owners import Owners, name_of
from specdebug.kernel_memory.pointers import MAX_TAG, Addresses, Plain, base_of, plain_of, tag_of
from specdebug.kernel_memory.regions import Extent, Region, region_of
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
        near = min(self.regions.values(), key=lambda each: _distance(each.storage, address), default=None)
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


def _distance(span: Extent, address: int) -> int:
    return max(span.start - address, address - span.end, 0)
