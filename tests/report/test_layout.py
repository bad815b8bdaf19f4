"""Whatever the width of the terminal, a name is found whole in one line, and no text does more than be read."""

import io
import os
from unittest import mock
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from specdebug.logs.scan import scan
from specdebug.report.formats import junit_xml
from specdebug.report.html.page import page
from specdebug.report.markdown import summary
from specdebug.report.parts import Column, Report, Table
from specdebug.report.terminal import Listing, Prose, broken, drawn
from specdebug.report.words import shown, without_local_paths
from tests.report.gallery import report_of_all
from tests.report.samples import Page

COMMANDS = {
    "replay": {"fixed", "reverted", "nan@draft.hidden", "expected@site"},
    "compare": {"fixed", "reverted", "nan@draft.hidden", "request"},
    "toggles verify": {"scenario", "nan@site", "oob@site", "plan"},
    "faults verify": {"nan@draft.hidden"},
    "scenarios list": {"file", "fixed", "reverted"},
    "faults list": set(),
    "faults show": set(),
    "probes list": {"pack", "site", "kind"},
    "doctor": {"fact", "value", "part"},
    "toggles list": {"scenario", "nan@site", "oob@site", "family"},
    "toggles show": {"scenario", "nan@site", "oob@site", "path"},
    "toggles check": {"place:3", "other_place:4", "written"},
    "toggles missing": {"where", "scenario"},
    "toggles siblings": {"place", "function"},
    "bisect": {"nan@<x>", "journal", "reproduce", "next"},
    "flake": {"nan@<x>", "journal", "reproduce"},
    "minimise": {"nan@site", "nan@other", "kept", "journal", "output"},
    "diverge": {"left", "right", "site", "request", "nan@draft.hidden"},
    "triage": {"nan@logits", "oob@table", "command", "log"},
    "solve": {"log", "signature", "scenario", "site", "question", "command"},
    "twins": {"scenario", "fixed", "request"},
}
"""By command the words whose names have to be found, each whole in one line."""

HOSTILE = "\x1b]0;title\x07\x1b[31m\x9b2J\r\n\x08\u202e[bold]\x00\ud800"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Report]]:
    """By kind of names, then by command, what is shown."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("long", "short", "hostile")}
    return {
        "long": report_of_all(long, folders["long"]),
        "short": report_of_all(lambda word: word.replace(" ", "_"), folders["short"]),
        "hostile": report_of_all(lambda word: word + HOSTILE, folders["hostile"]),
    }


def long(word: str) -> str:
    """A name of forty-odd columns, of which no word is another's."""
    return f"{word.replace(' ', '_').replace(':', '_')}-{'x' * (44 - len(word))}-end"


def printed(report: Report, width: int) -> str:
    stream = io.StringIO()
    with mock.patch.dict(os.environ):
        os.environ.pop("COLUMNS", None)
        console = Console(file=stream, width=width, highlight=False, emoji=False)
        console.print(drawn(report.parts), crop=False, overflow="ignore")
    return stream.getvalue()


def placed(word: str) -> str:
    """The name of a word that may be two joined by ``@``, or be followed by a line number."""
    kind, at, site = word.partition("@")
    if word == "nan@draft.hidden":
        return f"{long(kind)}{at}{long(site)}"
    name, colon, line = word.partition(":")
    return f"{long(name.replace('_', ' '))}{colon}{line}"


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_every_name_is_whole_in_one_line(width: int, everything: dict[str, dict[str, Report]]) -> None:
    assert everything["long"].keys() == COMMANDS.keys()
    for command, words in COMMANDS.items():
        lines = printed(everything["long"][command], width).splitlines()
        for word in words:
            assert any(placed(word) in line for line in lines), (command, width, word, lines)


@pytest.mark.parametrize("command", ["toggles list", "toggles verify", "replay"])
def test_what_a_table_states_is_no_finding_of_triage(command: str, everything: dict[str, dict[str, Report]]) -> None:
    text = printed(everything["short"][command], 160)
    bars = "\n".join(line for line in text.splitlines() if line.startswith("│"))
    assert "nan@" in bars
    assert scan(io.BytesIO(bars.encode())).main is None


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_text_is_shown_as_text(command: str, everything: dict[str, dict[str, Report]]) -> None:
    what = everything["hostile"][command]
    for width in (60, 200):
        text = printed(what, width)
        assert [char for char in text if not char.isprintable() and char != "\n"] == []
        if COMMANDS[command]:
            assert r"\x1b]0;title\x07" in text
            assert "[bold]" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_text_is_no_markup_in_a_file(command: str, everything: dict[str, dict[str, Report]]) -> None:
    report = everything["hostile"][command]
    drawn_page, told = Page(page(report)), summary(report)
    assert drawn_page.seen["script"] == 1
    assert "\x00" not in drawn_page.source
    drawn_page.source.encode("utf-8")  # a lone surrogate would raise
    assert [char for char in told if not char.isprintable() and char != "\n"] == []
    ET.fromstring(junit_xml(report))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain é \U0001f600", "plain é \U0001f600"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202eabc", r"\u202eabc"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
        (7, "7"),
    ],
)
def test_what_could_act_is_written_as_its_escape(text: object, seen: str) -> None:
    assert shown(text) == seen


COLUMNS = (
    Column("arm", "key"),
    Column("signature", "key"),
    Column("what", "prose"),
    Column("n", "right"),
)
ROWS = (("fixed", "", "nothing was found", "4"), ("reverted", "nan@draft.logits", ["one", "other"], "400"))

WORDS = st.lists(st.text("abc@.\u4e2d", min_size=1, max_size=12), max_size=12)


def lines(what: Listing | Prose, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(what, crop=False)
    return stream.getvalue().splitlines()


def test_what_has_no_room_runs_over_the_edge_in_one_piece() -> None:
    assert lines(Listing(Table(COLUMNS, ROWS[1:])), 10)[:2] == ["reverted", "nan@draft.logits"]
    assert lines(Prose(Text("see nan@draft.logits there"), hang=2), 10) == ["see", "  nan@draft.logits", "  there"]


def test_text_is_not_taken_for_markup() -> None:
    assert lines(Listing(Table((Column("[b]x[/b]", "key"),), [("[red]y",)])), 40) == ["[b]x[/b]", "[red]y"]


@given(WORDS, st.integers(1, 40), st.integers(0, 6))
def test_breaking_keeps_every_word_whole_and_in_order(words: list[str], width: int, hang: int) -> None:
    found = broken(Text(" ".join(words)), width, hang)
    assert [word for line in found for word in line.plain.split()] == words
    for index, line in enumerate(found):
        room = width - (hang if index else 0)
        assert cell_len(line.plain) <= room or " " not in line.plain.strip(" ")


@given(st.lists(st.tuples(WORDS, WORDS), max_size=4), st.integers(1, 90))
def test_a_listing_shows_every_word_of_every_row(rows: list[tuple[list[str], list[str]]], width: int) -> None:
    cells = [(" ".join(left), " ".join(right)) for left, right in rows]
    found = lines(Listing(Table((Column("", "key"), Column("", "prose")), cells)), width)
    shown = sorted(word for line in found for word in line.split())
    assert shown == sorted(word for left, right in rows for word in left + right)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/tmp/a/venv/lib/python3.11/site-packages/sglang/srt/x.py:3", "sglang/srt/x.py:3"),
        ('File "/tmp/some/run.py", line 3', 'File ".../run.py", line 3'),
        ("its log is /tmp/some/server.log, which", "its log is .../server.log, which"),
        ("--model-path=/tmp/models/tiny/ --x", "--model-path=.../tiny --x"),
        ("PATH=/tmp/a/bin:/usr/bin", "PATH=.../bin:.../bin"),
    ],
)
def test_a_path_is_shortened(text: str, told: str) -> None:
    assert without_local_paths(text) == told
