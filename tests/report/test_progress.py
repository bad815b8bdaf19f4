"""Progress on stderr: drawn anew on a terminal that may go away, lines elsewhere."""

import io

import pytest
from rich.text import Text

from specdebug.campaign.loops.fault_matrix import MatrixStanding
from specdebug.campaign.loops.replay import ArmRun
from specdebug.report import progress as progress_module
from specdebug.report.faults import FaultsProgress, left_text
from specdebug.report.progress import Display, RunProgress
from specdebug.scenario.grammar import Expectation
from specdebug.verdict.ledger import Ledger
from tests.report.samples import BAD, SCENARIO, result
from tests.run.fakes import text_of


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


class Shown(Display):
    def _draw(self) -> Text:
        return Text("how far it is")


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("leaves", [False, True])
def test_it_is_drawn_on_the_terminal_and_one_that_goes_away_takes_nothing_with_it(leaves: bool) -> None:
    terminal = Terminal()
    with Shown(terminal) as shown:
        shown.say("a line")
        terminal.gone = leaves
    terminal.gone = False
    assert "a line" not in terminal.getvalue()
    assert leaves or "how far it is" in terminal.getvalue()


def test_plain_progress_says_when_an_arm_ends_and_survives_a_closed_stream() -> None:
    stream = io.StringIO()
    with RunProgress(stream) as progress:
        run = ArmRun("fixed", SCENARIO, "fixed", 0)
        progress.arm_started(run)
        progress.arm_moved(run, Ledger())
        progress.arm_ended(result("fixed", BAD))
        progress.arm_ended(result("reverted", BAD, Expectation("fail", ("guard@*",))))
    assert stream.getvalue() == (
        "fixed: fail guard@draft.kv_indices->[next], 1.5 s\n"
        "reverted: fail guard@draft.kv_indices->[next], as expected, 1.5 s\n"
    )

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    RunProgress(Gone()).arm_ended(result("fixed", BAD))


def test_plain_progress_shows_what_takes_long_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "time", clock := Clock())
    stream, ledger, run = io.StringIO(), Ledger(), ArmRun("fixed", SCENARIO, "fixed", 0)

    def after(seconds: float, text: str | None = None) -> list[str]:
        clock.now += seconds
        if text is not None:
            ledger.fold({"event": "progress", "text": text})
            progress.arm_moved(run, ledger)
        progress.waiting()
        said = stream.getvalue().splitlines()
        stream.seek(0)
        stream.truncate()
        return said

    progress = RunProgress(stream)
    progress.arm_started(run)
    assert after(1, "compiling a") == []
    assert after(1, "compiling b") == []
    assert after(1.5) == []
    assert after(1) == ["fixed: start, compiling b, 2 s"]
    assert after(1) == []
    assert after(5) == ["fixed: start, compiling b, 8 s"]
    assert after(1, "") == []
    assert after(60) == []


def test_a_live_row_counts_the_seconds_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "time", clock := Clock())
    progress, ledger, run = RunProgress(Terminal()), Ledger(), ArmRun("fixed", SCENARIO, "fixed", 0)
    progress.arm_started(run)
    ledger.fold({"event": "progress", "text": "compiling flashinfer decode"})
    progress.arm_moved(run, ledger)
    clock.now += 7
    assert "start, compiling flashinfer decode, 7 s" in text_of(progress._draw())
    ledger.fold({"event": "stage", "name": "run"})
    progress.arm_moved(run, ledger)
    assert "compiling" not in text_of(progress._draw())
    for number in range(progress_module.MAX_ROWS + 3):
        progress.arm_ended(result(f"arm{number}", BAD))
    drawn = text_of(progress._draw()).splitlines()
    assert len(drawn) == progress_module.MAX_ROWS
    assert drawn[-1].startswith("fixed")


def test_the_matrix_says_few_lines_and_what_is_wrong_at_once() -> None:
    stream = io.StringIO()
    with FaultsProgress(stream) as watcher:
        for made in range(401):
            problems = ("nan_logits, seed 3: nothing saw it",) if made == 7 else ()
            watcher.moved(MatrixStanding(400, made, made // 2, made // 2, int(made >= 7), problems))
    lines = stream.getvalue().splitlines()
    assert lines[:2] == [
        "nan_logits, seed 3: nothing saw it",
        "20 of 400 runs, 10 of 10 effective injections caught, 1 problem",
    ]
    assert len(lines) == 1 + 20
    for made in range(1, 9):
        watcher.moved(MatrixStanding(100, made, made, 0, made, (f"problem {made}",)))
    assert text_of(watcher._draw()).splitlines()[1:] == [f"problem {made}" for made in range(4, 9)]


def test_what_is_left_is_told_once_there_is_a_pace() -> None:
    assert left_text(MatrixStanding(12_000, 100), 30.0) == ""
    assert left_text(MatrixStanding(12_000, 1200), 240.0) == ", some 36 min left"
    assert left_text(MatrixStanding(100, 80), 40.0) == ", some 10 s left"
