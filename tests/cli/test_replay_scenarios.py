"""``replay`` of several scenarios, of a selection, and of what failed last; mostly with workers that are played."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from specdebug.cli.main import run
from specdebug.workers.job import WorkerEnd
from tests.diverge.samples import SCENARIO
from tests.report.samples import Page
from tests.run.fakes import FakePool, good_run

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "tests" / "cli" / "mini.yaml"
TEXT = "name: {name}\nworkload:\n  - {{prompt: {{token_ids: [1, 2]}}}}\narms: {{{arms}}}\nexpect: {{{expect}}}\n"


class Played:
    """What became of the pools of a command: which arms fail or have no verdict, and which ran."""

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.undecided: set[str] = set()
        self.interrupt_at: str | None = None
        self.ran: list[str] = []

    def script(self, job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        events, end = good_run(job)
        if job.name in self.fails:
            found = {"kind": "nan", "site": "draft.logits", "step": 1, "detail": "3 values", "count": 3, "data": {}}
            events.insert(-2, {"event": "violation", **found})
        if job.name in self.undecided:
            return [{"event": "impossible", "reason": "there is no CUDA", "unavailable": True}], end
        return events, end

    @contextmanager
    def workers(self, jobs: int) -> Iterator[FakePool]:
        pool = FakePool(self.script, self.interrupt_at)
        yield pool
        self.ran = [job.name for job in pool.jobs]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """A folder ``some`` with the scenarios one (arms x, y) and two (arm x)."""
    (tmp_path / "some").mkdir()
    for name, arms in (("one", "xy"), ("two", "x")):
        listed = {"arms": [f"{arm}: {{}}" for arm in arms], "expect": [f"{arm}: {{verdict: pass}}" for arm in arms]}
        text = TEXT.format(name=name, arms=", ".join(listed["arms"]), expect=", ".join(listed["expect"]))
        (tmp_path / "some" / f"{name}.yaml").write_text(text)
    pools = Played()
    monkeypatch.setattr("specdebug.cli.replay.workers", pools.workers)
    return pools


Told = Callable[..., tuple[int, Any]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Run with ``--json``; the exit code and the document."""

    def run_it(*argv: str) -> tuple[int, Any]:
        code = run(["replay", *argv, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run_it


def test_a_folder_and_files_are_replayed_with_one_document(played: Played, told: Told) -> None:
    for argv in (["some"], ["some/one.yaml", "some/two.yaml"], ["some/one.yaml", "some"]):
        code, document = told(*argv)
        assert (code, document["exit_code"], document["interrupted"], document["missing"]) == (0, 0, False, 0)
        assert [each["scenario"] for each in document["scenarios"]] == ["one", "two"]
        assert [arm["arm"] for each in document["scenarios"] for arm in each["arms"]] == ["x", "y", "x"]
        assert played.ran == ["one::x", "one::y", "two::x"]
    _, alone = told("some/two.yaml")
    assert set(alone) == set(document["scenarios"][1])
    assert (alone["scenario"], played.ran) == ("two", ["x"])


def test_the_summary_tells_each_and_the_story_of_what_went_wrong(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.fails = {"two::x"}
    assert run(["replay", "some"]) == 1
    out, err = capsys.readouterr()
    assert "nan@draft.logits at step 1, 3 in all  3 values" in out
    one, two, closing = (line.removeprefix("│ ") for line in out.splitlines()[-3:])
    assert one.split()[:4] == ["one", "2", "of", "2"]
    assert two.split()[:4] == ["two", "0", "of", "1"]
    assert two.endswith("x: fail nan@draft.logits")
    assert closing.startswith("2 scenarios: 1 as they should, 1 not (")
    assert "one::x: pass" in err


def test_files_of_several(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    played.fails = {"two::x"}
    assert run(["replay", "some", "--junit", "c.xml", "--json-file", "d.json", "--html", "pages"]) == 1
    suites = ET.parse("c.xml").getroot().findall("testsuite")
    assert [(suite.get("name"), suite.get("failures")) for suite in suites] == [("one", "0"), ("two", "1")]
    assert json.loads(Path("d.json").read_text())["exit_code"] == 1
    assert sorted(file.name for file in Path("pages").iterdir()) == ["one.html", "two.html"]
    assert "nan@draft.logits" in Page(Path("pages/two.html").read_text()).text
    assert Path("summary.md").read_text().count("### ") == 2


def test_k_selects_and_the_code_is_still_that_of_expectations(played: Played, told: Told) -> None:
    code, document = told("some", "-k", "y or two")
    assert (code, played.ran) == (0, ["one::y", "two::x"])
    assert all(arm["expected"] for each in document["scenarios"] for arm in each["arms"])
    code, document = told("some/one.yaml", "-k", "not y")
    assert (document["scenario"], played.ran) == ("one", ["x"])


def test_lf_runs_what_failed_and_all_where_nothing_did(
    played: Played, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "some", "--lf"]) == 0
    assert "--lf: no failure is recorded here; running all" in capsys.readouterr().err
    assert not Path(".specdebug").exists()
    played.fails, played.undecided = {"one::y"}, {"two::x"}
    assert told("some")[0] == 1
    assert told("--lf")[0] == 1
    assert played.ran == ["one::y", "two::x"]
    played.fails = set()
    assert told("some", "--last-failed")[0] == 125
    assert played.ran == ["one::y", "two::x"]
    played.undecided = set()
    assert told("--lf")[0] == 0
    assert played.ran == ["x"]  # of one scenario alone
    assert run(["replay", "--lf"]) == 2
    assert "no failure is recorded in this folder; name a FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["some", "gone.yaml"], "gone.yaml: no such file"),
        (["some", "-k", "three"], "-k 'three' selects no arm; there are one::x, one::y, two::x"),
        (["some", "-k", "(x"], "column 1: '(' was never closed"),
        (["some", "--arm", "y"], "two.yaml: no arm 'y'"),
        (["some", "--perfetto", "t.json"], "--perfetto is of one scenario"),
        (["some", "--html", "some/one.yaml"], "is a file; of several scenarios --html names a folder"),
        (["some", "--html", "no/such/pages"], "no folder no/such"),
        (["some", "b.specdebug"], "b.specdebug: a bundle is replayed by itself"),
        (["b.specdebug", "--lf"], "--lf does not go with it"),
        (["b.specdebug", "-k", "x"], "-k does not go with it"),
        ([], "replay needs a FILE"),
        (["--lf"], "no failure is recorded in this folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_user_got_wrong_is_one_line(
    argv: list[str], words: str, played: Played, refused: Callable[..., str]
) -> None:
    assert words in refused("replay", *argv)
    assert played.ran == []


def test_an_arm_that_is_not_for_the_target_is_told_and_does_not_count(
    played: Played, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("some/one.yaml").write_text(Path("some/one.yaml").read_text() + "not_on: {reference: it has no pages}\n")
    code, document = told("some", "--target", "reference", "--junit", "out.xml")
    assert (code, document["exit_code"], played.ran) == (0, 0, ["two::x"])
    assert [(each["scenario"], len(each["arms"]), len(each["not_run"])) for each in document["scenarios"]] == [
        ("one", 0, 2),
        ("two", 1, 0),
    ]
    assert document["scenarios"][0]["not_run"][0] == {"arm": "x", "target": "reference", "why": "it has no pages"}
    skipped = [case.get("message") for case in ET.parse("out.xml").iter("skipped")]
    assert skipped == ["not run on reference: it has no pages"] * 2
    assert run(["replay", "some/one.yaml", "--target", "reference", "--json"]) == 2
    done = capsys.readouterr()
    assert (done.out, "error: some/one.yaml:4" in done.err) == ("", True)
    assert done.err.strip().endswith("not run on reference: it has no pages")


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
