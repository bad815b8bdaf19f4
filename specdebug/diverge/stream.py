"""The file that a worker writes of a run and the parent reads: every step's calls, with a hash for each owner of rows.

A file of records, each a tag and a length, in shared memory: a step costs no system call, and outlives its worker.
Descriptors of calls (D), sequences of those (T) and batches (R) repeat, so each is written once and named by number. A
step (S) is then three numbers and its hashes, 8 bytes each.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PADDING = -1
"""Owner of rows that belong to no request."""
BATCH = -2
"""Owner of a tensor whose rows cannot be told apart."""

GROWTH = 1 << 20
"""Bytes by which the file grows. What is not written yet is zeros."""
_END = b"\0"
_HEADER = struct.Struct("<cI")
_STEP = struct.Struct("<III")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The tensor that a call of a site handed over.

    ``owners``: places in the step's batch, ascending rows, or PADDING or BATCH; a call has a hash for each.
    ``rows``: how many rows each has, empty where that changes from step to step.
    """

    site: str
    dtype: str
    owners: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def is_float(self) -> bool:
        """True if its values can differ by rounding."""
        return "float" in self.dtype


@dataclass(frozen=True, slots=True)
class Share:
    """One owner's share of a call. ``call``: its number among the step's calls; ``nth``: among those of its site.

    ``owner``: a request, None for padding or the whole batch. ``place``: number among the call's owners.
    """

    step: int
    call: int
    nth: int
    descriptor: Descriptor
    owner: str | None
    place: int
    digest: int

    @property
    def rows(self) -> int | None:
        """The number of rows, None where it is not fixed."""
        return self.descriptor.rows[self.place] if self.descriptor.rows else None

    @property
    def first_row(self) -> int:
        """The first of the rows in the tensor, if that is fixed."""
        return sum(self.descriptor.rows[: self.place])


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step: requests in the order in which they were computed, calls in program order. ``before``: of a prefill,
    by request the tokens that it has cached and the engine beside it computed."""

    number: int
    rids: tuple[str, ...]
    calls: tuple[Descriptor, ...]
    digests: Sequence[int]
    before: Mapping[str, int] = field(default_factory=dict)

    def parts(self) -> Iterator[Share]:
        """Every share of every call, in program order."""
        digests = iter(self.digests)
        seen: dict[str, int] = {}
        for index, descriptor in enumerate(self.calls):
            nth = seen[descriptor.site] = seen.get(descriptor.site, -1) + 1
            for place, owner in enumerate(descriptor.owners):
                rid = self.rids[owner] if owner >= 0 else None
                yield Share(self.number, index, nth, descriptor, rid, place, next(digests))


class Writer:
    """Appends to a file that must not exist yet."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._map: mmap.mmap | None = None
        self._used = 0
        self._known: dict[bytes, dict[Hashable, int]] = {b"D": {}, b"T": {}, b"R": {}}
        self._pending = bytearray()

    def descriptor(self, descriptor: Descriptor) -> int:
        facts = [descriptor.site, descriptor.dtype, descriptor.owners, descriptor.rows]
        return self._number(b"D", descriptor, lambda: json.dumps(facts, separators=(",", ":")).encode())

    def step(self, number: int, rids: tuple[str, ...], calls: tuple[int, ...], digests: bytes) -> None:
        """Write a step. ``digests``: uint64, of this machine's byte order."""
        batch = self._number(b"R", rids, lambda: json.dumps(rids).encode())
        template = self._number(b"T", calls, lambda: array("I", calls).tobytes())
        self._record(b"S", _STEP.pack(number, template, batch) + digests)
        data, self._pending = self._pending, bytearray()
        start, end = self._used, self._used + len(data)
        if self._map is None or len(self._map) < end:
            if self._map is not None:
                self._map.close()
            larger = -(-end // GROWTH) * GROWTH
            os.ftruncate(self._fd, larger)
            self._map = mmap.mmap(self._fd, larger)
        self._map[start + 1 : end] = bytes(data[1:])
        self._map[start] = data[0]  # last, so that half a step is none
        self._used = end

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.ftruncate(self._fd, self._used)
        os.close(self._fd)

    def _number(self, tag: bytes, key: Hashable, encoded: Callable[[], bytes]) -> int:
        known = self._known[tag]
        if key not in known:
            known[key] = len(known)
            self._record(tag, encoded())
        return known[key]

    def _record(self, tag: bytes, body: bytes) -> None:
        self._pending += _HEADER.pack(tag, len(body)) + body


def read(path: Path) -> list[RecordedStep]:
    """The steps written to a file; a last record that was cut off is passed over."""
    data = path.read_bytes()
    descriptors: list[Descriptor] = []
    templates: list[tuple[Descriptor, ...]] = []
    batches: list[tuple[str, ...]] = []
    steps: list[RecordedStep] = []
    at = 0
    while at + _HEADER.size <= len(data):
        tag, size = _HEADER.unpack_from(data, at)
        body = data[at + _HEADER.size : at + _HEADER.size + size]
        at += _HEADER.size + size
        if tag == _END or len(body) < size:
            break
        if tag == b"D":
            site, dtype, owners, rows = json.loads(body)
            descriptors.append(Descriptor(site, dtype, tuple(owners), tuple(rows)))
        elif tag == b"T":
            templates.append(tuple(descriptors[number] for number in array("I", body)))
        elif tag == b"R":
            batches.append(tuple(json.loads(body)))
        else:
            number, template, batch = _STEP.unpack_from(body)
            digests = array("Q", body[_STEP.size :])
            steps.append(RecordedStep(number, batches[batch], templates[template], digests))
    return steps
