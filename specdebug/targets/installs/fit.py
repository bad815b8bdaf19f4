"""The parts of ours that fit an installed release, told from its files before it is started: the patches of fixes that
are reverted or mended, those that add probe sites (``probes/sites/``), and our looks and stand-ins."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from specdebug.base.content import shipped_root
from specdebug.base.errors import SpecDebugError
from specdebug.base.interpreters import other_python
from specdebug.base.yamlio import load_yaml
from specdebug.patching import Patch
from specdebug.patching.drift.check import fit, why_none
from specdebug.patching.drift.dist import Dist, open_package
from specdebug.patching.match import place
from specdebug.patching.source import PatchError, walk_scopes
from specdebug.patching.toggles import Toggle, read_ranges
from specdebug.targets.inside.source import Source
from specdebug.targets.installs.store import Installed

_FIND = "import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]).submodule_search_locations[0])"


def patches_of(here: Installed, toggles: Sequence[Toggle]) -> list[Patch]:
    """The patches that revert some fixes in a release. Raises SpecDebugError for a fix that has none for it, or whose
    patches do not fit the files that are there."""
    if not toggles:
        return []
    dist = dist_of(here)
    found: list[Patch] = []
    for toggle in toggles:
        patches = _patches_for(here, toggle)
        if patches is None:
            raise SpecDebugError(f"{toggle.pr} cannot be reverted in {here.release}: {why_none(dist, toggle)}")
        for problem in fit(dist, patches).problems:
            near = f"; nearest is {problem.near.where}" if problem.near else ""
            raise SpecDebugError(f"{toggle.pr} does not fit {here.release} in {dist.path}: {problem.what}{near}")
        found += patches
    return found


def edit_imports(here: Installed, toggles: Sequence[Toggle]) -> frozenset[int]:
    """The numbers of those fixes that change what runs when a release is imported, as a dataclass's fields: they are
    reverted in processes that import it anew."""
    dist = dist_of(here)
    edits = ((toggle.pr, patch) for toggle in toggles for patch in _patches_for(here, toggle) or ())
    return frozenset(number for number, patch in edits if _edits_import(dist, patch))


def _edits_import(dist: Dist, patch: Patch) -> bool:
    try:
        source = dist.source(patch.module, patch.where)
        placed = [place(source, patch, edit, number) for number, edit in enumerate(patch.edits)]
    except PatchError:  # its trial says so
        return False
    functions = [node for _, node in walk_scopes(source.tree) if not isinstance(node, ast.ClassDef)]
    bodies = [(node.body[0].lineno, node.end_lineno or 0) for node in functions]
    return not all(any(first <= one.start <= last for first, last in bodies) for one in placed)


@dataclass(frozen=True)
class Mends:
    """Mends of a release's known bugs: the numbers of those that are put in, their patches, and why others are not, a
    line each."""

    numbers: tuple[int, ...] = ()
    patches: tuple[Patch, ...] = ()
    left_out: tuple[str, ...] = ()


def mends_of(here: Installed, toggles: Sequence[Toggle], known: Sequence[Toggle]) -> Mends:
    """Of the ``known`` fixes those that a release lacks, beside ``toggles``, which are put in anyway or reverted. One
    that edits what these do, or that does not fit the files that are there, is left out."""
    dist = dist_of(here)
    taken = [patch for toggle in toggles for patch in _patches_for(here, toggle) or ()]
    asked = {toggle.pr for toggle in toggles}
    numbers, mending, left_out = list[int](), list[Patch](), list[str]()
    for toggle in known:
        patches = _patches_for(here, toggle) if here.engine in toggle.mends and toggle.pr not in asked else None
        if patches is None:
            continue
        if problems := fit(dist, [*taken, *patches]).problems:
            left_out.append(f"{toggle.pr} is not mended: {problems[0].what}")
            continue
        taken += patches
        numbers.append(toggle.pr)
        mending += patches
    return Mends(tuple(numbers), tuple(mending), tuple(left_out))


def _patches_for(here: Installed, toggle: Toggle) -> tuple[Patch, ...] | None:
    """The patches of a fix for a release, by the first of the versions that it is taken for; None if it has none."""
    found = (toggle.edits_in(here.engine, version) for version in here.versions)
    return next((patches for patches in found if patches is not None), None)


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
    return read_ranges(top["patches"], "probe sites")


def sites_of(here: Installed, sites: Sequence[Patch]) -> tuple[list[Patch], list[str]]:
    """Those patches of added probe sites that fit a release, and why others do not, a line each."""
    fitting, lacking = _fitting(package_of(here), here.version, tuple(sites))
    return list(fitting), list(lacking)


@cache
def _fitting(package: Path, version: str, sites: tuple[Patch, ...]) -> tuple[tuple[Patch, ...], tuple[str, ...]]:
    """Looked up once in a process, and for those forked from it: every arm asks, and it takes half a second."""
    dist = Dist(package.name, Version(version), open_package(package))
    fitting, lacking = [], []
    for patch in sites:
        problems = fit(dist, [patch]).problems
        lacking += [f"no probe is added to {patch.target}: {problem.what}" for problem in problems]
        fitting += [] if problems else [patch]
    return tuple(fitting), tuple(lacking)


def place_of(here: Installed, patch: Patch) -> tuple[str | None, str]:
    """Where in a release the first edit of a patch lands, ``file:line`` within its packages; else None, and why it does
    not."""
    found = fit(dist_of(here), [patch])
    if found.problems:
        return None, found.problems[0].what
    path = Path(found.places[0].path)
    inside = path.parts[path.parts.index(here.engine) :] if here.engine in path.parts else path.parts
    return f"{'/'.join(inside)}:{found.places[0].line}", ""


def dist_of(here: Installed) -> Dist:
    """Return the files of the engine that an environment has, with its version."""
    return Dist(here.engine, Version(here.version), open_package(package_of(here)))


def source_of(here: Installed) -> Source:
    """The files of an installed engine. Raises SpecDebugError where it cannot be found any more."""
    return _source(package_of(here))


@cache
def _source(folder: Path) -> Source:
    return Source(folder)


def package_of(here: Installed) -> Path:
    """The folder of an engine's package. Raises SpecDebugError where it cannot be found any more."""
    return Path(here.tree) / here.engine if here.tree else _package(here.python, here.engine)


@cache
def _package(python: str, name: str) -> Path:
    words = other_python(python, "-c", _FIND, name)
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        raise SpecDebugError(f"{python} cannot import {name} any more; install it again") from None
    return Path(told.stdout.strip())


@dataclass(frozen=True)
class FitPart:
    """A look, or a stand-in for a part of the engine, and what it finds no place for there; nothing if it fits."""

    what: str
    stand_in: bool
    lost: tuple[str, ...]


def fit_of(here: Installed) -> Sequence[FitPart]:
    """Every part of ours for an installed release. Raises SpecDebugError where its files cannot be found any more."""
    return tuple(import_module(f"specdebug.targets.{here.engine}.fit").parts_of(here))
