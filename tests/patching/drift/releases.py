"""Made-up releases of a made-up engine, as wheel, sdist and source tree."""

from __future__ import annotations

import io
import tarfile
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path

from specdebug.patching import Patch
from specdebug.patching.drift import Dist, open_dist
from specdebug.patching.toggles import Registry, Toggle, load_toggle

FLOW = """\
raise RuntimeError("nobody may import this")


class Draft:
    def rows(self, count):
        width = count * self.topk
        check(width)
        return width

    def step(self, positions):
        hidden = self.forward(positions)
        positions.add_(1)
        return hidden


class Wide(Draft):
    pass


def twice(x):
    x += 1
    x += 1
    return x
"""

REVERTS = """\
from toyserve.env import flags

_ONE = '''
patches:
  - target: toyserve.flow.Draft.rows
    edits:
      - match: |
          width = count * self.topk
        replacement: |
          width = count
'''

_TWO = '''
patches:
  - target: toyserve.flow.Draft.rows
    edits:
      - match: |
          width = count * self.topk * 2
        replacement: |
          width = count
'''

REGISTERED: dict[int, str] = {
    11: _ONE,
    12: _TWO,
}
number = flags.SGLANG_DEBUG_REVERT_PR.get()
"""

SOURCES: dict[str, str] = {
    "toyserve/__init__.py": "",
    "toyserve/flow.py": FLOW,
    "toyserve/reverts.py": REVERTS,
    "toyserve/api.py": "from .flow import Draft as Planner, twice\n",
}
METADATA = "Metadata-Version: 2.1\nName: toyserve\nVersion: 1.2.0\n\nName: not-this\n"

TOGGLE = """\
pr: {pr}
title: t
url: https://example.org/{pr}
family: f
symptom: s
patches:
  toyserve:
    "{versions}":
      - target: {target}
        edits:
          - match: {match}
            replacement: {replacement}
"""


def wheel(folder: Path, sources: Mapping[str, str] = SOURCES, metadata: str = METADATA) -> Path:
    path = folder / "toyserve-1.2.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in sources.items():
            archive.writestr(name, text)
        archive.writestr("toyserve-1.2.0.dist-info/METADATA", metadata)
    return path


def sdist(folder: Path, sources: Mapping[str, str] = SOURCES, below: str = "python/") -> Path:
    path = folder / "toyserve-1.2.0.tar.gz"
    files = {f"{below}{name}": text for name, text in sources.items()} | {"PKG-INFO": METADATA}
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            data = text.encode()
            info = tarfile.TarInfo(f"toyserve-1.2.0/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def tree(folder: Path, files: Mapping[str, str], sources: Mapping[str, str] = SOURCES) -> Path:
    root = folder / "checkout"
    for name, text in {**sources, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def release(folder: Path, **changed: str) -> Dist:
    """The wheel, opened; ``flow="..."`` replaces a module."""
    sources = {**SOURCES, **{f"toyserve/{name}.py": textwrap.dedent(text) for name, text in changed.items()}}
    return open_dist(wheel(folder, sources), {"toyserve"})


def patch(target: str, *edits: tuple[str, str]) -> Patch:
    return Patch.of("toggle 1", target, *edits)


def toggle(
    folder: Path,
    pr: int,
    versions: str = ">=1",
    target: str = "toyserve.flow:Draft.rows",
    match: str = "width = count * self.topk",
    replacement: str = "width = count",
) -> Toggle:
    path = folder / f"{pr}.yaml"
    path.write_text(TOGGLE.format(pr=pr, versions=versions, target=target, match=match, replacement=replacement))
    return load_toggle(path)


def registry(*toggles: Toggle) -> Registry:
    return Registry(
        {one.pr: one for one in toggles if one.patches}, {one.pr: one for one in toggles if not one.patches}
    )
