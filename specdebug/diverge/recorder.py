"""Two observers of an engine's run, in its worker: one writes a hash of all that passes the probes' sites, the other
keeps in full what the first has named. Calls in a graph are noted when it is captured: every replay makes the same."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from specdebug import async_probe
from specdebug.async_probe import Capture, SiteCall
from specdebug.diverge.hashes import Captured, rows_of
from specdebug.diverge.recording import Batch, CallPlace, Writer, keep
from specdebug.diverge.steplog import StepLog, groups_of
from specdebug.events import (
    AheadBegan,
    AheadDropped,
    AheadEnded,
    BatchBegan,
    BatchEnded,
    Event,
    InVain,
    ShownNoMore,
    StageEntered,
    StepBegan,
    StepOver,
)

BATCHES = 64  # batches remembered, because the next step mostly has the same


class RunListener(ABC):
    """Listens to one engine's run, after the one that did before (the injector), so to what the engine goes on with.
    Graphs are listened to when they are captured, so call :meth:`listen`, build the engine, then :meth:`attach`."""

    hears: Collection[type[Event]] = (StepBegan, StepOver, AheadBegan, AheadEnded, AheadDropped)

    def __init__(self) -> None:
        self._step = 0
        self._captures: dict[Capture, Captured] = {}
        self._before: Callable[[SiteCall], None] | None = None

    def listen(self) -> None:
        """An engine is about to be built. Without this nothing is heard of what passes in its graphs."""
        async_probe.on_site(self._while_building)

    def attach(self, engine: Any, *, beside_ours: bool = False) -> None:
        """Listen to what ``engine`` does from now on: one of ours, or another as its session shows it, by ``sites``; at
        those of probes, too, but where it is laid ``beside_ours``."""
        engine.observers.add(self)
        if hasattr(engine, "sites"):
            engine.sites.hear = lambda site, tensor: self._at_site(SiteCall(site, "", tensor, 0, 0, None))
            if beside_ours:
                return
        before = async_probe.site_hook()
        if before != self._while_building:
            self._before = before
        async_probe.on_site(self._at_site, self._at_replay)

    @abstractmethod
    def on(self, event: Event) -> None:
        """The engine does this."""

    def finish(self) -> None:  # noqa: B027 (a listener may have written everything by then)
        """Write what is not written yet. Waits for the device."""

    @abstractmethod
    def _new_capture(self) -> Captured:
        """An empty record of a graph, which says what it wants of each call."""

    @abstractmethod
    def _passed(self, call: SiteCall) -> None:
        """A call outside graphs."""

    @abstractmethod
    def _replayed(self, captured: Captured) -> None:
        """A graph's replay is enqueued."""

    def _while_building(self, call: SiteCall) -> None:
        if call.tensor.is_cpu:
            return
        if call.capture is None:  # the warm-up before a capture: compiles what that will launch
            self._new_capture().add(call)
            return
        if call.capture not in self._captures:
            self._captures[call.capture] = self._new_capture()
        self._captures[call.capture].add(call)

    def _at_site(self, call: SiteCall) -> None:
        if self._before is not None:
            self._before(call)
        self._passed(call)

    def _at_replay(self, capture: Capture) -> None:
        if capture in self._captures:
            self._replayed(self._captures[capture])


class HashRecorder(RunListener):
    """Records one engine's run: a hash for each request's share of a tensor."""

    hears = (*RunListener.hears, BatchBegan, BatchEnded, StageEntered, InVain, ShownNoMore)

    def __init__(self, writer: Writer, *, summed: bool = False, by_row: bool = False) -> None:
        """``summed``: as of :class:`StepLog`. ``by_row``: the rows of prompts have a hash each."""
        super().__init__()
        self._log = StepLog(writer, summed=summed)
        self._writer, self._by_row = writer, by_row
        self._batch = Batch("none", (), ())
        self._outer: list[Batch] = []
        self._batches: dict[tuple[Any, ...], Batch] = {}
        self._rids: list[str] = []
        self._starts: dict[str, int] = {}
        self._gone: dict[str, str] = {}
        self._branches = 1

    def attach(self, engine: Any, *, beside_ours: bool = False) -> None:
        spec = engine.config.speculative
        if spec is not None:
            self._branches, self._log.nodes = spec.eagle_topk, spec.tree_size
        super().attach(engine, beside_ours=beside_ours)

    def finish(self) -> None:
        if self._log.pending:
            self._end_step()
        self._log.close()

    def on(self, event: Event) -> None:
        match event:
            case StepBegan(step):
                self._step = step
            case StepOver():
                self._end_step()
            case BatchBegan():
                self._outer.append(self._batch)
                self._batch = self._known(event)
            case BatchEnded(kind):
                ended, self._batch = self._batch, self._outer.pop()
                self._log.drafting = False
                if kind == "speculative":
                    self._log.use_ahead(ended)
            case StageEntered(stage):  # the draft loop writes rows for its branches, all others for the tree's nodes
                self._log.drafting = stage == "draft"
            case InVain(step, rids):
                self._writer.in_vain(step, rids)
            case ShownNoMore(rid, why):
                self._gone[rid] = why
            case AheadBegan():
                self._log.begin_ahead()
            case AheadEnded():
                self._log.end_ahead()
            case AheadDropped():
                self._log.drop_ahead()

    def _end_step(self) -> None:
        batch = tuple(self._rids), tuple(self._starts.items()), tuple(self._gone.items())
        self._log.end_step(self._step, batch)
        self._rids, self._starts, self._gone = [], {}, {}

    def _new_capture(self) -> Captured:
        return Captured(groups_of)

    def _passed(self, call: SiteCall) -> None:
        self._log.add(call, self._batch)

    def _replayed(self, captured: Captured) -> None:
        self._log.add_replay(captured, self._batch)

    def _known(self, batch: BatchBegan) -> Batch:
        """The batch with its requests' places in the step; the same one for the same requests."""
        rids = tuple(request.rid for request in batch.requests)
        self._starts.update(zip(rids, batch.starts, strict=False))  # what a batch lies around has them
        self._rids += [rid for rid in dict.fromkeys(rids) if rid not in self._rids]
        places = tuple(map(self._rids.index, rids))
        key = (batch.kind, rids, places, batch.lens)
        if key not in self._batches:
            if len(self._batches) >= BATCHES:
                self._batches.clear()
            facts = (places, batch.lens, self._branches, self._log.nodes, self._by_row)
            self._batches[key] = Batch(batch.kind, list(batch.requests), *facts)
        return self._batches[key]


class Keeper(RunListener):
    """Writes the tensors of calls to files in ``folder``. ``keep``: (step, call) of each, and its site. A call is known
    by its place in its step, and that only once it is certain that what was drafted ahead of the step is used. So with
    such drafts tensors are copied, and written when the step is over; otherwise at once."""

    def __init__(self, keep: Mapping[CallPlace, str], folder: Path) -> None:
        super().__init__()
        self._keep = dict(keep)
        self._sites = frozenset(self._keep.values())
        self._steps = frozenset(step for step, _ in self._keep)
        self._folder = folder
        self._now: list[Tensor | None] = []  # a copy for each call of the step, if it may be one to keep
        self._next: list[Tensor | None] = []
        self._into = self._now
        self._drafted = 0

    def _new_capture(self) -> Captured:
        return Captured(copied=self._sites)

    def _passed(self, call: SiteCall) -> None:
        self._add(rows_of(call) if self._may_be_kept(call.site) else None)

    def _replayed(self, captured: Captured) -> None:
        for call in captured.calls:
            self._add(call.copy if self._may_be_kept(call.described[0]) else None)

    def _may_be_kept(self, site: str) -> bool:
        step = self._step if self._into is self._now else self._step + 1
        return step in self._steps and site in self._sites

    def _add(self, rows: Tensor | None) -> None:
        if rows is not None and self._into is self._now and not self._drafted:
            self._write(len(self._now), rows)
            rows = None
        self._into.append(None if rows is None else rows.clone())

    def _write(self, call: int, rows: Tensor) -> None:
        if (self._step, call) in self._keep:
            keep(self._folder, (self._step, call), rows)

    def on(self, event: Event) -> None:
        match event:
            case StepBegan(step):
                self._step = step
            case StepOver():
                for call, rows in enumerate(self._now):
                    if rows is not None:
                        self._write(call, rows)
                self._now, self._next = self._next, []
                self._into, self._drafted = self._now, len(self._now)
            case AheadBegan():
                self._into = self._next
            case AheadEnded():
                self._into = self._now
            case AheadDropped():
                del self._now[: self._drafted]
                self._drafted = 0
