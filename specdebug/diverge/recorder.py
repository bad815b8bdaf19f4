"""The worker's side: stand around an engine, listen at the probes' sites, and write down what passes.

The batch that is computed is known because the functions that compute one are wrapped, as the injector's are; the
listener that was there before (the injector's) is asked first, so that what is written down is what the engine goes on
with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdebug import async_probe
from specdebug.diverge import values
from specdebug.diverge.fingerprint import DeviceHashes, HostPlan, picked, rows_of
from specdebug.diverge.owners import LISTS, Batch, Kind, Segment
from specdebug.diverge.stream import BATCH, Descriptor, Writer

RELATIVE = ("accept.accept_index", "commit.compact.rows")
"""Sites whose values are rows of the flat batch, as many for each request as the tree has nodes."""
BATCHES = 64
"""Batches remembered, because the next step mostly has the same."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do with calls that are alike. ``host``: None for tensors on a device."""

    number: int
    segments: Sequence[Segment]
    host: HostPlan | None
    relative: int


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
        self._device: DeviceHashes | None = None
        self._waiting: list[tuple[int, tuple[str, ...], tuple[int, ...], list[int | None]]] = []
        self._nobody = Batch("none", (), ())
        self._batch = self._nobody
        self._batches: dict[tuple[Any, ...], Batch] = {}
        self._before: Callable[[async_probe.SiteCall], None] | None = None
        self._engine: Any = None
        self._branches = self._nodes = 1
        self._step = 0
        self._drafting = False
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
        if self._calls:
            self._end_step()
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _begin_step(self) -> None:
        self._rids: list[str] = []
        self._calls: list[int] = []
        self._hashes: list[int | None] = []
        self._seen = 0
        self._sampled: dict[str, int] = {}

    def _end_step(self) -> None:
        if self._writer is not None:
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
        if self._before is not None:
            self._before(call)
        site, at = call.site, call.at
        if self._writer is None:
            place = self._step, self._seen
            self._seen += 1
            if place in self._keep and self._folder is not None:
                values.keep(self._folder, place, rows_of(call.tensor, at))
            return
        tensor = call.tensor
        on_host = tensor.is_cpu
        if at is not None and on_host:
            tensor = picked(tensor, at)
        elif not on_host or not tensor.is_contiguous() or not tensor.shape:
            tensor = rows_of(tensor, at).contiguous()
        plan = self._plan(site, tensor, at)
        self._calls.append(plan.number)
        if plan.host is not None:
            self._hashes += plan.host.hashes(tensor)
        else:
            self._enqueue(tensor, plan.segments, plan.relative)
        if site == "draft.forward.input_ids":
            self._drafting = True
        elif self._drafting and site != "kv_pool.write.loc":
            self._drafting = False

    def _plan(self, site: str, tensor: torch.Tensor, at: torch.Tensor | None) -> _Plan:
        """What to do with a call, found once for calls that are alike."""
        batch = self._batch
        sampler = 0
        if site.startswith("sampler."):  # a call for each request
            sampler = self._sampled.get(site, 0)
            self._sampled[site] = sampler + 1
        if site in LISTS:  # their lengths change within a batch
            segments = batch.segments(site, tensor.shape[0])
            return self._make_plan(site, tensor, segments, 0)
        key = (site, tensor.shape, tensor.dtype, None if at is None else at.shape, self._drafting, sampler)
        found: _Plan | None = batch.known.get(key)
        if found is None:
            layers = tensor.shape[0] if at is not None and tensor.is_cpu else 0
            rows = tensor.shape[1] if layers else tensor.shape[0]
            grid = at is not None and at.dim() > 1
            per = at.shape[-1] if at is not None and grid else 1
            segments = batch.segments(site, rows // per, grid=grid, drafting=self._drafting, nth=sampler)
            segments = [(owner, start * per, stop * per) for owner, start, stop in segments]
            found = batch.known[key] = self._make_plan(site, tensor, segments, layers)
        return found

    def _make_plan(self, site: str, tensor: torch.Tensor, segments: Sequence[Segment], layers: int) -> _Plan:
        number = self._describe(site, tensor, segments)
        relative = self._nodes if site in RELATIVE and self._by_request else 0
        if not self._by_request:
            segments = [(BATCH, 0, tensor.shape[1] if layers else tensor.shape[0])]
        host = HostPlan(tensor, segments, layers, relative) if tensor.is_cpu else None
        return _Plan(number, segments, host, relative)

    def _describe(self, site: str, tensor: torch.Tensor, segments: Sequence[Segment]) -> int:
        owners = tuple(owner for owner, _, _ in segments)
        key = (site, owners)
        number: int | None = self._batch.known.get(key)
        if number is None or site not in LISTS:
            sizes = () if site in LISTS else tuple(stop - start for _, start, stop in segments)
            assert self._writer is not None
            number = self._writer.descriptor(Descriptor(site, str(tensor.dtype).removeprefix("torch."), owners, sizes))
            self._batch.known[key] = number
        return number

    def _enqueue(self, rows: torch.Tensor, segments: Sequence[Segment], relative: int) -> None:
        if self._device is None:
            self._device = DeviceHashes(rows.device)
        if not self._device.room(len(segments)):
            # What this step has enqueued so far is taken with the steps before it.
            late = iter(self._device.take())
            for _, _, _, hashes in (*self._waiting, (0, (), (), self._hashes)):
                hashes[:] = [next(late) if each is None else each for each in hashes]
            self._flush()
        self._device.put(rows, segments, relative)
        self._hashes += [None] * len(segments)

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
