"""What can be opened, and how what cannot is refused."""

from __future__ import annotations

import contextlib
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.base.errors import SpecDebugError
from specdebug.patching.drift import members
from specdebug.patching.drift.members import open_members, open_package
from tests.patching.drift.releases import SOURCES, sdist, tree, wheel


def test_the_same_files_from_all_three(tmp_path: Path) -> None:
    opened = [open_members(path) for path in (wheel(tmp_path), sdist(tmp_path, below=""), tree(tmp_path, {}))]
    for one in opened:
        assert set(SOURCES) <= set(one.names)
        assert one.read("toyserve/flow.py").decode() == SOURCES["toyserve/flow.py"]
    assert opened[0].place("toyserve/flow.py") == "toyserve/flow.py"
    assert Path(opened[2].place("toyserve/flow.py")).is_file()


def test_only_source_and_metadata_count(tmp_path: Path) -> None:
    root = tree(tmp_path, {"a.so": "", "pyproject.toml": "", ".git/x.py": "", "__pycache__/y.py": ""}, {})
    (root / "env").mkdir()
    (root / "env" / "pyvenv.cfg").touch()
    (root / "env" / "z.py").touch()
    (root / "gone.py").symlink_to(root / "nowhere.py")
    os.mkfifo(root / "pipe.py")
    (root / "loop").symlink_to(root, target_is_directory=True)
    assert list(open_members(root).names) == ["pyproject.toml"]


def test_of_a_package_nothing_beside_it_is_read(tmp_path: Path) -> None:
    package = open_package(tree(tmp_path, {}) / "toyserve")
    assert list(package.names) == sorted(name for name in SOURCES if name.startswith("toyserve/"))
    assert package.read("toyserve/flow.py").decode() == SOURCES["toyserve/flow.py"]
    assert Path(package.place("toyserve/flow.py")).is_file()


def refusal(path: Path | str) -> str:
    with pytest.raises(SpecDebugError) as caught:
        open_members(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_what_is_none_of_the_three(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.whl").endswith("none.whl: no such file or folder")
    (tmp_path / "x.zip").touch()
    assert "neither a wheel (.whl), an sdist (.tar.gz) nor a folder" in refusal(tmp_path / "x.zip")
    assert "cannot be read" in refusal("a" * 5000)
    assert "cannot be read" in refusal("a\0b") or "no such file" in refusal("a\0b")
    for name, said in (("x.whl", "no wheel: not a zip archive"), ("x.tar.gz", "no sdist: not a gzipped tar")):
        (tmp_path / name).write_bytes(b"not an archive")
        assert said in refusal(tmp_path / name)


def test_archives_cut_off(tmp_path: Path) -> None:
    for path in (wheel(tmp_path), sdist(tmp_path)):
        path.write_bytes(path.read_bytes()[:-60])
        assert "cut off; download it again" in refusal(path)


@settings(max_examples=60)
@given(data=st.data(), kind=st.sampled_from([wheel, sdist]))
def test_damage_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind) -> None:
    path = kind(tmp_path_factory.mktemp("damaged"))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    with contextlib.suppress(SpecDebugError):  # anything else is a crash
        opened = open_members(path)
        for name in opened.names:
            opened.read(name)


def test_nothing_is_read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MAX_MEMBER_BYTES", 100)
    monkeypatch.setattr(members, "MAX_TOTAL_BYTES", 300)
    with pytest.raises(SpecDebugError, match=r"toyserve/flow.py is larger than"):
        open_members(wheel(tmp_path)).read("toyserve/flow.py")
    assert "holds more than" in refusal(sdist(tmp_path))


def test_a_damaged_member_of_a_sound_wheel(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"nobody may import this", b"Nobody may import this"))
    with pytest.raises(SpecDebugError, match=r"flow\.py cannot be read: Bad CRC-32"):
        open_members(path).read("toyserve/flow.py")


def test_links_in_an_sdist_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("x-1/secret.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert list(open_members(path).names) == []


def test_an_encrypted_member(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("toyserve/flow.py").header_offset
    central = raw.index(b"PK\x01\x02", at)
    while raw[central + 46 : central + 62] != b"toyserve/flow.py":
        central = raw.index(b"PK\x01\x02", central + 4)
    raw[central + 8] |= 1
    raw[at + 6] |= 1
    path.write_bytes(raw)
    with pytest.raises(SpecDebugError, match=r"flow\.py cannot be read: .*encrypted"):
        open_members(path).read("toyserve/flow.py")
