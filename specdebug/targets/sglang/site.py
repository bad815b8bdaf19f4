"""The folder that an engine's processes find us by: on their ``PYTHONPATH``, beside their own packages.

It holds a link to this package, so that nothing else of our environment gets into theirs, the metadata of SGLang's
plugin, and, on a CPU, ``sgl_kernel`` and a start-up module that puts empty modules in the place of unused ones.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import specdebug
from specdebug.errors import SpecDebugError
from specdebug.files import replace_file

PLUGINS = "sglang.srt.plugins"
"""SGLang's group of entry points."""
_INSIDE = "specdebug.targets.sglang.inside"
_METADATA = "Metadata-Version: 2.1\nName: specdebug-inside\nVersion: {version}\n"
_FLASH_ATTN = f'''"""FlashAttention 3 without a GPU."""
from {_INSIDE}.attention import flash_attn_with_kvcache


def is_fa3_supported(device=None):
    return True


def get_scheduler_metadata(*_, **__):
    return None


def flash_attn_varlen_func(*_, **__):
    raise NotImplementedError("specdebug's stand-in for sgl_kernel has no flash_attn_varlen_func")
'''


def site_files(stand_ins: Sequence[str], *, cpu: bool) -> dict[str, str]:
    """What the folder holds, by path."""
    files = {
        f"specdebug_inside-{specdebug.__version__}.dist-info/METADATA": _METADATA.format(version=specdebug.__version__),
        f"specdebug_inside-{specdebug.__version__}.dist-info/entry_points.txt": (
            f"[{PLUGINS}]\nspecdebug = {_INSIDE}.plugin:register\n"
        ),
    }
    if cpu:
        files["sgl_kernel/__init__.py"] = f"from {_INSIDE}.sgl_kernel import *\n"
        files["sgl_kernel/flash_attn.py"] = _FLASH_ATTN
        files["sitecustomize.py"] = (
            f"from {_INSIDE}.empty_modules import stand_in_for\n\nstand_in_for({list(stand_ins)!r})\n"
        )
    return files


def make_site(folder: Path, stand_ins: Sequence[str], *, cpu: bool) -> Path:
    """Make the folder, below another; one of the same content is taken as it is. Raises SpecDebugError."""
    files = site_files(stand_ins, cpu=cpu)
    package = Path(specdebug.__file__).resolve().parent
    digest = hashlib.sha256(repr((sorted(files.items()), str(package))).encode()).hexdigest()[:12]
    site = folder / f"site-{digest}"
    try:
        for name, text in files.items():
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                replace_file(path, text.encode())
        link = site / "specdebug"
        if not link.is_symlink():
            _link(link, package)
    except OSError as error:
        raise SpecDebugError(f"cannot write {error.filename or site}: {error.strerror}") from None
    return site


def _link(link: Path, package: Path) -> None:
    """Link to the package; another process may do so at the same time."""
    beside = link.with_name(f".specdebug-{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(package)
    os.replace(beside, link)
