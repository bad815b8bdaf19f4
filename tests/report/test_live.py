"""Progress that is drawn anew, on a terminal that may go away."""

from __future__ import annotations

import io

from rich.text import Text

from specdebug.report.live import LiveDisplay


class Terminal(io.StringIO):
    """A terminal that can be hung up."""

    gone = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(5, "Input/output error")
        return super().write(text)

    def flush(self) -> None:
        if self.gone:
            raise OSError(5, "Input/output error")


class Shown(LiveDisplay):
    def _draw(self) -> Text:
        return Text("how far it is")


def test_it_is_drawn_on_the_terminal() -> None:
    terminal = Terminal()
    with Shown(terminal) as shown:
        shown._live.refresh()
    assert "how far it is" in terminal.getvalue()


def test_a_terminal_that_goes_away_takes_nothing_with_it() -> None:
    terminal = Terminal()
    with Shown(terminal) as shown:
        shown._live.refresh()
        terminal.gone = True
        shown._live.refresh()
    terminal.gone = False
    assert "how far it is" in terminal.getvalue()
