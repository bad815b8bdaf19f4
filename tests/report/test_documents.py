"""What ``--json`` writes of every ending: strict JSON, its exit code, and what scripts read of a divergence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdebug.report.evaluation import answers_jsonl
from specdebug.report.parts import Report
from tests.report.endings import endings, evaluated


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
