"""Nights in a folder: what is kept of a document, what the last night is held against, and how it ends."""

import json
from pathlib import Path

import pytest

from specdebug.apps.history import NightLine, Nights, Thing, lines_of
from specdebug.base.errors import ContentError
from specdebug.cli.main import run

NIGHTS = [f"2026-11-{day}" for day in range(10, 17)]


def replay(
    accept: float = 3.0, met: bool = True, verdict: str = "pass", signature: str | None = None
) -> dict[str, object]:
    """A document of ``replay`` with a sound arm, and one whose failure is expected."""
    metrics = {"accept_mean": accept}
    sound = {"arm": "fixed", "met": met, "verdict": verdict, "signature": signature, "metrics": metrics}
    reverted = {
        "arm": "reverted",
        "met": True,
        "verdict": "fail",
        "signature": "nan@x",
        "metrics": {"accept_mean": 1.0},
    }
    return {"scenario": "cache-hit", "exit_code": int(not met), "arms": [sound, reverted]}


def keep(folder: Path, night: str, document: object) -> None:
    file = folder / "told.json"
    file.write_text(json.dumps(document))
    assert run(["history", str(folder / "nights"), "--add", str(file), "--night", night]) in (0, 1, 125)


def told(folder: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    capsys.readouterr()
    code = run(["history", str(folder / "nights"), "--json", *options])
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return code, document


def test_an_expected_failure_is_good_and_a_new_one_is_named_with_its_first_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in NIGHTS[:3]:
        keep(tmp_path, night, replay())
    assert told(tmp_path, capsys=capsys)[0] == 0
    for night in NIGHTS[3:5]:
        keep(tmp_path, night, replay(met=False, verdict="fail", signature="oob@y"))
    code, document = told(tmp_path, capsys=capsys)
    first, second = document["things"]  # type: ignore[misc]
    assert (code, document["nights"]) == (1, NIGHTS[:5])
    assert (first["name"], first["bad"], first["runs"], first["wrong"]) == ("cache-hit::fixed", 2, 5, True)
    assert first["first_nights"] == {"oob@y": NIGHTS[3]}
    assert (second["name"], second["bad"], second["wrong"]) == ("cache-hit::reverted", 0, False)
    assert told(tmp_path, "--since", NIGHTS[4], capsys=capsys)[1]["nights"] == NIGHTS[4:5]
    assert told(tmp_path, "--since", "2999-01-01", capsys=capsys)[0] == 125
    assert run(["history", str(tmp_path / "nights"), "--since", "monday"]) == 2
    assert "--since must be a date such as" in capsys.readouterr().err


def test_of_fixes_that_a_command_verifies_a_rotten_one_is_bad_and_one_that_was_not_tried_unknown() -> None:
    states = ("live", "rotten", "not tried")
    rows = [{"pr": number, "state": state} for number, state in enumerate(states, 501)]
    found = lines_of({"what": "./job", "exit_code": 1, "toggles": rows}, NIGHTS[0], "told.json")
    assert [each.name for each in found] == [f"toggle {number} (./job)" for number in (501, 502, 503)]
    assert [(each.bad, each.unknown, each.signatures) for each in found] == [
        (0, 0, ()),
        (1, 0, ("rotten",)),
        (0, 1, ()),
    ]
    as_it_is = lines_of({"what": "./job", "exit_code": 1, "toggles": []}, NIGHTS[0], "told.json")
    assert [(each.name, each.bad) for each in as_it_is] == [("./job", 1)]


def test_an_accept_length_is_held_against_the_nights_before_once_there_are_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night, accept in zip(NIGHTS, [3.0, 3.1, 2.9, 3.05, 2.95], strict=False):
        keep(tmp_path, night, replay(accept))
    code, document = told(tmp_path, capsys=capsys)
    assert (code, document["things"][0]["band"]) == (0, None)  # type: ignore[index]
    keep(tmp_path, NIGHTS[5], replay(2.0))
    code, document = told(tmp_path, capsys=capsys)
    low, high = document["things"][0]["band"]  # type: ignore[index]
    assert code == 1
    assert 2.5 < low < 2.95 < 3.05 < high < 3.5


def test_the_band_is_never_narrower_than_a_few_hundredths_and_takes_no_bad_night() -> None:
    lines = [NightLine(night, "x", 1, accept=3.0) for night in NIGHTS[:5]]
    assert Thing("x", lines).band(NIGHTS[5]) == pytest.approx((2.94, 3.06))
    assert Thing("x", [*lines[:4], NightLine(NIGHTS[4], "x", 1, 1, accept=1.0)]).band(NIGHTS[5]) is None


def test_runs_of_one_night_are_added_up() -> None:
    lines = [NightLine(NIGHTS[0], "x", 10, 1, 2, ("a",), 3.0), NightLine(NIGHTS[0], "x", 5, 0, 0, (), 2.0)]
    assert Thing("x", lines).by_night == {NIGHTS[0]: NightLine(NIGHTS[0], "x", 15, 1, 2, ("a",), 2.5)}
    assert Thing("x", lines).counts == (1, 13)


@pytest.mark.parametrize(
    ("document", "line"),
    [
        (
            [{"pr": 1, "scenario": "s", "live": False, "untested": False}],
            NightLine("N", "toggle 1 (s)", 1, 1, signatures=("rotten",)),
        ),
        ([{"pr": 1, "scenario": "s", "live": False, "untested": True}], NightLine("N", "toggle 1 (s)", 1, 0, 1)),
        (
            {"claim": None, "what": "./j", "runs": 9, "failures": 2, "untestable": 1, "signatures": []},
            NightLine("N", "./j", 9, 2, 1),
        ),
        ({"what": "./j", "exit_code": 125, "verdict": "undecided"}, NightLine("N", "./j", 1, 0, 1)),
        ({"rows": [], "exit_code": 0}, NightLine("N", "faults verify", 1)),
    ],
)
def test_what_other_commands_wrote(document: object, line: NightLine) -> None:
    assert lines_of(document, "N", "f") == [line]


@pytest.mark.parametrize("document", [[], {}, {"arms": [{}]}, 3, "x", [1]])
def test_any_other_document_is_refused(document: object) -> None:
    with pytest.raises(ContentError, match="is no document of"):
        lines_of(document, "N", "f")


def test_a_damaged_line_is_named_by_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path, NIGHTS[0], replay())
    path = tmp_path / "nights" / f"{NIGHTS[0]}.jsonl"
    path.write_text(path.read_text() + '{"night": "yesterday", "name": "x", "runs": 1}\n')
    capsys.readouterr()
    assert run(["history", str(tmp_path / "nights")]) == 2
    assert f"{path}:3" in capsys.readouterr().err


def test_a_page_has_a_plot_for_each_thing(tmp_path: Path) -> None:
    for night in NIGHTS:
        keep(tmp_path, night, replay())
    keep(tmp_path, NIGHTS[-1], replay(met=False, verdict="fail", signature="oob@y"))
    page = tmp_path / "page.html"
    assert run(["history", str(tmp_path / "nights"), "--html", str(page)]) == 1
    drawn = page.read_text()
    assert drawn.count("<svg") >= 2
    style = drawn.partition("</style>")[0]
    assert all(f".trial.{each}" in style and f'class="trial {each}"' in drawn for each in ("pass", "fail"))


def test_an_empty_folder_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "nights").mkdir()
    assert Nights(tmp_path / "nights").exit_code == run(["history", str(tmp_path / "nights")]) == 125
    assert run(["history", str(tmp_path / "none")]) == 2
