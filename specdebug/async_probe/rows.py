"""The memory of a device's ring, as its kernels and the host both see it, and the findings that its rows add up to.

The ring is one int64 tensor:

=========  ==========  =========================================================================
words      name        content
=========  ==========  =========================================================================
0          CURSOR      rows asked for so far; only grows
1          LIMIT       rows from this one on are dropped, until the host has read some
2          STEP        the step of findings, from ``set_step``
3          ROWS        rows there is room for; row i lies at i modulo this
4          TABLE       address of the rows, each of ``COLUMNS`` words, in memory that a lost device leaves
from 16    TOTALS      bad elements by entry
           FINE        by entry, 1 until something bad was seen: an assertion looks at it
           CELLS       by captured launch, programs started so far; cell 0 belongs to none
=========  ==========  =========================================================================

Every program that saw something bad wrote rows of its own, in an order that is a matter of luck. Rows belong together
when their origin and launch are the same; a launch is as old as its oldest row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from .checks import INT64_MAX, Bound

MAX_ENTRIES = 4096
"""Distinct (site, kind, bound) a ring can count."""
MAX_CELLS = 16384
"""Captured launches whose replays are told apart even within a step."""

CURSOR, LIMIT, STEP, ROWS, TABLE = range(5)
TOTALS = 16
FINE = TOTALS + MAX_ENTRIES
CELLS = FINE + MAX_ENTRIES
SIZE = CELLS + MAX_CELLS

COLUMNS = 9
"""Ticket + 1, origin, launch, step, tag, first bad index, its value, number of bad elements, limit."""

# A tag is entry << 8 | job << 6 | part << 5 | format of the limit << 3 | format of the value.
TAG_ENTRY, TAG_JOB, TAG_PART, TAG_LIMIT = 8, 6, 5, 3
MAX_JOBS = 4
"""Tensors one launch can look at."""

NONFINITE, BOUNDS, MULTIPLE = 1, 2, 3
"""The defects that a kernel looks for."""
FLAT, STRIDED, PICKED = range(3)
"""The places of elements: contiguous; in up to four dimensions with strides; in rows of dimension 1."""

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
        _, _, _, step, _, index, word, _, bits = min(shares, key=lambda row: row[5])
        dtype, form = VALUE_TYPES[tag & ((1 << TAG_LIMIT) - 1)], tag >> TAG_LIMIT & 3
        printable = torch.float32 if dtype.itemsize == 1 else dtype
        value = torch.tensor(word, dtype=_BITS[dtype.itemsize]).view(dtype).to(printable).item()
        limit = {NO_LIMIT: 0.0, ABOVE_INT: min(bits + 1, INT64_MAX), INT: bits, FLOAT: float_of(bits)}[form]
        yield RawFinding(tag >> TAG_ENTRY, step, index, value, sum(row[7] for row in shares), limit)
