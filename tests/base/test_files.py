"""Only regular files are opened, and nothing waits."""

import os
import socket
from pathlib import Path

import pytest

from specdebug.base import files
from specdebug.base.files import NotAFile, NotOwn, TooLarge, kind_of, open_file, read_file, require_own


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


@pytest.mark.parametrize("name", ["none", "nul\0byte", "x" * 5000])
def test_a_path_that_leads_nowhere_has_a_reason(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        open_file(tmp_path / name)
    assert caught.value.strerror
    assert kind_of(tmp_path / name) is None


def test_another_user_s_file_is_not_the_user_s_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("f")
    for name in ("f", "link"):
        assert read_file(tmp_path / name, 3, own=True) == b"abc"
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(files, "_owners", lambda: (owner + 1,))
    for name in ("f", "link"):
        assert read_file(tmp_path / name, 3) == b"abc"
        with pytest.raises(NotOwn, match=rf"belongs to another user \(uid {owner}\)"):
            read_file(tmp_path / name, 3, own=True)


def test_a_link_of_another_user_to_one_s_own_file_is_none_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there is the user's, and which of the user's files that is was another's choice."""
    (tmp_path / "f").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("f")
    of_links, lstat = os.lstat(tmp_path / "link"), os.lstat
    theirs = os.stat_result((*of_links[:4], of_links.st_uid + 1, *of_links[5:]))
    monkeypatch.setattr(os, "lstat", lambda path: theirs if Path(path).name == "link" else lstat(path))
    require_own(tmp_path / "f")
    with pytest.raises(NotOwn):
        require_own(tmp_path / "link")


def test_what_every_user_may_write_is_nobody_s_word(tmp_path: Path) -> None:
    """But a folder in which each may change their own files alone, as the folder of temporary files is, is fine."""
    (tmp_path / "f").write_bytes(b"abc")
    for path in (tmp_path / "f", tmp_path):
        path.chmod(0o777)
        with pytest.raises(NotOwn, match="can be written by every user"):
            require_own(path)
    tmp_path.chmod(0o1777)
    require_own(tmp_path)
