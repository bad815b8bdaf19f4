"""The ring of a GPU, and the launches that fill it.

A probe, or a :func:`~specdebug.async_probe.grouped` block of a few, is one launch (``kernels.py``): it writes nothing
if all is well; else every program that saw something bad appends a row at a ticket that it draws from a counter.

Rows know their launch. One made eagerly has a number of its own (origin > 0). One captured in a graph has a cell on the
device (origin < 0) in which every program counts itself when it starts: the count, divided by the number of programs,
gives the replay. A full table drops the newest rows, and counts them in the totals only.

The table lies in pinned memory of the host: rows of a finished launch can be read when a later one has cost the device
(``salvage``). ``poll`` copies a snapshot of the counters on a stream of its own; a later call hands over its rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from . import kernels
from . import rows as table
from .jobs import ProbeJob, make
from .rows import RawFinding, intact, merge

Entries = tuple[int | None, ...]
"""The counts that a job's two parts go to; None: do not look for that part."""

_cuda: Any = torch.cuda  # torch annotates only some of it


class Reading(NamedTuple):
    """The reads of a launch's programs: each has ``tile_bytes`` under way, of as many ``rows`` if rows are picked."""

    tile_bytes: int
    warps: int
    rows: int = 0

    @property
    def blocks(self) -> int:
        """The number of loads of 16 bytes that each thread has under way."""
        return max(self.tile_bytes // (_LOAD_BYTES * 32 * self.warps), 1)


_HEADER = 4
_LOAD_BYTES = 16
_PROGRAMS_PER_MULTIPROCESSOR = 8
"""About as many as it holds at once: each then reads one tile after another."""
_READINGS = (Reading(1024, 1), Reading(4096, 4), Reading(8192, 8), Reading(16384, 8))
"""Of contiguous tensors: the first for which there are tiles for no more programs than run at once, else the last."""
_PICKING = (Reading(4096, 4, rows=2), Reading(4096, 4, rows=4))
"""The same, of picked rows."""
_STRIDED_TILE = 1024
"""Elements a program reads at once from a tensor with strides."""
_STRIDED_WARPS = 4
_ROWS_PER_FINDING = 64
_MAX_EXTRA_ROWS = 65536


_compiled: dict[tuple[object, ...], Any] = {}


class DeviceRing:
    """The rows and counts of one device. (Under Triton's interpreter that may be a CPU.)"""

    def __init__(self, device: torch.device, capacity: int, step: int, programs: int | None = None) -> None:
        """``programs``: how many a launch may have for one tensor; by default a few times what runs at once."""
        self.capacity = capacity
        self._device = device
        self._on_gpu = device.type == "cuda"
        processors = torch.cuda.get_device_properties(device).multi_processor_count if self._on_gpu else 1
        if programs is None:
            programs = _PROGRAMS_PER_MULTIPROCESSOR * processors
        self._programs = programs
        # However many rows one launch appends (two for each program of each job), they fit.
        rows = max(capacity, min(_ROWS_PER_FINDING * capacity, _MAX_EXTRA_ROWS)) + 2 * table.MAX_JOBS * programs
        self._rows = rows
        # Tensors made in inference mode could not be written outside it.
        with torch.inference_mode(False):
            self._state = torch.zeros(table.SIZE, dtype=torch.int64, device=device)
            # A GPU writes to pinned memory by the same address as the host does.
            self._table = torch.zeros((rows, table.COLUMNS), dtype=torch.int64, pin_memory=self._on_gpu)
            self._state[table.TABLE].fill_(self._table.data_ptr())
            self._step = self._state[table.STEP]
            self._limit = self._state[table.LIMIT]
            self._step.fill_(step)
            self._limit.fill_(rows)
            self._state[table.ROWS].fill_(rows)
            self._state[table.FINE : table.FINE + table.MAX_ENTRIES].fill_(1)
            self._header = self._state[:_HEADER]
            self._snapshot = torch.zeros(_HEADER, dtype=torch.int64, device=device)
            self._host_header = torch.zeros(_HEADER, dtype=torch.int64, pin_memory=self._on_gpu)
        self._taken = 0  # rows before this one have been read
        self._room_until = rows  # what the device knows as its limit
        self._serials = itertools.cycle(range(1, 2**30))
        self._cells = 0
        self._side: Any = None
        self._transfer: Any = None  # the event of a copy of the counters to the host that is under way

    def set_step(self, step: int) -> None:
        """Findings from now on belong to ``step``. Waits for nothing."""
        self._step.fill_(step)

    def fine(self, entry: int) -> torch.Tensor:
        """int64 []: 0 once something bad was found for ``entry``, until then 1."""
        return self._state[table.FINE + entry]

    def look(self, jobs: Sequence[ProbeJob], entries: Sequence[Entries]) -> None:
        """Do the jobs, whose tensors are on this device, in as few launches as possible. Waits for nothing."""
        if self._on_gpu and _cuda.current_device() != self._device.index:
            with _cuda.device(self._device):
                return self.look(jobs, entries)
        for batch in _batches(jobs) if len(jobs) > 1 else [[0]]:
            chosen = [jobs[i] for i in batch]
            tags = [_tags(number, jobs[i], entries[i]) for number, i in enumerate(batch)]
            if chosen[0].layout != table.FLAT:
                self._launch_strided(chosen, tags)
            elif len(chosen) > 1:
                self._launch_several(chosen, tags)
            else:
                self._launch_flat(chosen[0], *tags[0])
        return None

    def compile(self, dtypes: Sequence[torch.dtype]) -> None:
        """Compile what probes of ``dtypes`` and of indices commonly launch, by looking for nothing in zeros."""
        with torch.inference_mode(False):
            for dtype in dtypes:
                for reading in _READINGS:
                    size = self._programs * reading.tile_bytes // dtype.itemsize
                    self._warm(("nan", "inf"), torch.zeros(size, dtype=dtype, device=self._device))
                pool = torch.zeros((2, 1, 16), dtype=dtype, device=self._device)
                for reading in _PICKING:
                    at = torch.zeros(self._programs * reading.rows, dtype=torch.int64, device=self._device)
                    for layers in ([pool[:1]], [pool[:1], pool[1:]]):
                        self._warm(("nan",), *layers, at=at)
            for dtype in (torch.int32, torch.int64):
                ids = torch.zeros(2, dtype=dtype, device=self._device)
                self._warm(("oob",), ids)
                self._warm(("oob",), ids, relative_to=ids)
                self._warm(("page_aligned",), ids)

    def take(self) -> list[RawFinding]:
        """The findings since the last call (at most ``capacity``), in program order. Waits for the stream."""
        if self._transfer is not None:  # it writes to where the next copy goes
            self._transfer.synchronize()
            self._transfer = None
        self._host_header.copy_(self._header, non_blocking=True)
        if self._on_gpu:
            _cuda.current_stream(self._device).synchronize()
        return self._read(int(self._host_header[table.CURSOR]))[: self.capacity]

    def salvage(self) -> list[RawFinding]:
        """The findings since the last call of what a device, lost by now, had finished. Asks the host alone."""
        tickets = torch.arange(self._taken, self._taken + self._rows)
        rows = self._table[tickets % self._rows]
        return merge(rows[rows[:, 0] == tickets + 1].tolist())[: self.capacity]

    def poll(self) -> list[RawFinding]:
        """Findings that have reached the host, after a few calls, never waiting. Launches nothing during a capture."""
        if not self._on_gpu:
            return self.take()
        if _cuda.is_current_stream_capturing():
            return []
        with _cuda.device(self._device):
            if self._transfer is not None and self._transfer.query():
                found = self._read(int(self._host_header[table.CURSOR]))
                self._transfer = None
                if found:  # handed over before the device, which may be lost by now, is asked for anything more
                    return found[: self.capacity]
            if self._transfer is None:
                # begin copying the counters as they are between the last launch and the next one
                self._snapshot.copy_(self._header)
                taken = _cuda.Event()
                taken.record()
                self._side = self._side or _cuda.Stream(self._device)
                self._side.wait_event(taken)
                with _cuda.stream(self._side):
                    self._host_header.copy_(self._snapshot, non_blocking=True)
                    event = _cuda.Event()
                    event.record()
                self._transfer = event
        return []

    def totals(self, entries: int) -> list[int]:
        """Bad elements by entry, those of dropped findings included. Waits for the stream."""
        return [*self._state[table.TOTALS : table.TOTALS + entries].tolist()]

    # Launches

    def _warm(
        self,
        kinds: tuple[str, ...],
        *tensors: torch.Tensor,
        relative_to: torch.Tensor | None = None,
        at: torch.Tensor | None = None,
    ) -> None:
        jobs = [job for tensor in tensors if (job := make(kinds, tensor, 0, 1, relative_to, at)) is not None]
        self.look(jobs, [(None, None)] * len(jobs))

    def _launch_flat(self, job: ProbeJob, tag_0: int, tag_1: int) -> None:
        reading = self._reading(job)
        other = job.tensor if job.other is None else job.other
        self._start(
            kernels.look_flat,
            self._programs_for(job, reading),
            reading.warps,
            (job.tensor, other),
            (job.look, job.other is not None, job.wide, reading.tile_bytes, reading.blocks),
            (job.tensor, other, self._state, job.size, job.every, job.low, job.high, tag_0, tag_1, self._origin()),
        )

    def _launch_strided(self, jobs: Sequence[ProbeJob], tags: Sequence[tuple[int, int]]) -> None:
        """One job, or two that are alike."""
        job, twin = jobs[0], jobs[-1]
        other = job.tensor if job.other is None else job.other
        if job.in_words and twin.in_words:
            rows = job.size // job.sizes[0]
            reading = next((each for each in _PICKING if rows <= self._programs * each.rows), _PICKING[-1])
            tiles, warps = -(-rows // reading.rows), reading.warps
            form = (reading.tile_bytes // reading.rows, reading.rows)
        else:
            tiles, warps, form = -(-job.size // _STRIDED_TILE), _STRIDED_WARPS, (_STRIDED_TILE, 0)
        programs = min(tiles, self._programs)
        numbers = (*job.sizes, *job.strides, job.low, job.high, *tags[0], *tags[-1], programs, self._origin())
        self._start(
            kernels.look_strided,
            programs * len(jobs),
            warps,
            (job.tensor, twin.tensor, other),
            (job.look, job.layout, job.vector, job.wide, len(jobs) > 1, *form),
            (job.tensor, twin.tensor, other, self._state, job.size, *numbers),
        )

    def _launch_several(self, jobs: Sequence[ProbeJob], tags: Sequence[tuple[int, int]]) -> None:
        pointers: list[torch.Tensor] = []
        arguments: list[torch.Tensor | int] = []
        constants: list[int] = []
        end = 0
        readings = [self._reading(job) for job in jobs]
        warps = max(reading.warps for reading in readings)
        for job, reading, (tag_0, tag_1) in zip(jobs, readings, tags, strict=True):
            reading = reading._replace(warps=warps)
            end += self._programs_for(job, reading)
            other = job.tensor if job.other is None else job.other
            pointers += [job.tensor, other]
            arguments += [job.tensor, other, job.size, job.every, job.low, job.high, tag_0, tag_1, end]
            constants += [job.look, job.other is not None, reading.tile_bytes, reading.blocks]
        for _ in range(table.MAX_JOBS - len(jobs)):
            arguments += [self._state, self._state, 0, 1, 0, 0, -1, -1, end]
            constants += [0, False, 0, 0]
        self._start(kernels.look_several, end, warps, pointers, constants, (*arguments, self._state, self._origin()))

    def _start(
        self,
        kernel: Any,
        programs: int,
        warps: int,
        pointers: Sequence[torch.Tensor],
        constants: Sequence[int | str],
        arguments: Sequence[torch.Tensor | int],
    ) -> None:
        """Launch a kernel, whose machine code depends on ``warps``, ``constants`` and ``pointers`` (type, alignment).

        Compiled kernels are kept here, because Triton's own search takes longer than the rest of a probe.
        """
        forms = [(pointer.dtype, pointer.data_ptr() % 16 == 0) for pointer in pointers]
        key = (self._device, id(kernel), warps, *constants, *forms)
        compiled = _compiled.get(key)
        if compiled is not None:
            compiled[programs, 1, 1](*arguments, *constants)
            return
        compiled = kernel[(programs,)](*arguments, *constants, num_warps=warps, num_stages=1)
        if self._on_gpu and torch.version.hip is None:
            _compiled[key] = compiled

    def _reading(self, job: ProbeJob) -> Reading:
        # element by element, more than a few KiB would not fit into a program's registers
        readings = _READINGS if job.look == table.NONFINITE else _READINGS[:2]
        size = job.size * job.tensor.element_size()
        return next((each for each in readings if size <= self._programs * each.tile_bytes), readings[-1])

    def _programs_for(self, job: ProbeJob, reading: Reading) -> int:
        return min(-(-job.size * job.tensor.element_size() // reading.tile_bytes), self._programs)

    def _origin(self) -> int:
        if self._on_gpu and _cuda.is_current_stream_capturing():
            # Captured launches beyond the last cell share it: replays of one step may not be told apart there.
            self._cells = min(self._cells + 1, table.MAX_CELLS - 1)
            return -self._cells
        return next(self._serials)

    # The way to the host

    def _read(self, cursor: int) -> list[RawFinding]:
        """The findings in the rows up to ``cursor``; makes room for as many new ones."""
        if cursor == self._taken:
            return []
        stop = min(cursor, self._room_until)
        places = torch.arange(self._taken, stop) % self._rows
        rows = intact(self._table[places].tolist(), self._taken, more=cursor > stop)
        room_until = cursor + self._rows
        self._limit.fill_(room_until)  # fails if the device is lost: what was not read until then can be salvaged
        self._taken, self._room_until = cursor, room_until
        return merge(rows)


def _batches(jobs: Sequence[ProbeJob]) -> list[list[int]]:
    """The jobs that share a launch: contiguous tensors up to four, rows picked from two tensors."""
    batches: list[list[int]] = []
    for i, job in enumerate(jobs):
        if job.layout == table.FLAT and not job.wide:
            room = [batch for batch in batches if jobs[batch[0]].layout == table.FLAT and len(batch) < table.MAX_JOBS]
            room = [batch for batch in room if not jobs[batch[0]].wide]
        else:
            room = [batch for batch in batches if len(batch) == 1 and job.like(jobs[batch[0]])]
        if room:
            room[0].append(i)
        else:
            batches.append([i])
    return batches


def _tags(number: int, job: ProbeJob, entries: Entries) -> tuple[int, int]:
    """The marks of rows that a job's two parts write; -1: not looked for."""
    tag_0, tag_1 = (
        -1 if part is None or entry is None else entry << table.TAG_ENTRY | number << table.TAG_JOB | part.tag
        for part, entry in zip(job.parts, entries, strict=True)
    )
    return tag_0, tag_1
