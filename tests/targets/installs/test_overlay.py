"""Python files of a wheel over those that are installed: compiled modules stay, and the metadata say what is there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from specdebug.targets.installs.overlay import lay_over


def wheel(folder: Path, name: str, version: str, requires: str = "") -> Path:
    """One of a package with a module, a compiled one, and a program."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    told = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    told += f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"VERSION = '{version}'\n")
        archive.writestr(f"{name}/new/part.py", "X = 1\n")
        archive.writestr(f"{name}/_C.abi3.so", "of a GPU")
        archive.writestr(f"{name}/program", "of a GPU")
        archive.writestr(f"{name}-{version}.dist-info/METADATA", told)
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


@pytest.fixture
def site(tmp_path: Path) -> Path:
    package = tmp_path / "site" / "toyserve"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VERSION = '1.4'\n")
    (package / "gone.py").write_text("")
    (package / "_C.abi3.so").write_text("of a CPU")
    return tmp_path / "site"


def test_what_is_compiled_stays_and_all_else_is_the_wheel_s(site: Path, tmp_path: Path) -> None:
    assert lay_over(wheel(tmp_path, "toyserve", "1.5"), site, "toyserve") == 2
    package = site / "toyserve"
    files = sorted(str(path.relative_to(package)) for path in package.rglob("*") if path.is_file())
    assert files == ["_C.abi3.so", "__init__.py", "new/part.py"]
    assert (package / "_C.abi3.so").read_text() == "of a CPU"
    assert (package / "__init__.py").read_text() == "VERSION = '1.5'\n"
    assert "\nVersion: 1.5+cpu\n" in (site / "toyserve-1.5+cpu.dist-info" / "METADATA").read_text()


def test_a_wheel_of_another_package_is_refused(site: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no package toyserve"):
        lay_over(wheel(tmp_path, "other", "1.5"), site, "toyserve")


def test_as_a_recipe_s_step_it_throws_the_wheel_away(site: Path, tmp_path: Path) -> None:
    (tmp_path / "over").mkdir()
    path = wheel(tmp_path / "over", "toyserve", "1.5")
    words = [sys.executable, "-m", "specdebug.targets.installs.overlay", str(tmp_path / "over"), str(site), "toyserve"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 files of toyserve-1.5-py3-none-any.whl are in ")
    assert not path.exists()
