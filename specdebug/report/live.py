"""Progress drawn anew several times a second, for a terminal."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import IO, Any, Self, cast

from rich.console import Console, RenderableType
from rich.live import Live

from specdebug.base.redaction import redacted


class _WhileItLasts:
    """A stream whose terminal may go away: nobody reads the progress then, and the results still matter."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._stream.write(redacted(text))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class LiveDisplay(ABC):
    """Draws the state on a stream for as long as it is entered; then the drawing is gone."""

    def __init__(self, stream: IO[str]) -> None:
        self._console = Console(file=cast(IO[str], _WhileItLasts(stream)), highlight=False)

    def __enter__(self) -> Self:
        self._live = Live(console=self._console, transient=True, refresh_per_second=8, get_renderable=self._draw)
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    @abstractmethod
    def _draw(self) -> RenderableType:
        """Return the state of now. Another thread calls this than the one that changes the state."""
