"""Where failures began, as users of ``replay`` and ``compare`` meet it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run
from tests.diverge.samples import SCENARIO

FAULT = "next_token_swapped:step=3"


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "two.yaml"
    file.write_text(SCENARIO + "  faulty: {faults: [{fault: next_token_swapped, step: 3}]}\n")
    return str(file)


def arm(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[dict[str, Any], str]:
    assert run(["replay", *argv, "--arm", "faulty", "--json"]) == 1
    captured = capsys.readouterr()
    (found,) = json.loads(captured.out)["arms"]
    return found, captured.err


def test_a_wrong_token_is_located_unless_that_is_left_out(capsys: pytest.CaptureFixture[str], scenario: str) -> None:
    found, said = arm(capsys, scenario)
    place = found["located"]
    assert (place["site"], place["step"]) == (found["injections"][0]["site"], 3)
    assert found["signature"] == f"{place['from'].partition('@')[0]}@{place['site']}"
    assert place["twin"] == "the same arm with no fault injected"
    assert f"locating {place['from']} of faulty" in said
    without, said = arm(capsys, scenario, "--no-locate")
    assert (without["signature"], without["located"]) == (place["from"], None)
    assert without["trace_hash"] == found["trace_hash"]
    assert "locating" not in said
