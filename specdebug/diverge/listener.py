"""The worker's side: observe an engine, and be handed every call of a probe's site."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from specdebug import async_probe
from specdebug.async_probe import Capture, SiteCall
from specdebug.diverge.captured import Captured
from specdebug.engine.observer import EngineObserver

if TYPE_CHECKING:
    from specdebug.engine import Engine


class RunListener(EngineObserver, ABC):
    """Listens to one engine's run. Who listened before (the injector) is asked first, because the engine goes on with
    what that leaves.

    What passes in a graph has to be listened to when it is captured, so before there is an engine: call :meth:`listen`,
    build the engine, then :meth:`attach`.
    """

    def __init__(self) -> None:
        self._step = 0
        self._captures: dict[Capture, Captured] = {}
        self._before: Callable[[SiteCall], None] | None = None

    def listen(self) -> None:
        """An engine is about to be built. Without this nothing is heard of what passes in its graphs."""
        async_probe.on_site(self._while_building)

    def attach(self, engine: Engine) -> None:
        """Listen to what ``engine`` does from now on."""
        engine.observers.add(self)
        before = async_probe.site_hook()
        if before != self._while_building:
            self._before = before
        async_probe.on_site(self._at_site, self._at_replay)

    def on_step_begin(self, step: int) -> None:
        """Remember which step it is."""
        self._step = step

    @abstractmethod
    def finish(self) -> None:
        """Write what is not written yet. Waits for the device."""

    @abstractmethod
    def _new_capture(self) -> Captured:
        """An empty record of a graph, which says what it wants of each call."""

    @abstractmethod
    def _at_site(self, call: SiteCall) -> None:
        """A call outside graphs. Ask ``_before`` first."""

    @abstractmethod
    def _replayed(self, captured: Captured) -> None:
        """A graph's replay is enqueued."""

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
