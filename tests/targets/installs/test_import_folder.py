"""The folder by which an engine's processes find us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from specdebug.targets.installs.import_folder import make_import_folder


def test_another_python_finds_our_package_and_nothing_of_our_environment(tmp_path: Path) -> None:
    site = make_import_folder(tmp_path, {"more/one.py": "X = 1\n"})
    ask = "import importlib.util as u, specdebug, more.one; print(more.one.X, u.find_spec('typer') is None)"
    asked = subprocess.run(
        [sys.executable, "-S", "-c", ask], env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert (asked.stdout, asked.stderr) == ("1 True\n", "")
