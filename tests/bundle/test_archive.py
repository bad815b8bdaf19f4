"""The container: what is written can be read, and nothing else can."""

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdebug.base import files
from specdebug.base.errors import SpecDebugError
from specdebug.bundle import archive
from specdebug.bundle.archive import MANIFEST, check_target, read_archive, write_archive
from tests.bundle.bundles import members_of, pack

FACTS = {"scenario": "mini"}
MEMBERS = {"scenario.json": b"{}", "toggles/1.yaml": b"pr: 1\n", "empty": b""}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "b.specdebug"
    write_archive(path, FACTS, MEMBERS)
    return path


def complaint(path: Path) -> str:
    """Why it cannot be read: one line that names the file."""
    with pytest.raises(SpecDebugError) as caught:
        read_archive(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def changed(bundle: Path, change: Callable[[dict[str, bytes], dict[str, Any]], None]) -> str:
    """What is said of the bundle after a change of its members and its manifest."""
    members = members_of(bundle)
    manifest = json.loads(members[MANIFEST])
    change(members, manifest)
    bundle.write_bytes(pack({**members, MANIFEST: json.dumps(manifest).encode()}))
    return complaint(bundle)


def test_what_is_written_is_read(bundle: Path) -> None:
    manifest, members = read_archive(bundle)
    assert members == MEMBERS
    assert manifest["scenario"] == "mini"
    assert (manifest["format"], manifest["version"]) == ("specdebug-bundle", 2)


def test_nothing_is_overwritten_unasked(bundle: Path) -> None:
    before = bundle.read_bytes()
    with pytest.raises(SpecDebugError, match="is there already; --force overwrites it"):
        write_archive(bundle, {}, {})
    assert bundle.read_bytes() == before
    write_archive(bundle, {}, {}, force=True)
    assert read_archive(bundle)[1] == {}
    assert os.listdir(bundle.parent) == [bundle.name]


@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("force", [False, True])
def test_what_is_stopped_leaves_things_as_they_were(
    force: bool, stopped_by: BaseException, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(io.FileIO):
        def write(self, data: Any) -> int:
            super().write(data[:10])
            raise stopped_by

    before = bundle.read_bytes()
    for module in (archive, files):
        monkeypatch.setattr(module, "open", Stopping, raising=False)
    with pytest.raises((KeyboardInterrupt, SpecDebugError)):
        write_archive(bundle if force else tmp_path / "new.specdebug", FACTS, MEMBERS, force=force)
    assert os.listdir(tmp_path) == [bundle.name]
    assert bundle.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("b.zip", "a bundle's name ends in .specdebug"),
        ("no/such/b.specdebug", "no folder"),
        ("d.specdebug", "a folder"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_anything_runs(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "d.specdebug").mkdir()
    with pytest.raises(SpecDebugError, match=words):
        check_target(tmp_path / name, force=True)


def test_every_truncation_is_refused(bundle: Path) -> None:
    whole = bundle.read_bytes()
    for length in range(len(whole)):
        bundle.write_bytes(whole[:length])
        complaint(bundle)
    bundle.write_bytes(whole[: len(whole) // 2])
    assert complaint(bundle) == "is damaged (it is truncated); fetch it again"


def test_a_flipped_bit_is_refused_or_changes_nothing(bundle: Path) -> None:
    """Some bits of a zip archive carry no meaning here (times, versions); those that do are all covered."""
    whole = bytearray(bundle.read_bytes())
    refused = 0
    for position in range(len(whole)):
        whole[position] ^= 0x10
        bundle.write_bytes(whole)
        with contextlib.suppress(SpecDebugError):
            refused += 1
            manifest, members = read_archive(bundle)
            refused -= 1
            assert members == MEMBERS
            assert manifest["scenario"] == "mini"
        whole[position] ^= 0x10
    assert refused > len(whole) / 2


def test_another_zip_archive_is_no_bundle(bundle: Path) -> None:
    bundle.write_bytes(pack({"readme.txt": b"hello"}))
    assert complaint(bundle) == "is not a bundle; it holds no manifest.json"
    bundle.write_bytes(pack({MANIFEST: b"[" * 100_000}))
    assert complaint(bundle) == "is not a bundle; its manifest.json is not JSON"
    bundle.write_bytes(pack({MANIFEST: b'{"format": "other"}'}))
    assert "does not say 'specdebug-bundle'" in complaint(bundle)


def test_tampering_is_noticed(bundle: Path) -> None:
    def other_text(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        members["toggles/1.yaml"] = b"pr: 2\n"

    assert changed(bundle, other_text).startswith("toggles/1.yaml is not what the manifest says it is")


def test_members_and_manifest_must_agree(bundle: Path) -> None:
    def one_more(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        members["extra"] = b"x"

    assert changed(bundle, one_more) == "holds extra, which its manifest does not name"

    def one_less(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        del members["extra"], members["empty"]

    assert changed(bundle, one_less) == "lacks empty, which its manifest names"


@pytest.mark.parametrize(
    ("version", "words"),
    [(3, "has format 3, this specdebug reads 2; upgrade"), (1, "reads 2; make the bundle anew"), ("2", "states no"),
     (True, "states no")],
)  # fmt: skip
def test_another_format_is_refused(version: Any, words: str, bundle: Path) -> None:
    def other_version(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        manifest["version"] = version
        manifest["members"] = ["in a grammar of its own"]

    assert words in changed(bundle, other_version)


@pytest.mark.parametrize(
    "name", ["../../etc/cron.d/x", "/etc/passwd", "a/../b", "a\\b", "C:x", "toggles/", "a/b/c", "\n"]
)
def test_names_that_lead_elsewhere_are_refused(name: str, bundle: Path) -> None:
    bundle.write_bytes(pack({**members_of(bundle), name: b"x"}))
    assert "which is no name of a bundle's member" in complaint(bundle)


def test_a_name_twice_is_refused(bundle: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(bundle, "a") as opened:
        opened.writestr("empty", b"x")
    assert complaint(bundle) == "holds empty twice"


def test_a_member_that_swells_is_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.write_bytes(pack({**members_of(bundle), "bomb": bytes(archive.MAX_MEMBER + 1)}))
    assert bundle.stat().st_size < 1 << 20
    assert complaint(bundle) == "bomb has 65 MiB, more than the 64 MiB it may have"
    monkeypatch.setattr(archive, "MAX_TOTAL", 100)
    bundle.write_bytes(pack({**members_of(bundle), "bomb": bytes(1000)}))
    assert "more than the 0 MiB it may have" in complaint(bundle)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 3)
    assert complaint(bundle) == "holds 5 members, more than the 3 a bundle may have"


def test_a_member_that_lies_about_its_size_is_refused(bundle: Path) -> None:
    """The size in the directory bounds what is unpacked; what is beyond it fails the checksum or the digest."""
    data = bytearray(pack({**members_of(bundle), "bomb": bytes(5000)}))
    at = data.rindex((5000).to_bytes(4, "little"))
    data[at : at + 4] = (50).to_bytes(4, "little")
    bundle.write_bytes(data)
    complaint(bundle)


def test_a_member_without_room_is_checked_and_not_held(bundle: Path) -> None:
    manifest, members = read_archive(bundle, lambda name: 0 if name == "empty" else 100)
    assert "empty" not in members
    assert "empty" in manifest["members"]
    bundle.write_bytes(pack({**members_of(bundle), "toggles/1.yaml": b"pr: 2\n"}))
    with pytest.raises(SpecDebugError, match="is not what the manifest says it is"):
        read_archive(bundle, lambda name: 0)


def test_what_is_held_is_limited(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def room(name: str) -> int:
        return 1 if name.startswith("scenario") else 100

    with pytest.raises(SpecDebugError, match=r"scenario\.json has 1 MiB, more than the 0 MiB"):
        read_archive(bundle, room)
    with pytest.raises(SpecDebugError, match=r"scenario\.json has 1 MiB, more than the 0 MiB"):
        write_archive(tmp_path / "other.specdebug", FACTS, MEMBERS, room=room)
    monkeypatch.setattr(archive, "MAX_HELD", 5)
    assert complaint(bundle) == "its members have 1 MiB together, more than the 0 MiB they may have"


def test_a_long_list_of_members_is_refused_before_it_is_read(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("was opened"))
    data = bytearray(bundle.read_bytes())
    data[-10:-6] = (archive.MAX_DIRECTORY + 1).to_bytes(4, "little")
    bundle.write_bytes(data)
    assert complaint(bundle) == "holds more members than the 1000 a bundle may have"


@pytest.mark.parametrize("behind", [b"x", b"PK\x05\x06", b"PK\x05\x06" + bytes(18) + b"x"])
def test_something_behind_the_archive_is_refused(behind: bytes, bundle: Path) -> None:
    bundle.write_bytes(bundle.read_bytes() + behind)
    assert complaint(bundle).startswith("is damaged")


def test_an_archive_of_the_large_kind_is_refused(bundle: Path) -> None:
    data = bundle.read_bytes()
    bundle.write_bytes(data[:-22] + b"PK\x06\x07" + bytes(16) + data[-22:])
    assert complaint(bundle).startswith("is packed in a way that no bundle is")


def test_a_pipe_is_refused_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "b.specdebug")
    assert complaint(tmp_path / "b.specdebug") == "is a pipe, not a bundle"


@pytest.mark.parametrize("members", [[], 3, "x"])
def test_a_manifest_whose_members_are_no_table_is_refused(members: Any, bundle: Path) -> None:
    def other(held: dict[str, bytes], manifest: dict[str, Any]) -> None:
        manifest["members"] = members

    assert "does not name its members" in changed(bundle, other)


def test_an_encrypted_member_is_refused(bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    flags = data.rindex(b"PK\x01\x02") + 8
    data[flags] |= 1
    bundle.write_bytes(data)
    assert complaint(bundle).startswith("is packed in a way that no bundle is")
