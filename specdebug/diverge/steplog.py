"""The calls of a step become the records of a file: the owners of their rows, and their hashes.

Between two calls the model sweeps the caches, so every line there costs several times what it seems to. So work is left
to the end of the step where it can be, and what steps mostly have in common is found once.

On a GPU the engine drafts ahead: those calls belong to the next step, unless that computes another batch.
"""

from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from specdebug.async_probe import SiteCall
from specdebug.diverge.hashes import (
    Captured,
    Described,
    Groups,
    HostHasher,
    Memory,
    Sent,
    Staging,
    StepSums,
    described,
    list_hash,
)
from specdebug.diverge.recording import BATCH, LISTS, PADDING, Batch, Descriptor, Layout, Segment, Writer
from specdebug.engine.sites import SITES

RELATIVE = frozenset(name for name, each in SITES.items() if each.flat)
"""Sites whose values are rows of the flat batch, as many for each request as the tree has nodes."""
LOC = "kv_pool.write.loc"
"""The site that the draft loop's forwards and all others pass, and that does not show which it was."""
LARGE = 4096  # bytes from which a tensor is hashed for each request at once; a smaller one is copied and hashed later
_ALL = 1 << 62  # stands for the row behind the last of a tensor, however long


class _Mark(NamedTuple):
    """A call's tensor: equal marks, equal hashings. ``shape``: rows first; empty for a list."""

    site: str
    shape: Sequence[int]
    dtype: torch.dtype
    at: Sequence[int] | None
    batch: Batch
    drafting: bool  # at LOC, the draft loop writes
    captured: bool = False


class _Enqueued(NamedTuple):
    """Stands for the hashes of a call on a device: the number of sums that they are made of."""

    sums: int


_Late = list[tuple[Sequence[Segment], int]]  # segments and number of sums of a step's calls on a device


class _Hashing(NamedTuple):
    """The hashing that calls of one kind share. ``host``: None if all that is to be hashed has been."""

    number: int
    segments: Sequence[Segment]
    relative: int
    host: HostHasher | None


@dataclass(eq=False)
class _Calls:
    """Calls of one step. ``ahead``: the number drafted ahead; ``dropped``: sums of some that were in vain."""

    sums: StepSums
    staging: Staging = field(default_factory=Staging)
    marks: list[_Mark] = field(default_factory=list)
    contents: list[list[int] | int | _Enqueued] = field(default_factory=list)  # int: the address of what to hash
    ahead: int = 0
    dropped: int = 0


class _Waiting(NamedTuple):
    """A step that is not written yet. Hashes that ``late`` and ``sent`` will give are None, or ``hashes`` is empty."""

    step: int
    batch: Hashable
    calls: tuple[int, ...]
    hashes: list[int | None]
    late: _Late
    sent: Sent | None


class StepLog:
    """The calls of one step after another, with a hash for each request's share of a tensor. ``summed``: hash on the
    host, too, as on a device. ``drafting``: the draft loop runs; the listener says so."""

    def __init__(self, writer: Writer, *, summed: bool = False) -> None:
        self.drafting = False
        self.nodes = 1
        self._summed = summed
        self._writer = writer
        self._memory = Memory()
        self._now, self._next = _Calls(StepSums(self._memory)), _Calls(StepSums(self._memory))
        self._into = self._now
        self._usual: tuple[list[_Mark], list[_Hashing]] = ([], [])
        self._waiting: list[_Waiting] = []
        self._layout: tuple[_Late, Layout] = ([], Layout([]))
        self._sampled: dict[str, int] = {}

    def add(self, call: SiteCall, batch: Batch) -> None:
        """Note a call that is made while that batch is computed."""
        tensor, at = call.tensor, call.at
        if self._summed or not tensor.is_cpu:
            self._enqueue(call, batch)
            return
        mark = self._mark(described(call), batch)
        if at is not None:
            tensor = call.rows()
        elif not tensor.is_contiguous() or not tensor.shape:
            tensor = tensor.contiguous() if tensor.shape else tensor.reshape(1)
        content: list[int] | int
        if not mark.shape:
            content = [list_hash(tensor)]
        elif tensor.nbytes < LARGE or call.site.startswith("sampler."):
            content = self._into.staging.copy(tensor)
        else:  # at once: by the end of the step it is not in the caches any more
            marks, hashings = self._usual
            place = len(self._into.marks)
            usual = place < len(marks) and marks[place] == mark
            host = (hashings[place] if usual else self._hashing(mark)).host
            assert host is not None
            content = host.hashes(tensor.data_ptr())
        self._into.marks.append(mark)
        self._into.contents.append(content)

    def add_replay(self, captured: Captured, batch: Batch) -> None:
        """Note all calls of a graph, which is replayed."""
        self._into.sums.copy(captured)
        if captured not in batch.known:
            marks = [self._mark(call.described, batch, captured=True) for call in captured.calls]
            contents = [_Enqueued(call.groups.number) for call in captured.calls if call.groups is not None]
            batch.known[captured] = marks, contents
        marks, contents = batch.known[captured]
        self._into.marks += marks
        self._into.contents += contents

    def begin_ahead(self) -> None:
        self._into = self._next

    def end_ahead(self) -> None:
        self._into = self._now

    def drop_ahead(self) -> None:
        now = self._now
        now.dropped += sum(each.sums for each in now.contents[: now.ahead] if isinstance(each, _Enqueued))
        del now.marks[: now.ahead], now.contents[: now.ahead]
        now.ahead = 0

    def use_ahead(self, batch: Batch) -> None:
        """Give calls that were made ahead, if any, to that batch."""
        marks, ahead = self._now.marks, self._now.ahead
        if ahead and marks[0].batch is not batch:
            marks[:ahead] = [mark._replace(batch=batch) for mark in marks[:ahead]]

    def end_step(self, step: int, batch: Hashable) -> None:
        """Write the step, which is over, as soon as its hashes are known. ``batch``: as of ``Writer.step``."""
        now = self._now
        if now.marks != self._usual[0]:  # else it is as the one before
            self._usual = now.marks, [self._hashing(mark) for mark in now.marks]
        hashes: list[int | None] = []
        late: _Late = [((), now.dropped)] if now.dropped else []
        for hashing, content in zip(self._usual[1], now.contents, strict=True):
            if isinstance(content, _Enqueued):
                late.append((hashing.segments, content.sums))
                hashes += [None] * len(hashing.segments)
            else:
                hashes += content if isinstance(content, list) else hashing.host.hashes(content) if hashing.host else []
        if now.sums.blocks and hashes.count(None) == len(hashes):
            hashes = []
        calls = tuple(hashing.number for hashing in self._usual[1])
        self._waiting.append(_Waiting(step, batch, calls, hashes, late, now.sums.send()))
        self._write(wait=False)
        now.staging.clear()  # memory that is used again costs less
        self._now, self._next = self._next, _Calls(StepSums(self._memory), now.staging)
        self._into = self._now
        self._now.ahead = len(self._now.marks)
        self._sampled.clear()

    @property
    def pending(self) -> bool:
        """True if a step has begun."""
        return len(self._now.marks) > self._now.ahead

    def close(self) -> None:
        """Write what waits for a device, and end the file."""
        self._write(wait=True)
        self._writer.close()

    def _write(self, *, wait: bool) -> None:
        """Write the steps whose hashes are known by now."""
        while self._waiting and (wait or self._waiting[0].sent is None or self._waiting[0].sent.arrived):
            first = self._waiting.pop(0)
            self._writer.step(first.step, first.batch, first.calls, self._arrived(first))

    def _arrived(self, waiting: _Waiting) -> bytes:
        """The hashes of a step, all of them, as the file has them."""
        late: Iterator[int] = iter(())
        if waiting.sent is not None:
            if self._layout[0] != waiting.late:
                self._layout = waiting.late, Layout(waiting.late)
            found = self._layout[1].hashes(waiting.sent.read())
            self._memory.free(waiting.sent)
            if not waiting.hashes:
                return found.tobytes()
            late = iter(found.tolist())
        return array("Q", [next(late) if each is None else each for each in waiting.hashes]).tobytes()

    def _enqueue(self, call: SiteCall, batch: Batch) -> None:
        """Note a call with a tensor on a device."""
        mark = self._mark(described(call), batch)
        groups = groups_of(call)
        if call.site in RELATIVE:  # its values are taken from the first row of each request
            tensor = call.tensor.clone()
            hashing = self._hashing(mark)
            for number, (_, start, stop) in enumerate(hashing.segments):
                rows = tensor[start:stop]
                rows -= (rows >= 0) * (number * hashing.relative)
            call = replace(call, tensor=tensor)
        self._into.sums.add(call, groups)
        self._into.marks.append(mark)
        self._into.contents.append(_Enqueued(groups.number))

    def _mark(self, described: Described, batch: Batch, *, captured: bool = False) -> _Mark:
        return _Mark(*described, batch, self.drafting and described[0] == LOC, captured)

    def _hashing(self, mark: _Mark) -> _Hashing:
        """The hashing of a call, found once for calls that are alike. In the order of the calls."""
        site, batch = mark.site, mark.batch
        sampler = 0
        if site.startswith("sampler."):  # a call for each request
            sampler = self._sampled[site] = self._sampled.get(site, -1) + 1
        key = (site, tuple(mark.shape), mark.dtype, mark.at, mark.captured, mark.drafting, sampler)
        if key not in batch.known:
            batch.known[key] = self._make_hashing(mark, sampler)
        found: _Hashing = batch.known[key]
        return found

    def _make_hashing(self, mark: _Mark, sampler: int) -> _Hashing:
        site, shape, dtype, at, batch, drafting, captured = mark
        if not shape:
            owners: tuple[int, ...] = batch.places if len(batch.places) == 1 else (BATCH,)
            return _Hashing(self._describe(site, dtype, owners, tuple(shape[:1])), ((BATCH, 0, _ALL),), 0, None)
        rows = shape[0]
        grid = at is not None and len(at) > 1
        per = at[-1] if at is not None and grid else 1
        segments = batch.segments(site, rows // per, grid=grid, drafting=drafting, nth=sampler)
        segments = [(owner, start * per, stop * per) for owner, start, stop in segments]
        if captured or self._summed:
            # On a GPU the padding rows of a graph write to one slot in any order, so that two runs differ there; those
            # of another engine hold what its memory held before.
            segments = [segment for segment in segments if segment[0] != PADDING]
            rows = segments[-1][2]
        owners = tuple(owner for owner, _, _ in segments)
        number = self._describe(site, dtype, owners, tuple(stop - start for _, start, stop in segments))
        layers = shape[1] if at is not None else 0
        relative = self.nodes if site in RELATIVE else 0
        return _Hashing(number, segments, relative, HostHasher(shape, dtype, segments, layers, relative))

    def _describe(self, site: str, dtype: torch.dtype, owners: tuple[int, ...], rows: tuple[int, ...]) -> int:
        return self._writer.descriptor(Descriptor(site, str(dtype).removeprefix("torch."), owners, rows))


def groups_of(call: SiteCall) -> Groups:
    """The groups of a call that are added up on its device: its rows, but of a list."""
    return Groups.of(call, apart=call.site not in LISTS)
