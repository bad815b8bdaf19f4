"""A run's recording: every step's calls with a hash for each owner of rows, whose the rows are, and the file of it.

A worker writes the file and the parent reads it. It consists of records, each a tag and a length, in shared memory: a
step costs no system call, and outlives its worker. Descriptors of calls (D), sequences of those (T) and batches (R)
repeat, so each is written once and named by number. A step (S) is then three numbers and its hashes, 8 bytes each. What
a step computed in vain (V) is known later.
Nothing here needs torch: a process that only reads recordings does without.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from array import array
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from specdebug.engine.sites import SITES, held_at, rows_per_request
from specdebug.events import BatchKind

if TYPE_CHECKING:
    from torch import Tensor

CallPlace = tuple[int, int]  # a step, and which of its calls
PADDING = -1  # owner of rows that belong to no request
BATCH = -2  # owner of a tensor whose rows cannot be told apart

GROWTH = 1 << 20  # bytes by which the file grows. What is not written yet is zeros.
_END = b"\0"
_HEADER = struct.Struct("<cI")
_STEP = struct.Struct("<III")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The tensor that a call of a site handed over. ``owners``: places in the step's batch, ascending rows, or PADDING
    or BATCH; a call has a hash for each. ``rows``: how many rows each has, empty where that changes from step to
    step."""

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
    """One owner's share of a call. ``call``: its number among the step's calls; ``nth``: among the owner's of its site.
    ``owner``: a request, None for padding or the whole batch. ``place``: number among the call's owners."""

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
    """One step: requests in the order in which they were computed, calls in program order. ``starts``: by request that
    is prefilled, the position of its first row. ``gone``: by request of which nothing more is shown, why."""

    number: int
    rids: tuple[str, ...]
    calls: tuple[Descriptor, ...]
    digests: Sequence[int]
    starts: Mapping[str, int] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)

    def parts(self) -> Iterator[Share]:
        """Every share of every call, in program order."""
        digests = iter(self.digests)
        seen: dict[tuple[str, int], int] = {}
        for index, descriptor in enumerate(self.calls):
            for owner in dict.fromkeys(descriptor.owners):
                seen[descriptor.site, owner] = seen.get((descriptor.site, owner), -1) + 1
            for place, owner in enumerate(descriptor.owners):
                rid, nth = self.rids[owner] if owner >= 0 else None, seen[descriptor.site, owner]
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
        """The number of a descriptor, which is written if it is new."""
        facts = [descriptor.site, descriptor.dtype, descriptor.owners, descriptor.rows]
        return self._number(b"D", descriptor, lambda: json.dumps(facts, separators=(",", ":")).encode())

    def step(self, number: int, batch: Hashable, calls: tuple[int, ...], digests: bytes) -> None:
        """Write a step. ``batch``: the requests, and pairs of those with ``RecordedStep.starts`` and ``gone``.
        ``digests``: uint64, of this machine's byte order."""
        which = self._number(b"R", batch, lambda: json.dumps(batch).encode())
        template = self._number(b"T", calls, lambda: array("I", calls).tobytes())
        self._record(b"S", _STEP.pack(number, template, which) + digests)
        self._write()

    def in_vain(self, number: int, rids: Sequence[str]) -> None:
        """Write that a step counts for nothing of some requests."""
        self._record(b"V", json.dumps([number, list(rids)]).encode())
        self._write()

    def _write(self) -> None:
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
    """The steps written to a file; a last record that was cut off is passed over. What was computed in vain counts as
    padding."""
    data = path.read_bytes()
    descriptors: list[Descriptor] = []
    templates: list[tuple[Descriptor, ...]] = []
    batches: list[Any] = []
    steps: list[RecordedStep] = []
    vain: dict[int, set[str]] = {}
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
            batches.append(json.loads(body))
        elif tag == b"V":
            number, rids = json.loads(body)
            vain.setdefault(number, set()).update(rids)
        else:
            number, template, batch = _STEP.unpack_from(body)
            digests = array("Q", body[_STEP.size :])
            rids, starts, gone = batches[batch]
            steps.append(RecordedStep(number, tuple(rids), templates[template], digests, dict(starts), dict(gone)))
    return [without(step, vain[step.number]) if step.number in vain else step for step in steps]


def without(step: RecordedStep, rids: Collection[str]) -> RecordedStep:
    """The step with rows of some requests counting as padding."""
    gone = {place for place, rid in enumerate(step.rids) if rid in rids}
    calls = (
        replace(call, owners=tuple(PADDING if owner in gone else owner for owner in call.owners)) for call in step.calls
    )
    return replace(step, calls=tuple(calls))


LISTS = frozenset(name for name, each in SITES.items() if each.rows == "positions")
"""Sites whose tensors' length changes with each step."""

Segment = tuple[int, int, int]  # owner, first row and the row behind the last


@dataclass(eq=False)
class Batch:
    """The batch that is computed at the moment: requests by their place in the step's batch. ``lens``: rows that each
    has of a prefill; ``by_row``: a segment each. ``known``: segments found before, by the key of their finder."""

    kind: BatchKind | Literal["none"]
    requests: Sequence[Any]
    places: tuple[int, ...]
    lens: tuple[int, ...] = ()
    branches: int = 1
    nodes: int = 1
    by_row: bool = False
    known: dict[Any, Any] = field(default_factory=dict)

    def segments(
        self, name: str, rows: int, *, grid: bool = False, drafting: bool = False, nth: int = 0
    ) -> list[Segment]:
        """The owners of the rows that a site handed over, in their order. ``grid``: they are slots that the draft loop
        wrote, a row for each branch. ``drafting``: the draft loop runs. ``nth``: the number of calls of the site before
        in this step."""
        count, held = len(self.places), held_at(name)
        whole = [(BATCH, 0, rows)]
        if not count or held.rows == "untold":
            return whole
        if self.kind == "prefill":
            if rows == sum(self.lens):
                cut = self._cut(self.lens)
                return [(p, n, n + 1) for p, first, end in cut for n in range(first, end)] if self.by_row else cut
            return self._cut((1,) * count) if rows == count else whole
        if self.kind == "plain":
            return self._even(1, rows) or whole
        if held.rows == "sampled":
            sampled = [p for p, request in zip(self.places, self.requests, strict=True) if not request.sampling.greedy]
            return [(sampled[nth], 0, rows)] if nth < len(sampled) else whole
        if held.rows == "even":
            return self._cut((rows // count,) * count) if rows and rows % count == 0 else whole
        each = rows_per_request(name, branches=self.branches, nodes=self.nodes)
        if held.rows == "written":
            each = self.branches if grid or drafting else self.nodes
        if each is None or (rows != each * count and not held.padded):
            return whole
        return self._even(each, rows) or whole

    def _even(self, each: int, rows: int) -> list[Segment] | None:
        used = each * len(self.places)
        if rows < used:
            return None
        padding = [(PADDING, used, rows)] if rows > used else []
        return [*self._cut((each,) * len(self.places)), *padding]

    def _cut(self, lens: Sequence[int]) -> list[Segment]:
        return [(place, end - n, end) for place, n, end in zip(self.places, lens, accumulate(lens), strict=True)]


_STEPS = (-7046029254386353131, -4658895280553007687)
"""2**64 over the golden ratio, and another odd number whose bits are as mixed."""


class Layout:
    """Makes the hashes of segments of the sums of their calls. ``calls``: segments and number of sums of each."""

    def __init__(self, calls: Sequence[tuple[Sequence[Segment], int]]) -> None:
        index: list[int] = []
        place: list[int] = []
        starts: list[int] = []
        base = 0
        for segments, count in calls:
            for _, start, stop in segments:
                mine = range(min(start, count), min(stop, count))
                starts.append(len(index))
                index += [base + group for group in mine]
                place += range(len(mine))
            base += count
        self._index = np.array(index, dtype=np.int64)
        self._starts = np.array(starts, dtype=np.int64)
        self._empty = self._starts == np.array([*starts[1:], len(index)], dtype=np.int64)
        keys, weights = keys_and_weights(np.array(place, dtype=np.int64))
        self._keys, self._weights = keys.view(np.uint64), weights.view(np.uint64)

    def hashes(self, sums: np.ndarray) -> np.ndarray:
        """One for each segment, uint64. ``sums``: uint64, those of the calls in their order."""
        if not len(self._starts):
            return np.zeros(0, dtype=np.uint64)
        # One more than there are, so that an empty segment may begin at the end.
        terms = np.zeros(len(self._index) + 1, dtype=np.uint64)
        terms[:-1] = (sums[self._index] ^ self._keys) * self._weights
        found: np.ndarray = np.add.reduceat(terms, self._starts)
        found[self._empty] = 0  # which reduceat takes for the term it begins at
        return found


def keys_and_weights(place: Any) -> tuple[Any, Any]:
    """Key and odd weight of each place, int64, of numpy or of torch."""
    mixed = (place + 1) * _STEPS[0]
    mixed = (mixed ^ (mixed >> 29)) * _STEPS[1]
    return mixed ^ (mixed >> 32), (mixed ^ (mixed >> 27)) | 1


def keep(folder: Path, place: CallPlace, rows: Tensor) -> None:
    """Write a call's rows to a file of their own. Waits for the device."""
    import torch

    rows = rows.detach()
    if rows.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        rows = rows.float()  # numpy has no such types; float32 holds their values
    np.save(folder / f"{place[0]}-{place[1]}.npy", rows.cpu().numpy())


@lru_cache(maxsize=8)
def kept(folder: Path, place: CallPlace) -> np.ndarray | None:
    """The tensor kept of a call, None if the run never came to it. The rows of one are asked for in turn."""
    path = folder / f"{place[0]}-{place[1]}.npy"
    return np.load(path) if path.exists() else None
