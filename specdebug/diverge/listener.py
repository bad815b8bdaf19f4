"""The worker's side: observe an engine, and be handed every call of a probe's site.

Calls in a graph are recorded while it is captured, because every replay makes the same ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.async_probe import Capture, SiteCall
from specdebug.diverge.device_hashes import CapturedSums, Groups
from specdebug.diverge.fingerprint import rows_of
from specdebug.diverge.owners import LISTS
from specdebug.events import AheadBegan, AheadDropped, AheadEnded, Event, StepBegan, StepOver

if TYPE_CHECKING:
    from specdebug.engine import Engine


Described = tuple[str, Sequence[int], torch.dtype, Sequence[int] | None]
"""Of a call: the site, the shape with rows first (empty for a list), the dtype, and the shape of ``at``."""


class CapturedCall(NamedTuple):
    """A call in a graph. ``groups``: what the graph adds up of it. ``copy``: what it copies of it, rows first."""

    described: Described
    groups: Groups | None
    copy: Tensor | None


class Captured:
    """The calls in one graph. ``groups`` names those of a call that are added up; ``copied``: sites to copy."""

    def __init__(
        self, groups: Callable[[SiteCall], Groups] | None = None, copied: frozenset[str] = frozenset()
    ) -> None:
        self.sums = CapturedSums()
        self.calls: list[CapturedCall] = []
        self._groups = groups
        self._copied = copied

    def add(self, call: SiteCall) -> None:
        """Make what is wanted of a call a part of the graph that is being captured."""
        groups = None if self._groups is None else self._groups(call)
        if groups is not None:
            self.sums.add(call, groups)
        copy = rows_of(call).clone() if call.site in self._copied else None
        self.calls.append(CapturedCall(described(call), groups, copy))


def described(call: SiteCall) -> Described:
    tensor, at = call.tensor, call.at
    shape: Sequence[int] = tensor.shape or (1,)
    if at is not None:
        shape = (at.numel(), tensor.shape[0], *tensor.shape[2:])
    elif call.site in LISTS:
        shape = ()
    return call.site, shape, tensor.dtype, None if at is None else at.shape


class RunListener(ABC):
    """Listens to one engine's run, after the one that did before (the injector), so to what the engine goes on with.

    Graphs are listened to when they are captured, so call :meth:`listen`, build the engine, then :meth:`attach`.
    """

    hears: Collection[type[Event]] = (StepBegan, StepOver, AheadBegan, AheadEnded, AheadDropped)

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

    @abstractmethod
    def on(self, event: Event) -> None:
        """The engine does this."""

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
        if call.capture not in self._captures:
            self._captures[call.capture] = self._new_capture()
        self._captures[call.capture].add(call)

    def _at_replay(self, capture: Capture) -> None:
        if capture in self._captures:
            self._replayed(self._captures[capture])
