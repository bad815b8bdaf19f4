"""An observer that keeps what it is told."""

from collections.abc import Callable
from typing import Any

from specdebug.events import Event


class Heard:
    """Keeps the events of these classes, in order; ``then`` is called with each, while it happens."""

    def __init__(self, *hears: type[Event], then: Callable[[Any], None] = lambda event: None) -> None:
        self.hears = hears
        self.events: list[Any] = []
        self._then = then

    def on(self, event: Event) -> None:
        self.events.append(event)
        self._then(event)
