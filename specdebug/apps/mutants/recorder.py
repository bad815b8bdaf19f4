"""A recorder for engines that may be broken in any way: what confuses it ends the recording, and not the run."""

from collections.abc import Callable
from typing import Any

from specdebug.async_probe import Capture, SiteCall
from specdebug.diverge.recorder import HashRecorder
from specdebug.events import Event


class TolerantRecorder(HashRecorder):
    """Records until something surprises it. ``broken``: that has happened."""

    broken = False

    def on(self, event: Event) -> None:
        self._try(super().on, event)

    def _at_site(self, call: SiteCall) -> None:
        self._try(super()._at_site, call)

    def _at_replay(self, capture: Capture) -> None:
        self._try(super()._at_replay, capture)

    def _try(self, hear: Callable[..., None], *said: Any) -> None:
        if self.broken:
            return
        try:
            hear(*said)
        except Exception:
            self.broken = True
