"""Merge the rows that the programs of a launch appended to findings.

Every program that saw something bad wrote rows of its own, in an order that is a matter of luck. Rows belong together
when their origin and launch are the same; a launch is as old as its oldest row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from .checks import INT64_MAX, Bound
from .layout import TAG_ENTRY, TAG_LIMIT

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
VALUE_TYPES = (torch.int64, *_FLOATS)
"""The types that the bits of a value can be of; a tag holds the position."""
NO_LIMIT, ABOVE_INT, INT, FLOAT = range(4)
"""The limit of a row: nothing, an integer that is itself still bad, an integer, bits of a float64."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class RawFinding:
    """The finding of one probe in one tensor, of one of its parts."""

    entry: int
    step: int
    index: int
    value: Bound
    count: int
    limit: Bound


def intact(rows: Sequence[Sequence[int]], first: int, *, more: bool) -> list[Sequence[int]]:
    """The rows that were written, without those of launches of which some found no room.

    ``rows``: of the tickets from ``first`` on, in the order of launches. ``more``: tickets after these were dropped.
    """
    written: list[Sequence[int]] = []
    cut = set()
    for ticket, row in enumerate(rows, first):
        if row[0] == ticket + 1:
            written.append(row)
        elif written:  # this one found no room: perhaps it is of the same launch as the last that did
            cut.add(_launch(written[-1]))
    if more and written:
        cut.add(_launch(written[-1]))
    return [row for row in written if _launch(row) not in cut]


def merge(rows: Iterable[Sequence[int]]) -> list[RawFinding]:
    """The findings that rows (each of ``COLUMNS`` words, in any order) add up to, in program order."""
    launches: dict[tuple[int, int], list[Sequence[int]]] = {}
    for row in sorted(rows, key=lambda row: row[0]):
        launches.setdefault(_launch(row), []).append(row)
    return [finding for launch in launches.values() for finding in _findings(launch)]


def float_bits(number: float) -> int:
    """The int64 of the same bits."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def float_of(bits: int) -> float:
    """Inverse of :func:`float_bits`."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _launch(row: Sequence[int]) -> tuple[int, int]:
    return row[1], row[2]


def _findings(launch: list[Sequence[int]]) -> Iterable[RawFinding]:
    # By job, then by part.
    for tag in sorted({row[4] for row in launch}, key=lambda tag: tag & ((1 << TAG_ENTRY) - 1) & -(1 << TAG_LIMIT)):
        shares = [row for row in launch if row[4] == tag]
        first = min(shares, key=lambda row: row[5])
        yield RawFinding(
            entry=tag >> TAG_ENTRY,
            step=first[3],
            index=first[5],
            value=_value(tag & ((1 << TAG_LIMIT) - 1), first[6]),
            count=sum(row[7] for row in shares),
            limit=_limit(tag >> TAG_LIMIT & 3, first[8]),
        )


def _value(form: int, bits: int) -> Bound:
    dtype = VALUE_TYPES[form]
    printable = torch.float32 if dtype.itemsize == 1 else dtype
    value: Bound = torch.tensor(bits, dtype=_BITS[dtype.itemsize]).view(dtype).to(printable).item()
    return value


def _limit(form: int, bits: int) -> Bound:
    if form == FLOAT:
        return float_of(bits)
    if form == ABOVE_INT:
        return min(bits + 1, INT64_MAX)
    return bits if form == INT else 0.0
