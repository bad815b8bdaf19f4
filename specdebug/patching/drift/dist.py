"""One release of an engine: what it is, and the source of each of its modules."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from specdebug.base.errors import SpecDebugError, Where
from specdebug.base.yamlio import one_line
from specdebug.patching import PatchError
from specdebug.patching.drift.identity import identify
from specdebug.patching.drift.members import Members, open_members
from specdebug.patching.source import ModuleSource


class Dist:
    """A distribution to match patches against. Modules are read when asked for, and once."""

    def __init__(self, name: str, version: Version, members: Members) -> None:
        self.name = name
        self.version = version
        self._members = members
        self._sources: dict[str, ModuleSource] = {}
        self._roots: dict[str, str | None] = {}

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def path(self) -> Path:
        return self._members.path

    def source(self, module: str, where: Where | None = None) -> ModuleSource:
        """The text of a module. Raises PatchError, at ``where``, if there is none or it is no Python."""
        file = self._file(module)
        if file is None:
            raise PatchError(f"{self} has no module '{module}'", where)
        if file not in self._sources:
            place = self._members.place(file)
            try:
                source = ModuleSource(module, place, importlib.util.decode_source(self._members.read(file)))
                with warnings.catch_warnings():  # odd escapes of other code are not ours to report
                    warnings.simplefilter("ignore")
                    _ = source.tree
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise PatchError(f"{place} does not parse: {one_line(str(error))}", where) from None
            self._sources[file] = source
        return self._sources[file]

    def has_module(self, module: str) -> bool:
        return self._file(module) is not None

    def modules_that_mention(self, pattern: bytes) -> Iterator[str]:
        """Names of the engine's own modules whose bytes match a regular expression, in order of path."""
        wanted = re.compile(pattern)
        return (module for module, text in self._own_texts.items() if wanted.search(text))

    @cached_property
    def _own_texts(self) -> dict[str, bytes]:
        package = self.name.replace("-", "_")
        root = self._root(package)
        if root is None:
            return {}
        files = [name for name in self._members.names if name.startswith(f"{root}{package}/") and name.endswith(".py")]
        stems = [name.removeprefix(root).removesuffix(".py").removesuffix("/__init__") for name in files]
        return {stem.replace("/", "."): self._members.read(name) for stem, name in zip(stems, files, strict=True)}

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._members.names)

    def _file(self, module: str) -> str | None:
        root = self._root(module.partition(".")[0])
        if root is None:
            return None
        stem = root + module.replace(".", "/")
        return next((file for file in (f"{stem}.py", f"{stem}/__init__.py") if file in self._names), None)

    def _root(self, package: str) -> str | None:
        """Folder (with its ``/``) that holds a top-level package: a real one first, the shallowest of those."""
        if package not in self._roots:
            found = {
                "".join(f"{part}/" for part in parts[:at])
                for name in self._members.names
                if name.endswith(".py") and package in name
                for parts in [name.split("/")]
                for at, part in enumerate(parts)
                if part == (package if at < len(parts) - 1 else f"{package}.py")
            }
            order = sorted(found, key=lambda root: (f"{root}{package}/__init__.py" not in self._names, root.count("/")))
            self._roots[package] = order[0] if order else None
        return self._roots[package]


def open_dist(path: str | Path, known: Collection[str], version: str | None = None) -> Dist:
    """Open a wheel, an sdist or a source tree of one of the ``known`` engines and find out which release it is.

    ``version``: for a source tree that does not say its own. Raises SpecDebugError if it cannot be read, is none of
    these, its version is unknown or no version, or differs from ``version``.
    """
    members = open_members(path)
    identity = identify(members, {canonicalize_name(name) for name in known})
    stated = _version(identity.version, members.path) if identity.version else None
    given = _version(version, "--version") if version else None
    if stated and given and stated != given:
        raise SpecDebugError(f"--version is {given}, but {members.path} says that it is {identity.name} {stated}")
    chosen = stated or given
    if chosen is None:
        raise SpecDebugError(
            f"{members.path} ({identity.name}) does not state its version; give --version, as in 0.5.13"
        )
    return Dist(identity.name, chosen, members)


def _version(text: str, owner: str | Path) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise SpecDebugError(f"{owner}: '{one_line(text, 60)}' is no version") from None
