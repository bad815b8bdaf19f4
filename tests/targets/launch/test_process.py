"""A server's process: until it is ready, what it is said to have died of, and that nothing of it is left."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdebug.targets.inside.words import SAID
from specdebug.targets.launch import process
from specdebug.targets.launch.command import SCRATCH, StartCommand
from specdebug.targets.launch.log import LogRoom, ServerLog
from specdebug.targets.launch.process import NeverReady, ServerProcess, StartFailed, answers
from specdebug.targets.serving import NoServer
from tests.targets.http.redirecting import redirecting
from tests.targets.launch.starting import command, lives

PATIENCE_S = 60.0


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    servers: list[ServerProcess] = []
    yield servers
    for server in servers:
        server.end()


def start(started: list[ServerProcess], folder: Path, *more: str) -> ServerProcess:
    server = ServerProcess(command(*more), "label", str(folder / "logs"))
    started.append(server)
    return server


def test_it_is_ready_once_it_answers_and_its_log_is_kept(started: list[ServerProcess], tmp_path: Path) -> None:
    server = start(started, tmp_path, "--say", "loading weights")
    said: list[str] = []
    server.wait_ready("/health", PATIENCE_S, said.append, ())
    assert answers(server.url + "/health")
    assert said[-1] == ""
    assert "loading weights" in Path(server.log.path).read_text()
    assert Path(server.log.path).parent == tmp_path / "logs"


def test_a_redirect_is_no_answer_and_gets_no_key() -> None:
    with redirecting() as (url, asked, elsewhere):
        assert not answers(url + "/health", (("Authorization", "Bearer secret"),))
    assert (asked, elsewhere) == (["Bearer secret"], [])


@pytest.mark.parametrize("more", [("--end", "2"), ()], ids=["dies", "serves"])
@pytest.mark.parametrize("apart", [(), ("--apart",)], ids=["in its group", "in a session of its own"])
def test_what_it_has_started_is_ended_with_it(
    started: list[ServerProcess], tmp_path: Path, more: tuple[str, ...], apart: tuple[str, ...]
) -> None:
    child = tmp_path / "child"
    server = start(started, tmp_path, "--child", str(child), *apart, *more)
    if more:
        with pytest.raises(NoServer):
            server.wait_ready("/health", PATIENCE_S, lambda text: None, ())
    else:
        server.wait_ready("/health", PATIENCE_S, lambda text: None, ())
    assert lives(int(child.read_text()))
    server.end()
    server.end()
    assert not lives(server.pid)
    assert not lives(int(child.read_text()))


def test_one_that_does_not_go_is_killed_with_its_children_when_its_time_is_up(
    started: list[ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "END_S", 0.1)
    child = tmp_path / "child"
    server = start(started, tmp_path, "--stubborn", "--child", str(child))
    server.wait_ready("/health", PATIENCE_S, lambda text: None, ())
    server.end()
    assert server._process.returncode == -signal.SIGKILL
    assert not lives(server.pid)
    assert not lives(int(child.read_text()))


def test_another_port_is_tried_where_somebody_has_taken_it(started: list[ServerProcess], tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("2")
    server = start(started, tmp_path, "--taken", str(taken))
    first = server.url
    server.wait_ready("/health", PATIENCE_S, lambda text: None, ())
    assert answers(server.url + "/health")
    assert server.url != first


def test_no_more_than_so_many_ports_are_tried(started: list[ServerProcess], tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("99")
    server = start(started, tmp_path, "--taken", str(taken))
    with pytest.raises(NoServer, match=r"Address already in use; its log is .* \(3 ports were tried") as caught:
        server.wait_ready("/health", PATIENCE_S, lambda text: None, ())
    assert (taken.read_text(), caught.value.exit_code) == ("96", 2)


def test_a_log_does_not_fill_the_disk(started: list[ServerProcess], tmp_path: Path) -> None:
    server = ServerProcess(
        command("--fill", "20000", "--say", "the beginning"),
        "x",
        str(tmp_path),
        LogRoom(most=9000, head=2000, tail=3000),
    )
    started.append(server)
    server.wait_ready("/health", PATIENCE_S, lambda text: None, ())
    server.end()
    text = Path(server.log.path).read_text()
    assert len(text) < 9000
    assert "the beginning" in text
    assert "specdebug left out" in text
    assert f"line {20000 // 100 - 1} " in text


def test_one_that_is_never_ready(started: list[ServerProcess], tmp_path: Path) -> None:
    server = start(started, tmp_path, "--sick", "--say", "the last words")
    with pytest.raises(NeverReady, match=r"did not answer /health within 0\.5 s: .*; its log is .*label") as caught:
        server.wait_ready("/health", 0.5, lambda text: None, ())
    assert caught.value.exit_code == 125  # this machine may be slow: nothing is said of the server


def test_one_that_dies_of_damage_that_its_log_names_has_failed(started: list[ServerProcess], tmp_path: Path) -> None:
    server = start(started, tmp_path, "--say", "x: fail guard@draft.kv_indices->draft.kv_indptr", "--end", "1")
    with pytest.raises(StartFailed) as caught:
        server.wait_ready("/health", PATIENCE_S, lambda text: None, ())
    assert caught.value.signature == "guard@draft.kv_indices->draft.kv_indptr"


def test_one_that_dies_without_a_stand_in_that_it_needs_comes_to_no_verdict(
    started: list[ServerProcess], tmp_path: Path
) -> None:
    lost = {"what": "a kernel in torch", "why": "NoSeat: gone", "place": "", "stand_in": True}
    said = f"{SAID}{json.dumps({'pid': 1, 'lost': lost})}\nx: fail guard@a->b"
    server = start(started, tmp_path, "--say", said, "--end", "1")
    with pytest.raises(NeverReady, match="cannot stand in for a kernel in torch in this release: NoSeat: gone"):
        server.wait_ready("/health", PATIENCE_S, lambda text: None, ())


def test_its_status_tells_what_killed_it(started: list[ServerProcess], tmp_path: Path) -> None:
    server = start(started, tmp_path)
    server.wait_ready("/health", PATIENCE_S, lambda text: None, ())
    server._process.send_signal(signal.SIGKILL)
    assert server.status() == -signal.SIGKILL
    assert not server.alive()


def test_what_it_said_before_it_was_ready_is_none_of_the_run_s(started: list[ServerProcess], tmp_path: Path) -> None:
    server = start(started, tmp_path, "--say", "ConnectionRefusedError: no server yet, and tried again")
    server.wait_ready("/health", PATIENCE_S, lambda text: None, ())
    assert server.log.scan_run().main is None
    with Path(server.log.path).open("a") as log:
        log.write("ValueError: in the run\n")
    main = server.log.scan_run().main
    assert main is not None
    assert main.text == "ValueError: in the run"


def test_a_folder_that_no_log_can_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoServer, match=r"target\.log: no log can be written to .*file"):
        ServerProcess(command(), "x", str(tmp_path / "file"))


def test_a_log_tells_of_each_failure_once_and_of_exceptions_never(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = ServerLog(path)
    assert (log.findings(), log.last_line()) == ((), "")
    path.write_text("ValueError: handled\nGET /health 503\nasync probe nan@draft.x [3 bad]\n\nasync probe oob@dra")
    assert [signature for signature, _ in log.findings()] == ["nan@draft.x"]
    assert list(log.findings()) == []
    with path.open("a") as file:
        file.write("ft.y [1 bad]\n")
    assert [signature for signature, _ in log.findings()] == ["oob@draft.y"]
    path.write_text("one\nGET /health 503\n")
    assert log.findings() == ()  # it is shorter than what was read: somebody has cut it
    assert (log.last_line(), log.last_line("GET /health ")) == ("GET /health 503", "one")


def folder_of_its_own(monkeypatch: pytest.MonkeyPatch, temp: Path) -> dict[str, str]:
    """The variables of a server that wants one; it is made below ``temp``."""
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    return {"TMPDIR": SCRATCH}


def test_one_that_cannot_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = folder_of_its_own(monkeypatch, tmp_path)
    with pytest.raises(NoServer, match=r"target\.launch: cannot start no-such-program: No such file"):
        ServerProcess(StartCommand(("no-such-program",), env), "x", str(tmp_path / "logs"))
    assert [each.name for each in tmp_path.iterdir()] == ["logs"]
