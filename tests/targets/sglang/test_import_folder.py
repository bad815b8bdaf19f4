"""The folder by which SGLang's processes find us: what another Python finds in it, and nothing else of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from specdebug import __version__ as VERSION
from specdebug.targets.installs.import_folder import make_import_folder
from specdebug.targets.sglang.import_folder import PLUGINS, files_to_import

ASK = """
import importlib.metadata, importlib.util
(point,) = importlib.metadata.entry_points(group="{group}")
print(point.name, point.value, importlib.util.find_spec("specdebug") is not None)
import torchvision
print(torchvision.transforms.Resize.__name__, importlib.util.find_spec("typer") is None)
"""


def test_another_python_finds_the_plugin_and_empty_modules(tmp_path: Path) -> None:
    site = make_import_folder(tmp_path, files_to_import(["torchvision"], cpu=True))
    asked = subprocess.run(
        [sys.executable, "-S", "-c", "import sitecustomize" + ASK.format(group=PLUGINS)],
        env={"PYTHONPATH": str(site)}, capture_output=True, text=True,
    )  # fmt: skip
    assert asked.stderr == ""
    assert asked.stdout == "specdebug specdebug.targets.sglang.inside.plugin:register True\nResize True\n"


def test_on_a_gpu_it_has_its_own_kernels() -> None:
    assert {name.partition("/")[0] for name in files_to_import(["a"], cpu=False)} == {
        f"specdebug_inside-{VERSION}.dist-info"
    }
