"""A server's process: its command, until it is ready, what it died of, and that nothing of it is left."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.patching.toggles import NOTHING, Toggle
from specdebug.targets.base import OverThere
from specdebug.targets.launch import process
from specdebug.targets.launch.log import LogRoom, ServerLog
from specdebug.targets.launch.process import (
    NeverReady,
    ServerProcess,
    StartCommand,
    StartFailed,
    answers,
    command_of,
    free_port,
)
from specdebug.targets.launch.target import LaunchTarget
from specdebug.targets.requests import NoServer
from specdebug.targets.settings import LaunchedServer
from tests.targets.http.redirecting import redirecting
from tests.targets.launch.starting import command, lives


def reverting(*numbers: int, **more: Any) -> OverThere:
    """An arm that reverts fixes of these numbers, which have no edits."""
    toggles = (Toggle(number, (), "", "", "", "", "", NOTHING, (), {}, Path("t.yaml")) for number in numbers)
    return OverThere(tuple(toggles), **more)


OPTIONS: dict[str, Any] = {
    "model": "tiny",
    "page_size": 4,
    "speculative": {"algorithm": "EAGLE", "num_steps": 2},
    "memory": {"guards": True},
}


def made(text: str, there: OverThere | None = None, **settings: Any) -> StartCommand:
    return command_of(LaunchedServer(command=text, **settings), OPTIONS, 7, there or OverThere())


def test_our_own_server_gets_the_options_the_reverts_and_the_probes_as_flags() -> None:
    there = reverting(27338, 10846, probes=("default", "kv"), mode="record", content=("/mine",))
    words = made("serve", there).words
    assert words[:2] == (sys.executable, "-I")
    assert words[words.index("serve") :][:3] == ("serve", "--port", "{port}")
    said = " ".join(words)
    for part in (
        "--model-path tiny", "--page-size 4", "--speculative-num-steps 2", "--memory-guards", "--random-seed 7",
        "--revert 27338,10846", "--probes default", "--probes kv", "--mode record", "--content /mine",
    ):  # fmt: skip
        assert part in said


def test_another_s_command_gets_a_port_and_the_reverts_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "1")
    command = made("run --at '127.0.0.1:{port}' --page-size 8", reverting(27338), env={"A": "b"})
    assert command.on(5) == ["run", "--at", "127.0.0.1:5", "--page-size", "8"]
    assert (command.env["SGLANG_DEBUG_REVERT_PR"], command.env["A"]) == ("27338", "b")
    assert "SGLANG_DEBUG_REVERT_PR" not in made("run {port}").env
    equal, reverted, more = made("run {port}"), made("run {port}", reverting(1)), made("run {port} --more")
    assert len({each.key for each in (equal, made("run {port}"), reverted, more)}) == 3
    with pytest.raises(SpecDebugError, match=r"target\.launch: No closing quotation"):
        made("run '{port}")
    assert 20000 <= free_port() < 32000, "one to which a server can add 10,000, as SGLang does"


def test_options_of_our_own_server_are_checked_before_it_is_started() -> None:
    target = LaunchTarget(LaunchedServer(command="serve"))
    with pytest.raises(SpecDebugError, match="page_sze"):
        target.asked({"page_sze": 4})
    assert target.asked(OPTIONS).unused == ()
    assert LaunchTarget(LaunchedServer(command="run {port}")).asked(OPTIONS).unused == ("page_size", "memory")


PATIENCE_S = 60.0


def wait(server: ServerProcess, patience_s: float = PATIENCE_S) -> list[str]:
    """What is said until it is ready."""
    said: list[str] = []
    server.wait_ready("/health", patience_s, said.append, ())
    return said


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
    said = wait(server)
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
            wait(server)
    else:
        wait(server)
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
    wait(server)
    server.end()
    assert server._process.returncode == -signal.SIGKILL
    assert not lives(server.pid)
    assert not lives(int(child.read_text()))


@pytest.mark.parametrize("times", [2, 99])
def test_another_port_is_tried_where_one_is_taken_and_no_more_than_so_many(
    times: int, started: list[ServerProcess], tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text(str(times))
    server = start(started, tmp_path, "--taken", str(taken))
    first = server.url
    if times == 2:
        wait(server)
        assert answers(server.url + "/health")
        assert server.url != first
        return
    with pytest.raises(NoServer, match=r"Address already in use; its log is .* \(3 ports were tried") as caught:
        wait(server)
    assert (taken.read_text(), caught.value.exit_code) == ("96", 2)


def test_a_log_does_not_fill_the_disk(started: list[ServerProcess], tmp_path: Path) -> None:
    said = command("--fill", "20000", "--say", "the beginning")
    server = ServerProcess(said, "x", str(tmp_path), LogRoom(most=9000, head=2000, tail=3000))
    started.append(server)
    wait(server)
    server.end()
    text = Path(server.log.path).read_text()
    assert len(text) < 9000
    assert "the beginning" in text
    assert "specdebug left out" in text
    assert f"line {20000 // 100 - 1} " in text


def test_one_that_is_never_ready(started: list[ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WAITING_S", 0.1)
    server, said = start(started, tmp_path, "--sick", "503", "--say", "the last words"), list[str]()
    late = r"did not answer /health within 0\.5 s \(ready_timeout_s\): .*; its log is .*label"
    with pytest.raises(NeverReady, match=late) as caught:
        server.wait_ready("/health", 0.5, said.append, ())
    assert caught.value.exit_code == 125  # this machine may be slow: nothing is said of the server
    waiting = next(line for line in said if "ready_timeout_s" in line)
    assert re.search(r"; /health \S.* after 0\.1 s, waiting up to 0\.5 s \(ready_timeout_s\)$", waiting)


def test_a_front_without_the_route_is_not_waited_for(
    started: list[ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "NO_ROUTE_S", 0.0)
    with pytest.raises(NoServer, match=r"/health answers 404: .* `ready: /PATH`; its log is ") as caught:
        wait(start(started, tmp_path, "--sick", "404"))
    assert not isinstance(caught.value, NeverReady)


GUARD = "x: fail guard@draft.kv_indices->draft.kv_indptr"


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (
            "error: no such flag",
            NoServer,
            r"ended \(exit status 2\) before it was ready: error: no such flag; its log is ",
        ),
        (GUARD, StartFailed, "before it was ready"),
    ],
    ids=["the user's to mend", "damage that its log names"],
)
def test_one_that_ends_at_once_is_told_by_its_log(
    said: str, error: type[Exception], words: str, started: list[ServerProcess], tmp_path: Path
) -> None:
    with pytest.raises(error, match=words) as caught:
        wait(start(started, tmp_path, "--say", said, "--end", "2"))
    assert type(caught.value) is error
    assert getattr(caught.value, "signature", "guard@draft.kv_indices->draft.kv_indptr") == GUARD.partition("fail ")[2]


def test_its_status_tells_what_killed_it(started: list[ServerProcess], tmp_path: Path) -> None:
    server = start(started, tmp_path)
    wait(server)
    server._process.send_signal(signal.SIGKILL)
    assert server.status() == -signal.SIGKILL
    assert not server.alive()


def test_what_it_said_before_it_was_ready_is_none_of_the_run_s(started: list[ServerProcess], tmp_path: Path) -> None:
    server = start(started, tmp_path, "--say", "ConnectionRefusedError: no server yet, and tried again")
    wait(server)
    assert server.log.scan_run().main is None
    with Path(server.log.path).open("a") as log:
        log.write("ValueError: in the run\n")
    main = server.log.scan_run().main
    assert main is not None
    assert main.text == "ValueError: in the run"


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


def test_a_log_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoServer, match=r"target\.log: no log can be written to .*file"):
        ServerProcess(command(), "x", str(tmp_path / "file"))
