"""The second run: keep the tensors in full at places that the first has named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from specdebug.async_probe import SiteCall
from specdebug.diverge import values
from specdebug.diverge.fingerprint import rows_of
from specdebug.diverge.listener import Captured, RunListener
from specdebug.events import AheadBegan, AheadDropped, AheadEnded, Event, StepBegan, StepOver


class Keeper(RunListener):
    """Writes the tensors of calls to files in ``folder``. ``keep``: (step, call) of each, and its site.

    A call is known by its place in its step, and that only once it is certain that what was drafted ahead of the step
    is used. So with such drafts tensors are copied, and written when the step is over; otherwise at once.
    """

    def __init__(self, keep: Mapping[values.Place, str], folder: Path) -> None:
        super().__init__()
        self._keep = dict(keep)
        self._sites = frozenset(self._keep.values())
        self._steps = frozenset(step for step, _ in self._keep)
        self._folder = folder
        self._now: list[Tensor | None] = []  # a copy for each call of the step, if it may be one to keep
        self._next: list[Tensor | None] = []
        self._into = self._now
        self._drafted = 0

    def finish(self) -> None:
        """Do nothing: everything is written."""

    def _new_capture(self) -> Captured:
        return Captured(copied=self._sites)

    def _at_site(self, call: SiteCall) -> None:
        if self._before is not None:
            self._before(call)
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
        place = self._step, call
        if place in self._keep:
            values.keep(self._folder, place, rows)

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
