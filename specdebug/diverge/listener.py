"""The worker's side: stand around an engine, know its steps, and be handed every call of a probe's site."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from specdebug import async_probe
from specdebug.async_probe import Capture, SiteCall
from specdebug.diverge.captured import Captured


class Listener(ABC):
    """Listens to one engine. Who listened before (the injector) is asked first: what passes is what the engine goes on
    with.

    What passes in a graph has to be listened to when it is captured, so before there is an engine: call :meth:`listen`,
    build the engine, then :meth:`attach`.
    """

    def __init__(self) -> None:
        self._step = 0
        self._captures: dict[Capture, Captured] = {}
        self._before: Callable[[SiteCall], None] | None = None

    def listen(self) -> None:
        """An engine is about to be built. Without this what passes in its graphs is not heard."""
        async_probe.on_site(self._while_building)

    def attach(self, engine: Any) -> None:
        """Listen to what ``engine`` does from now on."""
        engine_step = engine.step

        def step() -> Any:
            self._step += 1
            try:
                return engine_step()
            finally:
                self._end_step()

        engine.step = step
        if engine._eagle_worker is not None:
            self._watch_drafts_ahead(engine._eagle_worker)
        before = async_probe.site_hook()
        if before != self._while_building:
            self._before = before
        async_probe.on_site(self._at_site, self._at_replay)

    @abstractmethod
    def finish(self) -> None:
        """Write what is not written yet. Waits for the device."""

    @abstractmethod
    def _new_capture(self) -> Captured:
        """What is wanted of a graph."""

    @abstractmethod
    def _at_site(self, call: SiteCall) -> None:
        """A call outside graphs. Ask ``_before`` first."""

    @abstractmethod
    def _replayed(self, captured: Captured) -> None:
        """A graph's replay is enqueued."""

    @abstractmethod
    def _end_step(self) -> None:
        """A step is over, or has failed."""

    @abstractmethod
    def _ahead(self) -> AbstractContextManager[None]:
        """While a GPU drafts ahead: what passes belongs to the next step, and comes first in it."""

    @abstractmethod
    def _drop_ahead(self) -> None:
        """The step computes another batch: what was drafted ahead of it is not used."""

    def _watch_drafts_ahead(self, worker: Any) -> None:
        begin, drop = worker._begin_ahead, worker._drop_ahead

        def begun(*args: Any) -> Any:
            with self._ahead():
                return begin(*args)

        def dropped() -> None:
            if worker._ahead is not None:
                self._drop_ahead()
            drop()

        worker._begin_ahead, worker._drop_ahead = begun, dropped

    def _while_building(self, call: SiteCall) -> None:
        if call.tensor.is_cpu:
            return
        if call.capture is None:  # the warm-up before a capture: compiles what that will launch
            self._new_capture().add(call)
            return
        captured = self._captures.get(call.capture)
        if captured is None:
            captured = self._captures[call.capture] = self._new_capture()
        captured.add(call)

    def _at_replay(self, capture: Capture) -> None:
        captured = self._captures.get(capture)
        if captured is not None:
            self._replayed(captured)
