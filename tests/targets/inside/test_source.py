"""Places in source files: found as a release has them, without importing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdebug.targets.inside.source import Source

MODULE = """
import os
from sglang.srt.base import Base
from .near import Near as Nearer
if os.environ.get("GPU"):
    from kernels import only_on_a_gpu as kernel
else:
    try:
        kernel_of_a_cpu: int = 1
    except ImportError:
        neither = None

class Own(Base):
    field: int

    def method(self):
        self.made_here, local = 1, 2
        other.not_its_own = 3

class Grandchild(Own, Nearer):
    pass
"""


@pytest.fixture
def source(tmp_path: Path) -> Source:
    tmp_path = tmp_path / "sglang"
    files = {
        "srt/module.py": MODULE,
        "srt/base.py": "class Base:\n    inherited = 1\n",
        "srt/near/__init__.py": "class Near:\n    def near(self): ...\n",
        "srt/broken.py": "def (",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Source(tmp_path)


@pytest.mark.parametrize(
    ("place", "there"),
    [
        ("srt.module", True), ("srt.gone", False), ("srt.broken:a", False), ("srt.near:Near.near", True),
        ("srt.module:kernel", True), ("srt.module:kernel_of_a_cpu", True), ("srt.module:neither", True),
        ("srt.module:only_on_a_gpu", False), ("srt.module:local", False), ("srt.module:Own", True),
        ("srt.module:Own.field", True), ("srt.module:Own.method", True), ("srt.module:Own.made_here", True),
        ("srt.module:Own.not_its_own", False), ("srt.module:Own.inherited", True), ("srt.module:Base.inherited", True),
        ("srt.module:Grandchild.inherited", True), ("srt.module:Grandchild.near", True),
    ],
)  # fmt: skip
def test_a_place_is_there_as_the_files_have_it(source: Source, place: str, there: bool) -> None:
    assert source.has(place) is there
