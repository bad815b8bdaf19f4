"""The folder that an engine's processes find us by: on their ``PYTHONPATH``, beside their own packages.

It holds a link to this package, so that nothing else of our environment gets into theirs, and what an engine needs
besides.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import specdebug
from specdebug.base.errors import SpecDebugError
from specdebug.base.files import name_beside, replace_file
from specdebug.workers.machine_failure import blamed


def make_import_folder(folder: Path, files: Mapping[str, str]) -> Path:
    """Make the folder, below another, with some files by path; one of the same content is taken as it is. Raises
    SpecDebugError."""
    package = Path(specdebug.__file__).resolve().parent
    digest = hashlib.sha256(repr((sorted(files.items()), str(package))).encode()).hexdigest()[:12]
    site = folder / f"site-{digest}"
    try:
        site.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                replace_file(path, text.encode())
        link = site / "specdebug"
        if not link.is_symlink():
            _link(link, package)
    except OSError as error:
        told = f"cannot write {error.filename or site}: {error.strerror}"
        raise blamed(SpecDebugError, told, error) from None
    return site


def _link(link: Path, package: Path) -> None:
    """Link to the package; another process may do so at the same time."""
    beside = name_beside(link)
    beside.symlink_to(package)
    os.replace(beside, link)
