"""Result files are written whole or not at all; errors go to stderr or nowhere."""

import errno
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.bundle import archive
from specdebug.campaign.loops.replay import ArmRun
from specdebug.cli import output
from specdebug.cli.main import run
from specdebug.cli.options import JsonOptions
from specdebug.cli.output import OutputError, ReportFailed, tell, tell_all, write_file
from specdebug.report import progress
from specdebug.report.parts import Line, Report
from specdebug.report.progress import PlainLines
from tests.cli.command import spawn
from tests.report.samples import MINI, SCENARIO, Page


def test_what_is_no_file_is_written_to() -> None:
    read, write = os.pipe()
    write_file(Path(f"/dev/fd/{write}"), "text")
    os.close(write)
    with open(read, "rb") as reader:
        assert reader.read() == b"text"


def test_what_is_kept_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with output.kept() as told:
        assert run(["triage", str(MINI), "--json-file", str(tmp_path / "r.json")]) == 0
        assert run(["triage", str(tmp_path / "none.log")]) == 2
    out, err = capsys.readouterr()
    assert (out, "error:" in err) == ("", False)
    assert [report.command for report in told.reports] == ["triage"]
    assert told.said[-1].startswith("error: ")
    assert (tmp_path / "r.json").exists()


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*: No such file or directory"):
        write_file(tmp_path / "missing" / "report", "text")


def test_with_stderr_closed_an_error_is_not_printed_on_stdout() -> None:
    command = f"exec {sys.executable} -m specdebug replay no_such_scenario 2>&-"
    ended = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stdout) == (2, b"")


def test_no_secret_is_written_anywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2-a")
    output.write("a hunter2-a")
    output.note("b hunter2-a")
    output.complain("c hunter2-a --api-key hunter2-b")
    output.answer(True, Report("x", "x", "", 0, {"d": "hunter2-a", "n": 1}, ()))
    output.write_file(tmp_path / "f", "e hunter2-a")
    with output.on_stderr(PlainLines) as lines:
        lines.say("f hunter2-a")
    told = capsys.readouterr()
    assert told.out == 'a ***\n{\n  "d": "***",\n  "n": 1\n}\n'
    assert told.err == "b ***\nerror: c *** --api-key ***\nf ***\n"
    assert (tmp_path / "f").read_text() == "e ***"


def test_what_is_silent_says_what_it_does_unless_it_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    for module in (output, progress):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(output._State, "began", 100.0)
    monkeypatch.setattr(output._State, "said_at", 100.0)
    monkeypatch.setattr(output._State, "quiet", False)

    def after(seconds: float) -> str:
        clock.now += seconds
        output.beat()
        return capsys.readouterr().err

    assert after(1.4) == ""
    assert after(0.2) == "working, 2 s so far\n"
    with output.progress() as shown:
        shown.arm_started(ArmRun("fixed", SCENARIO, "fixed", 0))
        assert [after(1.4), after(0.2)] == ["", "fixed: starting, 3 s so far\n"]
        shown.live = True
        assert after(10) == ""
        shown.live = False
    assert after(90) == "working, 103 s so far\n"
    assert [after(9), after(2.5)] == ["", "working, 115 s so far\n"]
    output.set_quiet(True)
    assert after(60) == ""


FAILS = 'case ",$SGLANG_DEBUG_REVERT_PR," in *,27360,*) exit 7;; esac; exit 0'
COMMANDS = [
    ["replay", str(MINI)],
    ["compare", str(MINI)],
    ["bisect", str(MINI)],
    ["flake", str(MINI)],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("where", ["missing/page.html", "."])
def test_a_page_that_cannot_be_written_is_said_before_anything_runs(
    command: list[str], where: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run([*command, "--html", where]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err in ("error: cannot write missing/page.html: no folder missing\n", "error: . is a folder; name a file\n")
    assert list(tmp_path.iterdir()) == []


def test_every_report_is_tried_and_the_gravest_failure_is_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def of_two_shapes() -> str:
        return str(sum([1, [2]]))  # type: ignore[list-item]

    with pytest.raises(
        ReportFailed, match=r"^internal error: .*/p\.html could not be made: TypeError: .*'int' and 'list'"
    ):
        tell(
            Report("x", "x", "the report", 0, {"verdict": "pass"}, [Line("the report")]),
            JsonOptions(as_json=False, json_file=tmp_path / "all.json"),
            (tmp_path / "gone" / "a.xml", lambda: "a"),
            (None, lambda: pytest.fail("it is not wanted")),
            (tmp_path / "p.html", of_two_shapes),
            (tmp_path / "b.html", lambda: "b"),
        )
    assert (tmp_path / "b.html").read_text() == "b"
    assert json.loads((tmp_path / "all.json").read_text()) == {"verdict": "pass"}
    assert not (tmp_path / "p.html").exists()
    out, err = capsys.readouterr()
    assert out == "the report\n"
    assert err == f"error: cannot write {tmp_path}/gone/a.xml: No such file or directory\n"


@pytest.mark.parametrize("trouble", [None, SpecDebugError("the journal is full")])
@pytest.mark.parametrize("broken", [(), ("report",), ("files",), ("report", "files")])
def test_what_cannot_be_printed_is_written_all_the_same_and_what_cut_it_short_is_told(
    broken: tuple[str, ...], trouble: SpecDebugError | None, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def say(what: str) -> None:
        tried.append(what)
        if what in broken:
            raise OutputError(f"cannot write {what}")

    told = None
    try:
        tell_all(trouble, [(what, partial(say, what)) for what in ("report", "files")])
    except SpecDebugError as error:
        told = error
    assert tried == ["report", "files"]
    assert str(told) == (str(trouble) if trouble else f"cannot write {broken[0]}" if broken else "None")
    assert ("error: cannot write files" in capsys.readouterr().err) == (len(broken) == 2 and trouble is None)


@pytest.mark.parametrize(
    ("code", "number"), [(125, errno.ENOSPC), (125, errno.EDQUOT), (2, errno.EACCES), (2, errno.EROFS)]
)
def test_a_full_disk_is_the_machine_s_and_a_wrong_path_the_user_s(
    code: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    for module in (output, archive):
        monkeypatch.setattr(module, "replace_file", fail)
    writes = (
        lambda: output.write_file(tmp_path / "page.html", "text"),
        lambda: archive.write_archive(tmp_path / "a.specdebug", {}, {}, force=True),
    )
    for write in writes:
        with pytest.raises(SpecDebugError, match=os.strerror(number)) as got:
            write()
        assert got.value.exit_code == code


def test_our_own_fault_is_graver_than_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise output.not_written("page", OSError(errno.ENOSPC, "No space left on device"))

    def broken() -> None:
        raise KeyError("a report")

    with pytest.raises(SpecDebugError) as got:
        tell_all(None, [("page", full), ("report", broken)])
    assert got.value.exit_code == 3


@pytest.mark.slow
def test_replay_leaves_page_cases_trace_summary_and_annotations(tmp_path: Path) -> None:
    ended = spawn(
        "replay", str(MINI), "--arm", "fixed", "--arm", "positions", "--html", "page.html", "--junit", "cases.xml",
        "--perfetto", "trace.json", "--json",
        GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(MINI.parent), GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"),
    )  # fmt: skip
    assert ended.returncode == 1
    fixed, positions = json.loads(ended.stdout)["arms"]
    page = Page(Path("page.html").read_text())
    assert "fixed: pass positions: fail" in page.text
    assert positions["signature"] in page.text
    drawn = [(re.findall('aria-label="(.*?) ', plot) or [""])[0] for plot in page.plots]
    assert drawn == ["First", "request", "Mean", *["Accept", "Timeline"] * 2]
    assert f"Timeline of {fixed['metrics']['steps']} steps" in page.source
    trace = json.loads(Path("trace.json").read_text())["traceEvents"]
    slices = [event for event in trace if event["ph"] == "X" and event["pid"] == 1]
    assert len(slices) == fixed["metrics"]["steps"]
    assert len(ET.parse("cases.xml").getroot().findall("testsuite/testcase")) == 2
    assert "| positions | ❌ fail |" in Path("summary.md").read_text()
    line = MINI.read_text().splitlines().index("  positions: {revert: [25015]}") + 1
    assert f"::error file=mini.yaml,line={line},title=specdebug%3A mini%2C arm positions" in ended.stderr
    assert ended.stderr.count("::error") == 1


def test_after_a_signal_a_fault_of_ours_ends_with_the_signals_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(*_: object) -> None:
        raise TypeError("two shapes")

    monkeypatch.setattr("typer.main.get_command", faulty)
    assert run(["doctor"]) == 3
    monkeypatch.setattr(interrupts, "was_heard", lambda: True)
    assert run(["doctor"]) == 130
    assert capsys.readouterr().err.count("internal error: TypeError: two shapes") == 2


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("b.specdebug", "replay {}"),
        ("s.yaml", "replay {}"),
        ("s.yaml", "scenarios validate {}"),
        ("log", "triage {}"),
        ("j", "bisect --journal {} -- true"),
        ("j", "flake --journal {} -- true"),
        ("s.yaml", "compare {}"),
        ("s.yaml", "diverge {}"),
        ("s.yaml", "minimise {} -o out.yaml"),
    ],
)
def test_a_command_refuses_it(name: str, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(name)
    status = run(command.format(name).split())
    said = capfd.readouterr().err
    assert status == 2, said
    assert "is not a regular file" in said or "is a pipe" in said, said
    assert "Traceback" not in said
    assert said.count("\n") == 1


def test_validate_lists_what_is_wrong_with_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = MINI.read_text()
    (tmp_path / "bad.yaml").write_text(text.replace("model: tiny", "modle: tiny"))
    line = text.splitlines().index("  model: tiny") + 1
    assert run(["scenarios", "validate", str(MINI), "bad.yaml", "gone.yaml", "--json"]) == 2
    out, err = capsys.readouterr()
    good, bad, gone = json.loads(out)
    assert err == ""
    assert good == {"file": str(MINI), "ok": True, "arms": ["fixed", "plain", "positions", "unreached"], "problems": []}
    assert [(each["file"], each["ok"], each["arms"]) for each in (bad, gone)] == [
        ("bad.yaml", False, []),
        ("gone.yaml", False, []),
    ]
    (wrong,) = bad["problems"]
    assert set(wrong) == {"file", "line", "column", "message"}
    assert (wrong["file"], wrong["line"]) == ("bad.yaml", line)
    assert "did you mean 'model'" in wrong["message"]
    assert "no such file" in gone["problems"][0]["message"]
    assert run(["scenarios", "validate", str(MINI), "--json"]) == 0
