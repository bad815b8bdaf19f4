"""The code of a checkout in the place of an installed release's own, beside the release's dependencies.

It is a folder of links, in front of what the environment imports. Of a working tree they lead into it. Of a commit a
folder that holds what the release's holds is a link to that, bytecode included, and only files that differ are written:
git's blobs are compared with the release's files by their hashes. What a build makes and git does not hold, compiled
modules and the version, is the release's either way.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from specdebug.base.errors import SpecDebugError, one_line
from specdebug.base.files import name_beside
from specdebug.base.git import ask, git
from specdebug.targets.installs.fit import package_of
from specdebug.targets.installs.store import Installed
from specdebug.workers.machine_failure import blamed

PLACES = ("python", ".", "src")
"""The folders of a checkout that may hold the package."""
TREES = "trees"
"""The folder of an environment that holds the code of others."""
_LINK, _COMMIT = "120000", "^{commit}"
_Node = dict[str, Any]
"""A folder: by name another, or the blob of a file; of a symbolic link a pair with that."""


def laid_over(here: Installed, tree: str, commit: str | None = None) -> Installed:
    """The release with a checkout's code in the place of its own: that of ``commit``, or of its files, of which new
    ones are seen by processes to come. Raises SpecDebugError where there is no such checkout, commit or package."""
    return replace(here, tree=str(_laid(package_of(here), here.folder / TREES, tree, commit)))


def forget(here: Installed, commits: Iterable[str]) -> None:
    """Remove the code of commits, by their whole hashes, that was laid over a release."""
    for commit in commits:
        shutil.rmtree(here.folder / TREES / commit, ignore_errors=True)
    _laid.cache_clear()


@cache
def _laid(package: Path, below: Path, tree: str, commit: str | None) -> Path:
    top = Path(tree).expanduser().absolute()
    if not top.is_dir():
        raise SpecDebugError(f"target.tree: there is no folder {top}")
    if commit is None:
        return _of_files(package, below, top)
    whole = ask(top, "rev-parse", "--verify", "--quiet", "--end-of-options", commit + _COMMIT)
    if whole is None:
        raise SpecDebugError(f"target.commit: no commit {one_line(commit, 60)} in {top}")
    return _whole(below / whole, partial(_of_commit, package, top, whole))


def _of_files(package: Path, below: Path, top: Path) -> Path:
    name = package.name
    own = next((found for place in PLACES if ((found := top / place / name) / "__init__.py").is_file()), None)
    if own is None:
        raise SpecDebugError(f"target.tree: {top} has no package {name}, nor have its folders python and src")
    built = [path for path in _built(package) if not (own / path).exists()]
    apart = {parent for path in built for parent in path.parents}
    listed = sorted(str(child) for folder in apart if (own / folder).is_dir() for child in (own / folder).iterdir())
    digest = hashlib.sha256("\0".join([str(own), *listed]).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def link(source: Path, inside: Path, folder: Path) -> None:
        """Make a folder of links to what a working tree's has; those of ``apart`` hold links themselves."""
        folder.mkdir()
        for child in source.iterdir():
            if inside / child.name in apart and child.is_dir():
                link(child, inside / child.name, folder / child.name)
            else:
                (folder / child.name).symlink_to(child)

    def make(beside: Path) -> None:
        link(own, Path(), beside / name)
        _link_built(package, beside / name, built)

    return _whole(below / digest, make)


def _of_commit(package: Path, top: Path, commit: str, beside: Path) -> None:
    top = Path(ask(top, "rev-parse", "--show-toplevel") or top)
    node, wanted = _node_of(top, commit, package.name), list[tuple[Path, Any]]()

    def link(node: _Node, known: _Node, own: Path, folder: Path) -> None:
        """Make a folder of what ``node`` has, with links to what the release's folder ``own`` has alike."""
        if node == known:
            folder.symlink_to(own)
            return
        folder.mkdir()
        for name, each in node.items():
            there = known.get(name)
            if isinstance(each, dict):
                link(each, there if isinstance(there, dict) else {}, own / name, folder / name)
            elif each == there:
                (folder / name).symlink_to(own / name)
            else:
                wanted.append((folder / name, each))

    link(node, _hashed(package), package, beside / package.name)
    _write(top, wanted)
    _link_built(package, beside / package.name, _built(package))


def _node_of(top: Path, commit: str, name: str) -> _Node:
    """The package as a commit has it. Raises SpecDebugError where it has none."""
    for place in PLACES:
        inside = os.path.normpath(f"{place}/{name}") + "/"
        node: _Node = {}
        listed = git(top, "ls-tree", "-r", "-z", "--full-tree", commit, "--", inside).stdout
        for entry in filter(None, os.fsdecode(listed).split("\0")):
            facts, _, path = entry.partition("\t")
            mode, kind, blob = facts.split()
            if kind == "blob":
                _put(node, path.removeprefix(inside).split("/"), (_LINK, blob) if mode == _LINK else blob)
        if "__init__.py" in node:
            return node
    raise SpecDebugError(f"target.commit: {commit[:12]} of {top} has no package {name}")


def _put(node: _Node, path: Iterable[str], blob: Any) -> None:
    *folders, name = path
    for each in folders:
        node = node.setdefault(each, {})
    node[name] = blob


def _write(top: Path, wanted: list[tuple[Path, Any]]) -> None:
    """Write blobs to files."""
    blobs = [blob if isinstance(blob, str) else blob[1] for _, blob in wanted]
    rest = git(top, "cat-file", "--batch", told="".join(f"{blob}\n" for blob in blobs).encode()).stdout
    for path, blob in wanted:
        head, _, rest = rest.partition(b"\n")
        size = int(head.split()[-1])
        data, rest = rest[:size], rest[size + 1 :]
        if isinstance(blob, str):
            path.write_bytes(data)
        else:
            path.symlink_to(os.fsdecode(data))


@cache
def _hashed(package: Path) -> _Node:
    """A release's package, by the blobs that git would have of its files."""
    node: _Node = {}
    for path in _files(package):
        data = path.read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        if not _is_built(path):
            _put(node, path.relative_to(package).parts, blob)
    return node


def _built(package: Path) -> list[Path]:
    """What a build made in a package, below it."""
    return [path.relative_to(package) for path in _files(package) if _is_built(path)]


def _link_built(package: Path, folder: Path, built: Iterable[Path]) -> None:
    for path in built:
        if (folder / path.parent).is_dir() and not (folder / path).exists():
            (folder / path).symlink_to(package / path)


def _is_built(path: Path) -> bool:
    return path.suffix == ".so" or path.name == "_version.py"


def _files(package: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(package):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        yield from (Path(top, name) for name in sorted(names))


def _whole(place: Path, make: Callable[[Path], None]) -> Path:
    """The folder ``place``, made unless it is there, and there once all of it is. Raises SpecDebugError."""
    if not place.exists():
        beside = name_beside(place)
        try:
            beside.mkdir(parents=True)
            make(beside)
            beside.rename(place)
        except OSError as error:
            if not place.exists():  # else another process was quicker
                told = f"cannot write {error.filename or place}: {error.strerror}"
                raise blamed(SpecDebugError, told, error) from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return place
