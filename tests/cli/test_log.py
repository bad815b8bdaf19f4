"""The log of a server: its reader stops nothing, and nothing of a client reaches a terminal raw."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

import pytest

from specdebug.cli.serve import BoundedLog


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
