"""Result files are written whole or not at all; errors go to stderr or nowhere."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specdebug.cli import output
from specdebug.cli.output import OutputError, write_file
from specdebug.report.parts import Report
from specdebug.report.progress import PlainLines


def test_a_file_is_replaced_and_keeps_its_permissions_and_its_links(tmp_path: Path) -> None:
    report, link = tmp_path / "report", tmp_path / "link"
    report.write_text("before")
    report.chmod(0o640)
    link.symlink_to("report")
    write_file(link, "after\ud800")
    assert report.read_bytes() == b"after\\ud800"
    assert report.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "report"]


def test_what_is_no_file_is_written_to() -> None:
    read, write = os.pipe()
    write_file(Path(f"/dev/fd/{write}"), "text")
    os.close(write)
    with open(read, "rb") as reader:
        assert reader.read() == b"text"


@pytest.mark.parametrize("before", [None, "before"])
def test_what_does_not_fit_leaves_what_was_there(before: str | None, tmp_path: Path) -> None:
    if before is not None:
        (tmp_path / "report").write_text(before)

    def small_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    script = (
        "from pathlib import Path; from specdebug.cli.output import OutputError, write_file\n"
        "try: write_file(Path('report'), 'x' * 100_000)\n"
        "except OutputError as error: print(error)"
    )
    command = [sys.executable, "-B", "-c", script]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=small_disk, check=True)
    assert ended.stdout == "cannot write report: File too large\n"
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if before is None else [before])


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
