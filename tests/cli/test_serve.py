"""``specdebug serve`` as far as it goes without serving: what it refuses, and what it does not import."""

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from specdebug.cli.main import run
from specdebug.cli.serve import BoundedLog


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--tp", "2"], "--tp is not supported: the engine runs in one process"),
        (["--mem-fraction-static", "0.8"], "--mem-fraction-static is not supported"),
        (["--page-sizes", "2"], "there is no option --page-sizes; did you mean '--page-size'?"),
        (["tiny"], "serve takes no argument, got 'tiny'; name the model with --model-path"),
        (["--page-size", "0"], "--page-size: must be a whole number from 1 to 1024, not 0"),
        (["--speculative-num-steps", "3"], "options of speculation need --speculative-algorithm"),
        (
            ["--speculative-algorithm", "MTP", "--speculative-worker", "v1"],
            "worker: MTP has no worker v1",
        ),
        (["--speculative-algorithm", "MTP", "--speculative-eagle-topk", "2"], "--speculative-eagle-topk: must be 1"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is open to other machines; that needs --api-key"),
        (["--api-key", ""], "--api-key: a key is one or more visible ASCII characters"),
        (["--api-key", "", "--host", "0.0.0.0"], "--api-key: a key is one or more visible ASCII characters"),
        (["--api-key", " x"], "--api-key: a key is one or more visible ASCII characters"),
        (["--api-key", "schlüssel"], "--api-key: a key is one or more visible ASCII characters"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: "),
        (["--model-path", "tinny"], "did you mean 'tiny'?"),
        (["--revert", "1"], "1"),
        (["--fault", "nan_logit"], "did you mean 'nan_logits'"),
        (["--fault", "nan_draft_logits"], "which this server does not have"),
        (["--probes", "defalt"], "defalt"),
        (["--watchdog-timeout", "0"], "--watchdog-timeout must be above 0 seconds"),
        (["--port", "99999"], "--port"),
        (["--device", "cuda:77"], "there is no "),
    ],
)
def test_what_cannot_be_served_ends_in_one_line(capfd: pytest.CaptureFixture[str], argv: list[str], told: str) -> None:
    assert run(["serve", "--port", "0", *argv]) == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert told in errors[0]


def test_a_port_that_is_taken_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["serve", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capfd.readouterr().err


def test_nothing_of_http_is_imported_by_other_commands() -> None:
    """But pydantic, which typer itself imports."""
    code = (
        "import sys; from specdebug.cli.main import run; run(['scenarios', 'list']); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} "
        "& {'fastapi', 'starlette', 'uvicorn', 'httpx', 'prometheus_client'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe that takes one page."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    yield read, write
    for each in (read, write):
        with contextlib.suppress(OSError):
            os.close(each)


def all_of(read: int) -> str:
    with os.fdopen(os.dup(read), "rb") as file:
        return file.read().decode()


def test_lines_have_the_time_and_no_control_characters(pipe: tuple[int, int]) -> None:
    read, write = pipe
    log = BoundedLog(write)
    log.say("request \x1b[2Jmine\ntwo")
    log.pass_on("naïve \x1b]0;t\x07\n".encode())
    log.close()
    os.close(write)
    first, second, third = all_of(read).splitlines()
    assert first.endswith("] request \\x1b[2Jmine")
    assert second.endswith("] two")
    assert third == "naïve \\x1b]0;t\\x07"


def test_a_character_that_the_engine_printed_in_two_writes_is_one(pipe: tuple[int, int]) -> None:
    read, write = pipe
    log = BoundedLog(write)
    for byte in "é\n".encode():
        log.pass_on(bytes([byte]))
    log.close()
    os.close(write)
    assert all_of(read) == "é\n"


def test_a_reader_who_reads_nothing_stops_nobody_and_is_told_what_is_missing(pipe: tuple[int, int]) -> None:
    read, write = pipe
    log = BoundedLog(os.dup(write), room=10_000)
    for number in range(1000):
        log.say(f"line {number}")
    got = b""
    while b"are missing here" not in got:
        log.say("more")
        got += os.read(read, 1 << 16)
    assert b"line 0\n" in got
    assert b"line 999\n" not in got
    os.close(write)
    log.close()


def test_the_end_does_not_wait_for_a_reader_who_reads_nothing(pipe: tuple[int, int]) -> None:
    read, write = pipe
    log = BoundedLog(write)
    log.say("x" * 4000)
    log.say("x" * 4000)
    log.close()
    os.write(write, b"x" * 10_000)  # nowhere
    assert os.read(read, 1)
