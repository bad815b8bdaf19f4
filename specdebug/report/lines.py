"""Progress as plain lines, for a stream that is no terminal."""

from __future__ import annotations

import contextlib
from typing import IO, TYPE_CHECKING, Self

from specdebug.base.redaction import redacted
from specdebug.report.foreign import shown

if TYPE_CHECKING:
    from specdebug.campaign.trials.sampling import Tally
    from specdebug.campaign.trials.search import Standing


class PlainLines:
    """Says lines on a stream. A context manager, as displays that are drawn anew are."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to put back."""

    def _say(self, text: str) -> None:
        """Print one line, whatever is in ``text``."""
        with contextlib.suppress(OSError):  # nobody reads the progress; the results still matter
            print(redacted(shown(text)), file=self._stream, flush=True)


class PlainTrials(PlainLines):
    """Says once how many trials the journal held."""

    def __init__(self, stream: IO[str], journal: str) -> None:
        super().__init__(stream)
        self._journal = journal
        self._resumed = False

    def moved(self, standing: Standing | Tally) -> None:
        """A trial begins, or was in the journal."""
        if standing.resumed and not self._resumed:
            self._resumed = True
            self._say(f"resumed: {standing.resumed} trials are in {self._journal}")
