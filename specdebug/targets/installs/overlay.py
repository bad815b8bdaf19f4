"""Python files of one build of an engine over the compiled modules of another: a release that has no build for a CPU
yet runs on those of the release before. Run as a command by a recipe's step: ``overlay FOLDER SITE ENGINE``."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

_COMPILED = ".so"


def lay_over(wheel: Path, site: Path, engine: str) -> int:
    """Put the files of a wheel's package in the place of those that are installed in ``site``, but for compiled ones,
    which stay as they are, and its metadata beside them, as of a build for a CPU. Returns how many were put there.
    Raises OSError, zipfile.BadZipFile, ValueError for a wheel of no such package."""
    package = site / engine
    for path in package.rglob("*"):
        if path.is_file() and path.suffix != _COMPILED:
            path.unlink()
    count = 0
    with zipfile.ZipFile(wheel) as archive:
        # of the files in the package's root that no suffix tells, those are programs
        names = [each for each in archive.namelist() if each.startswith(f"{engine}/") and Path(each).suffix]
        for name in names:
            if not name.endswith(_COMPILED):
                archive.extract(name, site)
                count += 1
        for name in archive.namelist():
            folder, _, file = name.partition("/")
            if folder.endswith(".dist-info") and file in ("METADATA", "WHEEL", "entry_points.txt"):
                release = folder.removesuffix(".dist-info")
                version = release.partition("-")[2]
                told = archive.read(name).decode().replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1)
                into = site / f"{release}+cpu.dist-info"
                into.mkdir(exist_ok=True)
                (into / file).write_text(told, encoding="utf-8")
    if not count:
        raise ValueError(f"{wheel.name} has no package {engine}")
    return count


if __name__ == "__main__":
    _folder, _site, _engine = sys.argv[1:]
    (_wheel,) = Path(_folder).glob("*.whl")
    print(f"{lay_over(_wheel, Path(_site), _engine)} files of {_wheel.name} are in {_site}")
    _wheel.unlink()
