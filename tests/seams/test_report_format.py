"""A report format from outside: found by its entry point, written by ``--report`` of replay and compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdebug.cli.main import run
from tests.seams.installing import Install, installing
from tests.seams.test_target import replay

__all__ = ["installing"]

SOURCE = """
from specdebug.report.formats import ReportFormat


def rows(report):
    assert report.trace()["traceEvents"]
    heads = [column.name for column in report.parts[0].columns]
    lines = [f"{row[0]}\\t{heads[0]}" for row in report.parts[0].rows[:2]]
    return "\\n".join([*lines, report.verdict, report.line]) + "\\n"


TSV = ReportFormat(rows, shows_steps=True)
"""

SCENARIO = """
name: outside
target: reference
workload: [{id: one, prompt: {token_ids: [5, 6]}, max_new_tokens: 3}]
oracles: {lossless: false, draft_kv: false}
arms: {left: {}, right: {}}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "outside.yaml"
    file.write_text(SCENARIO)
    return str(file)


def test_a_format_of_another_distribution_is_written(installing: Install, scenario: str, tmp_path: Path) -> None:
    folder = installing("tabbed", SOURCE, {"reports": {"tsv": "tabbed:TSV"}})
    for command in ("replay", "compare"):
        table, page = tmp_path / f"{command}.tsv", tmp_path / f"{command}.html"
        done = replay(folder, scenario, "--report", f"tsv={table}", "--report", f"html={page}", command=command)
        assert table.exists(), done.stderr
        first, second, *others = table.read_text().splitlines()
        told = [line.split("\t") for line in (first, second)]
        rows = [["left", "arm"], ["right", "arm"]] if command == "replay" else [["verdict", ""], ["signature", ""]]
        assert told == rows, done.stderr
        assert others[0] == "pass"
        assert others[1].startswith(f"specdebug {command} ")
        assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("tsv=x", "no report format 'tsv'; known: html, junit, md, perfetto"),
        ("htm=x", "no report format 'htm'; did you mean 'html'?"),
        ("html", "--report takes FORMAT=FILE, such as html=report.html; got 'html'"),
        ("html=", "--report takes FORMAT=FILE, such as html=report.html; got 'html='"),
        ("html=/nowhere/at/all.html", "/nowhere/at/all.html"),
    ],
)
def test_one_that_cannot_be_written_is_said_before_anything_runs(
    report: str, said: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", scenario, "--report", report]) == 2
    assert said in capsys.readouterr().err


def test_of_several_scenarios_there_is_none(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", scenario, scenario, "--report", "html=x.html"]) == 2
    assert "--report is of one scenario; name a single file" in capsys.readouterr().err


def test_what_is_no_format_is_named(installing: Install, scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    installing("tabbed", "TSV = 3\n", {"reports": {"tsv": "tabbed:TSV"}})
    assert run(["replay", scenario, "--report", "tsv=x.tsv"]) == 2
    assert "plugin 'tsv' of group specdebug.reports must be a ReportFormat, not int" in capsys.readouterr().err


def test_one_that_fails_is_named_and_the_other_files_are_written(
    installing: Install, scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installing(
        "tabbed", SOURCE.replace('assert report.trace()["traceEvents"]', "1 / 0"), {"reports": {"tsv": "tabbed:TSV"}}
    )
    page = tmp_path / "page.html"
    assert run(["replay", scenario, "--report", f"tsv={tmp_path}/x.tsv", "--report", f"html={page}"]) == 2
    said = "the report format 'tsv' of an installed package failed: ZeroDivisionError: division by zero"
    assert said in capsys.readouterr().err
    assert page.read_text().startswith("<!DOCTYPE html>")
