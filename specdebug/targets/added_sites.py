"""Probe sites that an engine lacks: patches of ``probes/sites/``, which add calls to its source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from packaging.specifiers import SpecifierSet

from specdebug.base.content import shipped_root
from specdebug.base.yamlio import load_yaml
from specdebug.patching import Patch
from specdebug.patching.toggles import read_ranges
from specdebug.targets.installs.store import Installed

OWNER = "probe sites"


def added_sites(here: Installed, folder: Path | None = None) -> tuple[Patch, ...]:
    """The patches for an installed release; none where no file or range has it. Raises ContentError for a file that is
    malformed."""
    file = (folder or shipped_root() / "probes" / "sites") / f"{here.engine}.yaml"
    if not file.exists():
        return ()
    ranges = read_sites(file)
    for version in here.versions:
        for wanted, patches in ranges.items():
            if SpecifierSet(wanted, prereleases=True).contains(version):
                return patches
    return ()


def read_sites(file: Path) -> Mapping[str, tuple[Patch, ...]]:
    """Every patch of a file, by version range. Raises ContentError."""
    top = load_yaml(file).root.table(required=("engine", "patches"))
    top["engine"].text(choices=(file.stem,))
    return read_ranges(top["patches"], OWNER)
