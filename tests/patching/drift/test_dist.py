"""What can be opened, which release it is, and where its modules are."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.patching import PatchError
from specdebug.patching.drift import dist, open_dist
from specdebug.patching.drift.dist import open_members
from tests.patching.drift.releases import METADATA, SOURCES, release, sdist, tree, wheel

KNOWN = {"toyserve"}
STATED = '[project]\nname = "Toy_Serve"\nversion = "3.1"\n'
DYNAMIC = '[project]\nname = "toyserve"\ndynamic = ["version"]\n'


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"python/pyproject.toml": STATED.replace("Toy_Serve", "toyserve")}, "3.1"),
        ({"PKG-INFO": METADATA, "pyproject.toml": DYNAMIC}, "1.2.0"),
        ({"toyserve-1.3.dist-info/METADATA": METADATA.replace("1.2.0", "1.3")}, "1.3"),
        ({"pyproject.toml": DYNAMIC + "[tool.setuptools_scm]\nversion_file = 'toyserve/_v.py'\n"}, "4.0.dev3+g1"),
        ({"python/pyproject.toml": DYNAMIC + "[tool.setuptools_scm]\nwrite_to = '_v.py'\n"}, "4.1"),
        (
            {"pyproject.toml": DYNAMIC + "[tool.setuptools.dynamic]\nversion = {attr = 'toyserve._v.version'}\n"},
            "4.0.dev3+g1",
        ),
        ({"pyproject.toml": DYNAMIC + "[tool.hatch.version]\npath = 'toyserve/_v.py'\n"}, "4.0.dev3+g1"),
    ],
)
def test_trees_say_what_they_are(tmp_path: Path, files: dict[str, str], version: str) -> None:
    written = {"toyserve/_v.py": "__version__ = version = '4.0.dev3+g1'\n", "python/_v.py": "version = '4.1'\n"}
    assert str(open_dist(tree(tmp_path, {**files, **written}), KNOWN)) == f"toyserve {version}"


@pytest.mark.parametrize(
    "files", [{}, {"pyproject.toml": DYNAMIC}, {"pyproject.toml": DYNAMIC + "[tool.setuptools_scm]\n"}]
)
def test_a_tree_without_a_version_needs_one(tmp_path: Path, files: dict[str, str]) -> None:
    root = tree(tmp_path, files)
    with pytest.raises(SpecDebugError, match=r"\(toyserve\) does not state its version; give --version"):
        open_dist(root, KNOWN)
    assert str(open_dist(root, KNOWN, "0.9")) == "toyserve 0.9"
    with pytest.raises(SpecDebugError, match="--version: 'new' is no version"):
        open_dist(root, KNOWN, "new")


def test_a_version_that_contradicts(tmp_path: Path) -> None:
    assert str(open_dist(wheel(tmp_path), KNOWN, "1.2")) == "toyserve 1.2.0"
    with pytest.raises(SpecDebugError, match=r"--version is 1\.3, but .* says that it is toyserve 1\.2\.0"):
        open_dist(wheel(tmp_path), KNOWN, "1.3")


def test_the_known_one_of_several(tmp_path: Path) -> None:
    others = {f"other{n}-1.dist-info/METADATA": f"Name: other{n}\nVersion: 1\n\n" for n in range(3)}
    files = {**others, "toyserve-1.dist-info/METADATA": METADATA}
    assert str(open_dist(tree(tmp_path, files), KNOWN)) == "toyserve 1.2.0"
    with pytest.raises(SpecDebugError, match=r"holds several engines \(other1, toyserve\)"):
        open_dist(tree(tmp_path, files), {*KNOWN, "other1"})


def test_what_nothing_names(tmp_path: Path) -> None:
    with pytest.raises(SpecDebugError, match=r"nothing in .* says what it is"):
        open_dist(tree(tmp_path, {"a.py": ""}, {}), KNOWN)
    for broken in ("[", "a = " + "[" * 5000, "a = " + "9" * 5000):  # the latter two are no TOMLDecodeError
        with pytest.raises(SpecDebugError, match=r"pyproject\.toml is no TOML"):
            open_dist(tree(tmp_path, {"pyproject.toml": broken}), KNOWN)
    with pytest.raises(SpecDebugError, match="'next' is no version"):
        open_dist(wheel(tmp_path, metadata="Name: toyserve\nVersion: next\n\n"), KNOWN)


def test_the_package_not_its_namesakes(tmp_path: Path) -> None:
    extra = {"bench/toyserve/flow.py": "x = 1\n", "tests/toyserve/deep/flow.py": "", "toyserve.py/flow.py": ""}
    root = tree(tmp_path, extra, {f"python/{name}": text for name, text in SOURCES.items()})
    dist = open_dist(root, KNOWN, "1")
    assert "class Draft" in dist.source("toyserve.flow").text
    assert dist.has_module("toyserve")
    assert not dist.has_module("toyserve.deep.flow")
    assert not dist.has_module("elsewhere")


def test_modules_that_are_not_there_or_no_python(tmp_path: Path) -> None:
    dist = release(tmp_path, broken="def (", coded="# coding: nonsense\n", odd='x = "\\d"\n')
    for module, said in (("gone", "has no module"), ("broken", "does not parse"), ("coded", "does not parse")):
        with pytest.raises(PatchError, match=said):
            dist.source(f"toyserve.{module}")
    assert dist.source("toyserve.odd").spans


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


def test_nothing_is_read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "MAX_MEMBER_BYTES", 100)
    monkeypatch.setattr(dist, "MAX_TOTAL_BYTES", 300)
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
