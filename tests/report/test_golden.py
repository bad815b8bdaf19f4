"""The wording of every command is that of tests/golden/ and of the documents' transcripts; ``python tools/golden.py
--docs`` writes it anew."""

import json
from pathlib import Path

import pytest

from specdebug.report.evaluation import answers_jsonl
from specdebug.report.parts import Report
from tests.report.endings import endings, evaluated
from tests.report.golden import FOLDER, golden_texts
from tools.golden import CHEAP, documents, refreshed


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return golden_texts()


def test_the_folder_has_a_file_for_each_command_that_is_told(texts: dict[str, str]) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(texts)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.txt")))
def test_what_a_command_says_is_as_it_was_read(name: str, texts: dict[str, str]) -> None:
    assert texts[name] == (FOLDER / name).read_text(encoding="utf-8"), "if it is meant: python tools/golden.py"


@pytest.mark.parametrize("wanted", [CHEAP.fullmatch, pytest.param(bool, marks=pytest.mark.slow)], ids=["cheap", "all"])
@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_a_document_s_transcripts_are_what_is_printed(document: Path, wanted: object) -> None:
    _, changes = refreshed(document.read_text("utf-8"), wanted)  # type: ignore[arg-type]
    assert not changes, "\n".join(changes)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Report]]:
    return endings(Path(tmp_path_factory.mktemp("endings")))


def test_every_document_is_strict_json(reports: dict[str, list[Report]]) -> None:
    told = [report.document for each in reports.values() for report in each if report.document is not None]
    assert len(told) > 40
    for document in told:
        assert json.loads(json.dumps(document, allow_nan=False)) == json.loads(json.dumps(document))


def test_a_divergence_is_told_by_its_place(reports: dict[str, list[Report]]) -> None:
    first, equal, rounding, untold, *_ = [report.document for report in reports["diverge"]]
    assert first["first"] == {
        "what": "value",
        "step": 4,
        "steps": [3, 4],
        "site": "verify.logits",
        "call": 2,
        "request": "a",
        "dtype": "float32",
        "text": "",
    }
    assert [each["exit_code"] for each in (first, equal, rounding, untold)] == [1, 0, 0, 125]
    assert [each["diverged"] for each in (first, equal)] == [True, False]


def test_answers_are_lines_of_strict_json() -> None:
    (line,) = answers_jsonl(evaluated([(-0.5, " A")])).splitlines()
    assert json.loads(line)["log_probabilities"] == [-0.5, None]
