"""The first run: write down a hash of everything that passes.

The batch that is computed is known because the functions that compute one are wrapped, as the injector's are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from specdebug.async_probe import SiteCall
from specdebug.diverge.captured import Captured
from specdebug.diverge.listener import Listener
from specdebug.diverge.owners import Batch, Kind
from specdebug.diverge.steplog import StepLog
from specdebug.diverge.stream import Writer

BATCHES = 64
"""Batches remembered, because the next step mostly has the same."""


class Recorder(Listener):
    """Records one engine's run.

    Args:
        writer: takes the hashes.
        by_request: a hash for each request's share of a tensor, else one for the whole of it, which costs less.
    """

    def __init__(self, writer: Writer, *, by_request: bool = False) -> None:
        super().__init__()
        self._log = StepLog(writer, by_request=by_request)
        self._nobody = Batch("none", (), ())
        self._batch = self._nobody
        self._batches: dict[tuple[Any, ...], Batch] = {}
        self._rids: list[str] = []
        self._branches = 1

    def attach(self, engine: Any) -> None:
        """Record what ``engine`` does from now on."""
        spec = engine.config.speculative
        if spec is not None:
            self._branches, self._log.nodes = spec.eagle_topk, spec.tree_size
        self._during(
            engine, "_prefill", lambda chunks: ("prefill", [r for r, _ in chunks], tuple(n for _, n in chunks))
        )
        self._during(engine._target_worker, "decode", lambda requests: ("plain", requests, ()))
        worker = engine._eagle_worker
        if worker is not None:
            self._during(worker, "prefill", lambda batch, *_: ("prefill", batch.requests, batch.extend_lens_cpu))
            self._during(worker, "decode", lambda requests: ("decode", requests, ()))
        super().attach(engine)

    def finish(self) -> None:
        """Write what is not written yet. Waits for the device."""
        if self._log.pending:
            self._end_step()
        self._log.close()

    def _new_capture(self) -> Captured:
        return Captured(self._log.groups)

    def _at_site(self, call: SiteCall) -> None:
        if self._before is not None:
            self._before(call)
        self._log.add(call, self._batch)

    def _replayed(self, captured: Captured) -> None:
        self._log.add_replay(captured, self._batch)

    def _end_step(self) -> None:
        self._log.end_step(self._step, self._rids)
        self._rids = []

    def _ahead(self) -> AbstractContextManager[None]:
        return self._log.ahead()

    def _drop_ahead(self) -> None:
        self._log.drop_ahead()

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
            nodes = self._log.nodes
            batch = self._batches[key] = Batch(kind, list(requests), tuple(places), lens, self._branches, nodes)
        self._batch = batch
        try:
            yield
        finally:
            self._batch = outer
            if kind == "decode":
                self._log.use_ahead(batch)
