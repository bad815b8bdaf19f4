"""``specdebug solve`` as a user meets it: which stages run, what is kept of them, and how every ending is told."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.base import interrupts
from specdebug.base.git import git
from specdebug.cli import output
from specdebug.cli.main import run
from specdebug.report.parts import Line, Report

LOGS = Path(__file__).resolve().parents[1] / "logs/quoted"
SIGNATURE = "guard@draft.kv_indices->draft.kv_indptr"
PASSES = {"arms": [{"verdict": "pass", "signature": None, "violations": []}]}
FAILS = {"arms": [{"verdict": "fail", "signature": SIGNATURE, "violations": []}]}
NAMED = {
    "verdict": "culprit",
    "signature": "guard@draft.kv_indices*",
    "probability": 0.99,
    "culprits": [{"id": "27338"}],
}
NONE = {"verdict": "no culprit"}
FIRST = {"first": {"site": "draft.plan.kv_indptr", "step": 2, "request": None, "text": "it is another"}}
TOLD: Mapping[str, Any] = {
    "replay": PASSES,
    "bisect": NAMED,
    "minimise": {"output": "small.yaml"},
    "diverge": FIRST,
    "bundle": {},
}


class Stages:
    """Stands in for the commands: each tells a document, and writes the file behind ``-o``."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = {**TOLD, **told}
        self.ran: list[tuple[str, ...]] = []

    def __call__(self, words: tuple[str, ...]) -> int:
        self.ran.append(words)
        document = self.told[words[0]]
        document = document(words) if callable(document) else document
        if words[0] in ("minimise", "bundle"):
            Path(words[words.index("-o") + 1]).touch()
        said = f"{words[0]} is done"
        code = document.get("code", 0)
        return output.answer(False, Report(words[0], words[0], said, code, document, [Line(said)]))

    @property
    def names(self) -> list[str]:
        return [words[0] for words in self.ran]


@pytest.fixture(autouse=True)
def _log() -> None:
    text = (LOGS / "own-topk_kv_indices.txt").read_text()
    Path("ci.log").write_text(text.replace("fixes reverted: 27338", ""))


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Solves the log by stages that tell what they are said to; returns the document, with the stages that ran."""

    def solve(*argv: str, code: int = 0, **told: Any) -> dict[str, Any]:
        stages = Stages(told)
        with monkeypatch.context() as patch:
            patch.setattr("specdebug.cli.main.run", stages)
            assert run(["solve", "ci.log", "-o", "found", "--json", *argv]) == code
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return {**document, "ran": stages.ran, "names": stages.names}

    return solve


def test_a_log_leads_to_the_fix_the_place_and_a_bundle(solved: Callable[..., dict[str, Any]]) -> None:
    told = solved()
    assert (told["verdict"], told["culprit"]["pr"], told["signature"]) == ("culprit", 27338, SIGNATURE)
    assert told["names"] == ["replay", "bisect", "minimise", "diverge", "bundle"]
    replay, bisect, minimise, diverge, bundle = told["ran"]
    assert replay == ("replay", "topk_kv_indices", "--arm", "fixed", "--no-locate")
    assert bisect[1:] == ("topk_kv_indices", "--arm", "fixed", "--signature", "guard@draft.kv_indices*")
    assert minimise[4:8] == ("--revert", "27338", "--signature", "guard@draft.kv_indices*")
    assert diverge[-2:] == ("--revert", "27338")
    assert bundle[1:] == ("found/small.yaml", "-o", "found/culprit.specdebug", "--force")
    assert told["place"]["site"] == "draft.plan.kv_indptr"
    assert "FlashInferPlanner.declare_draft" in told["place"]["functions"][0]
    assert told["files"] == {
        "small": "found/small.yaml",
        "bundle": "found/culprit.specdebug",
        "page": "found/page.html",
    }
    assert "bisect is done" in Path("found/page.html").read_text()
    assert told["next_step"] == "specdebug toggles show 27338"


def test_what_was_done_is_not_done_again(solved: Callable[..., dict[str, Any]]) -> None:
    first = solved()
    again = solved()
    assert again["ran"] == []
    assert {stage["kept"] for stage in again["stages"]} == {True}
    assert again["culprit"] == first["culprit"]
    Path("found/culprit.specdebug").unlink()
    assert solved()["names"] == ["bundle"]


def wait(words: tuple[str, ...]) -> dict[str, Any]:
    """Be a stage that works until it is told to end."""
    while not interrupts.was_heard():
        pass
    return {"code": interrupts.exit_code()}


def test_a_stage_whose_time_is_over_is_run_again_by_the_next_call(
    solved: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdebug.cli.solve.LEAST_S", 0.0)
    monkeypatch.setattr("specdebug.cli.solve.time", SimpleNamespace(monotonic=lambda: 0.0))
    told = solved("--max-time", "0.05", code=125, bisect=wait)
    assert told["verdict"] == "undecided"
    assert [(stage["name"], stage["cut"]) for stage in told["stages"][:2]] == [("replay", False), ("bisect", True)]
    assert told["open"][0]["what"] == "what bisect would tell: it was not done to its end"
    assert solved()["names"] == ["bisect", "minimise", "diverge", "bundle"]


def test_where_time_did_not_suffice_the_likeliest_is_a_suspect(
    solved: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(words: tuple[str, ...]) -> dict[str, Any]:
        return {**wait(words), "posterior": [{"culprits": ["27338"], "probability": 0.4}]}

    monkeypatch.setattr("specdebug.cli.solve.LEAST_S", 0.0)
    monkeypatch.setattr("specdebug.cli.solve.time", SimpleNamespace(monotonic=lambda: 0.0))
    told = solved("--max-time", "0.05", code=125, bisect=cut)
    assert (told["verdict"], told["culprit"]["pr"], told["culprit"]["probability"]) == ("suspect", 27338, 0.4)
    assert told["culprit"]["doubt"] == "the search over all fixes is not over"


def test_a_suspect_that_the_search_acquits_is_none(solved: Callable[..., dict[str, Any]]) -> None:
    def same(words: tuple[str, ...]) -> dict[str, Any]:
        return FAILS if "--revert" in words else {}

    told = solved(code=125, replay=same, bisect=NONE)
    assert (told["verdict"], told["culprit"]) == ("none", None)
    assert told["names"] == ["replay", "replay", "bisect", "replay", "bisect"]


def test_no_stage_is_begun_for_which_there_is_no_time(solved: Callable[..., dict[str, Any]]) -> None:
    told = solved("--max-time", "1", code=125)
    assert (told["ran"], told["verdict"]) == ([], "undecided")
    assert told["open"][0]["what"] == "what the rest would tell: it was not done to its end"


def test_a_failure_with_nothing_reverted_is_this_builds_own(solved: Callable[..., dict[str, Any]]) -> None:
    told = solved(code=125, replay=FAILS)
    assert (told["verdict"], told["culprit"], told["names"]) == ("as it stands", None, ["replay"])
    assert told["open"][0]["run"] == "specdebug bisect topk_kv_indices --arm fixed --over commits --good REV"


def test_where_no_fix_makes_it_fail_so_that_is_said(solved: Callable[..., dict[str, Any]]) -> None:
    told = solved(code=125, bisect=NONE)
    assert (told["verdict"], told["suspects"]) == ("none", [27338, 27460])
    assert told["names"] == ["replay", "bisect", "replay"]  # the last without the other suspect's fix


def test_a_fix_that_fails_alike_only_is_a_suspect(solved: Callable[..., dict[str, Any]]) -> None:
    def alike(words: tuple[str, ...]) -> dict[str, Any]:
        return (
            {"arms": [{"verdict": "fail", "signature": "guard@else", "violations": []}]} if "--revert" in words else {}
        )

    told = solved(code=125, replay=alike, bisect={**NAMED, "signature": "guard@else"})
    assert (told["verdict"], told["culprit"]["pr"]) == ("suspect", 27338)
    assert "minimise" in told["names"]


def test_fixes_of_a_checkout_are_tried_where_the_log_is_of_a_release(
    solved: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    git(repo, "init", "-q")
    git(repo, *author, "commit", "-q", "--allow-empty", "-m", "one", "--date", "2020-01-01T00:00:00")

    def mine(words: tuple[str, ...]) -> dict[str, Any]:
        folder = Path(words[words.index("-o") + 1]) / "toggles"
        folder.mkdir(parents=True)
        shown = next(path for path in (Path(output.__file__).parents[2] / "toggles").glob("25015.yaml"))
        (folder / "501.yaml").write_text(shown.read_text().replace("pr: 25015", "pr: 501"))
        (folder / "27338.yaml").touch()  # ours is better known
        return {}

    told = solved("--repo", str(repo), "--target", "sglang==0.5.23", toggles=mine)
    assert told["ran"][0][:4] == ("toggles", "mine", "--repo", str(repo))
    assert not Path("found/mined/toggles/27338.yaml").exists()
    assert all(words[-2:] == ("--content", "found/mined") for words in told["ran"][1:])
    assert told["next_step"] == "specdebug toggles show 27338 --content found/mined"
    again = solved("--repo", str(repo), "-o", "other")
    assert "the log is of no release that is here" in again["open"][0]["what"]


def test_a_log_without_a_failure_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ci.log").write_text("all is well\n")
    assert run(["solve", "ci.log"]) == 1
    assert capsys.readouterr().out == "ci.log: no failure found\n"


def test_what_cannot_be_read_or_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "none.log"]) == 2
    assert run(["solve", "ci.log", "-o", "ci.log/x"]) == 2
    assert run(["solve", "ci.log", "--max-time", "0"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors == [
        "error: none.log: cannot be read: No such file or directory",
        "error: ci.log/x: no folder can be made there: Not a directory",
        "error: --max-time must be above 0 seconds, got 0",
    ]
