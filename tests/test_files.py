"""Only regular files are opened, and nothing waits."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from specdebug.files import NotAFile, TooLarge, kind_of, open_file, read_file


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("f")
    for name in ("f", "link"):
        assert read_file(tmp_path / name, 3) == b"abc"
        assert kind_of(tmp_path / name) is None
    with pytest.raises(TooLarge) as caught:
        read_file(tmp_path / "f", 2)
    assert "is larger than" in caught.value.strerror


def test_what_is_no_file_is_named_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    cases = {"pipe": "a pipe", "link": "a pipe", "socket": "a socket", ".": "a folder"}
    for name, kind in cases.items():
        with pytest.raises(NotAFile) as caught:
            open_file(tmp_path / name)
        assert caught.value.strerror == f"is {kind}, not a file"
        assert kind_of(tmp_path / name) == kind
    with pytest.raises(NotAFile, match="is a device"):
        open_file("/dev/zero")


def test_the_null_device_is_an_empty_file() -> None:
    assert read_file(os.devnull, 1) == b""


@pytest.mark.parametrize("name", ["none", "nul\0byte", "x" * 5000])
def test_a_path_that_leads_nowhere_has_a_reason(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        open_file(tmp_path / name)
    assert caught.value.strerror
    assert kind_of(tmp_path / name) is None
