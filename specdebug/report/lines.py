"""Progress as plain lines, for a stream that is no terminal."""

from __future__ import annotations

from types import TracebackType
from typing import IO, Self

from specdebug.report.foreign import shown


class PlainLines:
    """Says lines on a stream. A context manager, as displays that are drawn anew are."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put back."""

    def _say(self, text: str) -> None:
        """Print one line, whatever is in ``text``."""
        try:
            print(shown(text), file=self._stream, flush=True)
        except OSError:  # nobody reads the progress; the results still matter
            return
