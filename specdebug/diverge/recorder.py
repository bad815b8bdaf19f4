"""The worker's side: stand around an engine, listen at the probes' sites, and write down what passes.

The batch that is computed is known because the functions that compute one are wrapped, as the injector's are; the
listener that was there before (the injector's) is asked first, so that what is written down is what the engine goes on
with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specdebug import async_probe
from specdebug.diverge import values
from specdebug.diverge.align import is_where
from specdebug.diverge.fingerprint import DeviceHashes, HostPlan, Staging, list_hash, rows_of, whole_hash
from specdebug.diverge.owners import LISTS, Batch, Kind, Segment
from specdebug.diverge.stream import BATCH, Descriptor, Writer

RELATIVE = ("accept.accept_index", "commit.compact.rows")
"""Sites whose values are rows of the flat batch, as many for each request as the tree has nodes."""
BATCHES = 64
"""Batches remembered, because the next step mostly has the same."""
LARGE = 4096
"""Bytes from which a tensor is hashed for each request at once; a smaller one is copied and hashed later."""
UNHASHED = [0]
"""Stands for the hash of what is not compared: where things are, in runs that are compared by request."""
_ALL = 1 << 62
"""Stands for the row behind the last of a tensor, however long."""


class _Mark(NamedTuple):
    """What was handed over in a call: equal marks, equal plans. ``shape``: rows first; empty for a list."""

    site: str
    shape: Sequence[int]
    dtype: torch.dtype
    at: Sequence[int] | None
    batch: Batch


class _Plan(NamedTuple):
    """What to do with calls that are alike. ``host``: None if all that is to be hashed has been."""

    number: int
    segments: Sequence[Segment]
    relative: int
    host: HostPlan | None


class Recorder:
    """Records one engine's run.

    Args:
        writer: takes the hashes; None: nothing is hashed.
        by_request: a hash for each request's share of a tensor, else one for the whole of it, which costs less.
        keep: (step, call) of the tensors to be kept in full.
        folder: where those go.
    """

    def __init__(
        self,
        writer: Writer | None,
        keep: Sequence[values.Place] = (),
        folder: Path | None = None,
        *,
        by_request: bool = False,
    ) -> None:
        self._by_request = by_request
        self._writer = writer
        self._keep = frozenset(keep)
        self._folder = folder
        self._staging = Staging()
        self._device: DeviceHashes | None = None
        self._waiting: list[tuple[int, tuple[str, ...], tuple[int, ...], list[int | None]]] = []
        self._nobody = Batch("none", (), ())
        self._batch = self._nobody
        self._batches: dict[tuple[Any, ...], Batch] = {}
        self._before: Callable[[async_probe.SiteCall], None] | None = None
        self._engine: Any = None
        self._branches = self._nodes = 1
        self._step = 0
        self._usual: tuple[list[_Mark], list[_Plan]] = ([], [])
        self._begin_step()

    def attach(self, engine: Any) -> None:
        """Record what ``engine`` does from now on."""
        self._engine = engine
        spec = engine.config.speculative
        if spec is not None:
            self._branches, self._nodes = spec.eagle_topk, spec.tree_size
        self._wrap_step()
        self._during(
            engine, "_prefill", lambda chunks: ("prefill", [r for r, _ in chunks], tuple(n for _, n in chunks))
        )
        self._during(engine._target_worker, "decode", lambda requests: ("plain", requests, ()))
        worker = engine._eagle_worker
        if worker is not None:
            self._during(worker, "prefill", lambda batch, *_: ("prefill", batch.requests, batch.extend_lens_cpu))
            self._during(worker, "decode", lambda requests: ("decode", requests, ()))
        self._before = async_probe.site_hook()
        async_probe.on_site(self._at_site)

    def finish(self) -> None:
        """Write what is not written yet. Waits for the device."""
        if self._calls or self._marks:
            self._end_step()
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _begin_step(self) -> None:
        self._rids: list[str] = []
        self._calls: list[int] = []
        self._hashes: list[int | None] = []
        self._marks: list[_Mark] = []
        self._contents: list[list[int] | int] = []  # hashes, or the address of what they are to be of
        self._seen = 0
        self._sampled: dict[str, int] = {}
        self._drafting = False

    def _end_step(self) -> None:
        if self._writer is not None:
            self._settle()
            self._waiting.append((self._step, tuple(self._rids), tuple(self._calls), self._hashes))
            if self._device is None or not self._device.used:
                self._flush()
        self._begin_step()

    def _flush(self) -> None:
        """Write the steps that wait for a device's hashes."""
        late = iter(()) if self._device is None else iter(self._device.take())
        waiting, self._waiting = self._waiting, []
        for step, rids, calls, hashes in waiting:
            assert self._writer is not None
            self._writer.step(step, rids, calls, [next(late) if each is None else each for each in hashes])

    def _at_site(self, call: async_probe.SiteCall) -> None:
        # Between two calls the model sweeps the caches, so that every line here costs several times what it seems to.
        # What the moment does not ask for is left to the end of the step.
        if self._before is not None:
            self._before(call)
        if self._writer is None:
            place = self._step, self._seen
            self._seen += 1
            if place in self._keep and self._folder is not None:
                values.keep(self._folder, place, rows_of(call))
            return
        tensor, at = call.tensor, call.at
        if not tensor.is_cpu:
            self._enqueue(call)
            return
        site = call.site
        compared = not (self._by_request and is_where(site))
        if at is not None:
            tensor = call.rows()
        elif compared and (not tensor.is_contiguous() or not tensor.shape):
            tensor = tensor.contiguous() if tensor.shape else tensor.reshape(1)
        shape: Sequence[int] = tensor.shape
        if at is not None:
            shape = (shape[1], shape[0], *shape[2:])
        elif site in LISTS:
            shape = ()
        mark = _Mark(site, shape, tensor.dtype, None if at is None else at.shape, self._batch)
        content: list[int] | int
        if not compared:
            content = UNHASHED
        elif not self._by_request:
            content = [whole_hash(tensor) if shape else list_hash(tensor)]
        elif tensor.nbytes < LARGE or site.startswith("sampler."):
            content = self._staging.copy(tensor)
        else:
            content = self._large(tensor, mark)
        self._marks.append(mark)
        self._contents.append(content)

    def _large(self, tensor: torch.Tensor, mark: _Mark) -> list[int]:
        """Hash at once what is not in the caches any more by the end of the step."""
        marks, plans = self._usual
        at = len(self._marks)
        host = (plans[at] if at < len(marks) and marks[at] == mark else self._plan(mark)).host
        assert host is not None
        return host.hashes(tensor.data_ptr())

    def _settle(self) -> None:
        """Describe and hash what is left of the calls on the host."""
        if not self._marks:
            return
        if self._calls or self._marks != self._usual[0]:
            plans = [self._plan(mark) for mark in self._marks]
            if not self._calls:
                self._usual = self._marks, plans
        else:  # most steps are as the one before
            plans = self._usual[1]
        for plan, content in zip(plans, self._contents, strict=True):
            self._calls.append(plan.number)
            if isinstance(content, list):
                self._hashes += content
            elif plan.host is not None:
                self._hashes += plan.host.hashes(content)
        self._marks, self._contents = [], []
        self._staging.clear()

    def _plan(self, mark: _Mark) -> _Plan:
        """What to do with a call, found once for calls that are alike. In the order of the calls."""
        site, batch = mark.site, mark.batch
        sampler = 0
        if site.startswith("sampler."):  # a call for each request
            sampler = self._sampled.get(site, 0)
            self._sampled[site] = sampler + 1
        key = (site, tuple(mark.shape), mark.dtype, mark.at, self._drafting and site == "kv_pool.write.loc", sampler)
        found: _Plan | None = batch.known.get(key)
        if found is None:
            found = batch.known[key] = self._make_plan(mark, sampler)
        if site == "draft.forward.input_ids":
            self._drafting = True
        elif self._drafting and site != "kv_pool.write.loc":
            self._drafting = False
        return found

    def _make_plan(self, mark: _Mark, sampler: int) -> _Plan:
        site, shape, dtype, at, batch = mark
        if not shape or (self._by_request and is_where(site)):
            owners: tuple[int, ...] = batch.places if len(batch.places) == 1 else (BATCH,)
            return _Plan(self._describe(site, dtype, owners, tuple(shape[:1])), ((BATCH, 0, _ALL),), 0, None)
        rows = shape[0]
        grid = at is not None and len(at) > 1
        per = at[-1] if at is not None and grid else 1
        segments = batch.segments(site, rows // per, grid=grid, drafting=self._drafting, nth=sampler)
        segments = [(owner, start * per, stop * per) for owner, start, stop in segments]
        owners = tuple(owner for owner, _, _ in segments)
        number = self._describe(site, dtype, owners, tuple(stop - start for _, start, stop in segments))
        if not self._by_request:
            return _Plan(number, [(BATCH, 0, rows)], 0, None)
        layers = shape[1] if at is not None else 0
        relative = self._nodes if site in RELATIVE else 0
        return _Plan(number, segments, relative, HostPlan(shape, dtype, segments, layers, relative))

    def _describe(self, site: str, dtype: torch.dtype, owners: tuple[int, ...], rows: tuple[int, ...]) -> int:
        assert self._writer is not None
        return self._writer.descriptor(Descriptor(site, str(dtype).removeprefix("torch."), owners, rows))

    def _enqueue(self, call: async_probe.SiteCall) -> None:
        """A call with a tensor on a device."""
        self._settle()
        rows, site, at = rows_of(call).contiguous(), call.site, call.at
        shape = () if site in LISTS else rows.shape
        plan = self._plan(_Mark(site, shape, rows.dtype, None if at is None else at.shape, self._batch))
        self._calls.append(plan.number)
        if self._by_request and is_where(site):
            self._hashes += UNHASHED
            return
        if self._device is None:
            self._device = DeviceHashes(rows.device)
        if not self._device.room(len(plan.segments)):
            # What this step has enqueued so far is taken with the steps before it.
            late = iter(self._device.take())
            for _, _, _, hashes in (*self._waiting, (0, (), (), self._hashes)):
                hashes[:] = [next(late) if each is None else each for each in hashes]
            self._flush()
        self._device.put(rows, plan.segments, plan.relative)
        self._hashes += [None] * len(plan.segments)

    def _wrap_step(self) -> None:
        engine_step = self._engine.step

        def step() -> Any:
            self._step += 1
            try:
                return engine_step()
            finally:
                self._end_step()

        self._engine.step = step

    def _during(
        self, owner: Any, name: str, batch_of: Callable[..., tuple[Kind, Sequence[Any], tuple[int, ...]]]
    ) -> None:
        function = getattr(owner, name)

        def watched(*args: Any) -> Any:
            with self._computing(*batch_of(*args)):
                return function(*args)

        setattr(owner, name, watched)

    @contextmanager
    def _computing(self, kind: Kind, requests: Sequence[Any], lens: tuple[int, ...]) -> Iterator[None]:
        outer = self._batch
        places = []
        for request in requests:
            if request.rid not in self._rids:
                self._rids.append(request.rid)
            places.append(self._rids.index(request.rid))
        key = (kind, tuple(request.rid for request in requests), tuple(places), lens)
        batch = self._batches.get(key)
        if batch is None:
            if len(self._batches) >= BATCHES:
                self._batches.clear()
            batch = self._batches[key] = Batch(kind, list(requests), tuple(places), lens, self._branches, self._nodes)
        self._batch = batch
        try:
            yield
        finally:
            self._batch = outer
