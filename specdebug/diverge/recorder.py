"""The first run: write down a hash of everything that passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdebug.async_probe import SiteCall
from specdebug.diverge.listener import Captured, RunListener
from specdebug.diverge.owners import Batch
from specdebug.diverge.steplog import StepLog, groups_of
from specdebug.diverge.stream import Writer
from specdebug.events import (
    AheadBegan,
    AheadDropped,
    AheadEnded,
    BatchBegan,
    BatchEnded,
    Event,
    StageEntered,
    StepBegan,
    StepOver,
)

if TYPE_CHECKING:
    from specdebug.engine import Engine

BATCHES = 64
"""Batches remembered, because the next step mostly has the same."""


class HashRecorder(RunListener):
    """Records one engine's run: a hash for each request's share of a tensor."""

    hears = (*RunListener.hears, BatchBegan, BatchEnded, StageEntered)

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self._log = StepLog(writer)
        self._batch = Batch("none", (), ())
        self._outer: list[Batch] = []
        self._batches: dict[tuple[Any, ...], Batch] = {}
        self._rids: list[str] = []
        self._branches = 1

    def attach(self, engine: Engine) -> None:
        spec = engine.config.speculative
        if spec is not None:
            self._branches, self._log.nodes = spec.eagle_topk, spec.tree_size
        super().attach(engine)

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
            case AheadBegan():
                self._log.begin_ahead()
            case AheadEnded():
                self._log.end_ahead()
            case AheadDropped():
                self._log.drop_ahead()

    def _end_step(self) -> None:
        self._log.end_step(self._step, self._rids)
        self._rids = []

    def _new_capture(self) -> Captured:
        return Captured(groups_of)

    def _at_site(self, call: SiteCall) -> None:
        if self._before is not None:
            self._before(call)
        self._log.add(call, self._batch)

    def _replayed(self, captured: Captured) -> None:
        self._log.add_replay(captured, self._batch)

    def _known(self, batch: BatchBegan) -> Batch:
        """The batch with its requests' places in the step; the same one for the same requests."""
        places = []
        for request in batch.requests:
            if request.rid not in self._rids:
                self._rids.append(request.rid)
            places.append(self._rids.index(request.rid))
        key = (batch.kind, tuple(request.rid for request in batch.requests), tuple(places), batch.lens)
        if key not in self._batches:
            if len(self._batches) >= BATCHES:
                self._batches.clear()
            facts = (tuple(places), batch.lens, self._branches, self._log.nodes)
            self._batches[key] = Batch(batch.kind, list(batch.requests), *facts)
        return self._batches[key]
