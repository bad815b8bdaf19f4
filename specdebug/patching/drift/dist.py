"""One release of an engine: its files, which release it is, and the source of its modules. No code of it runs."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import os
import re
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from email.parser import BytesHeaderParser
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import tomllib
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from specdebug.base.errors import SpecDebugError, Where
from specdebug.base.yamlio import one_line
from specdebug.patching.source import ModuleSource, PatchError

MAX_MEMBER_BYTES = 16 << 20
MAX_TOTAL_BYTES = 512 << 20

_TAR_ENDINGS = (".tar.gz", ".tgz")
_METADATA = ("METADATA", "PKG-INFO", "pyproject.toml")
_VERSION_NAMES = ("__version__", "version")
_SKIPPED_FOLDERS = ("__pycache__", "node_modules")
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, OSError)
_NAME = re.compile(rb"[^\W\d]\w+")
_NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


class Members:
    """Python files and metadata of one distribution, read in memory and never unpacked.

    ``names``: paths with ``/`` and no leading folder of an sdist's, sorted. ``below``: the folder that they lie in.
    """

    def __init__(
        self, path: Path, names: Iterable[str], opened: Callable[[str], IO[bytes]], below: Path | None = None
    ) -> None:
        self.path = path
        self.names = sorted(names)
        self._opened = opened
        self._below = below

    def read(self, name: str) -> bytes:
        """Raises SpecDebugError for a file that is damaged, or larger than any source is."""
        try:
            with self._opened(name) as stream:
                data = stream.read(MAX_MEMBER_BYTES + 1)
        except _DAMAGE as error:
            raise SpecDebugError(f"{self.path}: {one_line(name)} cannot be read: {_reason(error)}") from None
        if len(data) > MAX_MEMBER_BYTES:
            limit = f"larger than {MAX_MEMBER_BYTES >> 20} MiB; no source is"
            raise SpecDebugError(f"{self.path}: {one_line(name)} is {limit}")
        return data

    def place(self, name: str) -> str:
        """A file as a person finds it: inside an archive its path there."""
        return str(self._below / name) if self._below else name


def open_members(path: str | Path) -> Members:
    """Open a wheel (.whl), an sdist (.tar.gz), a folder. Raises SpecDebugError for anything else, or a damaged one."""
    file = Path(path)
    shown = one_line(str(path), 200)
    try:
        if file.is_dir():
            return Members(file, _found_in(file), lambda name: (file / name).open("rb"), file)
        if not file.exists():
            raise SpecDebugError(f"{shown}: no such file or folder")
        if not file.is_file():
            raise SpecDebugError(f"{shown} is neither a regular file nor a folder")
    except (OSError, ValueError) as error:
        raise SpecDebugError(f"{shown} cannot be read: {_reason(error)}") from None
    if file.suffix == ".whl":
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile:
            raise SpecDebugError(f"{file} is no wheel: not a zip archive, or cut off; download it again") from None
        except _DAMAGE as error:
            raise SpecDebugError(f"{file} cannot be read: {_reason(error)}") from None
        return Members(file, filter(_wanted, archive.namelist()), archive.open)
    if file.name.endswith(_TAR_ENDINGS):
        files = _unpacked(file)
        return Members(file, files, lambda name: io.BytesIO(files[name]))
    raise SpecDebugError(f"{shown} is neither a wheel (.whl), an sdist (.tar.gz) nor a folder")


def open_package(folder: Path) -> Members:
    """The files of one package where it is installed, or in a checkout. Paths begin with its name."""
    names = [f"{folder.name}/{name}" for name in _found_in(folder, links=True)]
    return Members(folder, names, lambda name: (folder.parent / name).open("rb"), folder.parent)


def _unpacked(path: Path) -> dict[str, bytes]:
    """What an sdist holds: a compressed tar has no index, so everything wanted is read in one pass."""
    files: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if not member.isfile() or not _wanted(member.name):
                    continue
                total += member.size
                if total > MAX_TOTAL_BYTES:
                    raise SpecDebugError(f"{path} holds more than {MAX_TOTAL_BYTES >> 20} MiB of source")
                stream = archive.extractfile(member)
                files[member.name.removeprefix("./")] = stream.read(MAX_MEMBER_BYTES + 1) if stream else b""
    except _DAMAGE as error:
        message = f"{path} is no sdist: not a gzipped tar, or cut off; download it again ({_reason(error)})"
        raise SpecDebugError(message) from None
    tops = {name.partition("/")[0] for name in files}
    if len(tops) == 1 and all("/" in name for name in files):
        return {name.partition("/")[2]: data for name, data in files.items()}
    return files


def _found_in(root: Path, *, links: bool = False) -> Iterator[str]:
    """``links``: those to folders are followed."""
    for folder, folders, files in os.walk(root, followlinks=links):
        named = [one for one in folders if not one.startswith(".") and one not in _SKIPPED_FOLDERS]
        folders[:] = [one for one in named if not Path(folder, one, "pyvenv.cfg").exists()]
        below = Path(folder).relative_to(root)
        yield from ((below / each).as_posix() for each in files if _wanted(each) and Path(folder, each).is_file())


def _wanted(name: str) -> bool:
    return name.endswith(".py") or name.rpartition("/")[2] in _METADATA


def _reason(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return one_line(text) or type(error).__name__


class Identity(NamedTuple):
    """``version`` is None when nothing states it, as in a checkout whose version comes from its tags."""

    name: str
    version: str | None


def identify(members: Members, known: Collection[str]) -> Identity:
    """Name and version of a distribution. Raises SpecDebugError if nothing names it, or two of ``known`` are in there.

    In order: ``METADATA``, ``PKG-INFO``, ``pyproject.toml`` (also one folder down) with the files it takes its version
    from, a package folder with a known name. Among several distributions one of ``known`` counts.
    """
    wheels = [name for name in members.names if fnmatchcase(name, "*.dist-info/METADATA") and name.count("/") == 1]
    stated = [one for name in (*wheels, "PKG-INFO") if name in members.names for one in _of_metadata(members, name)]
    projects = [name for name in members.names if name.rpartition("/")[2] == "pyproject.toml" and name.count("/") < 2]
    stated += [one for name in sorted(projects, key=lambda one: one.count("/")) for one in _of_project(members, name)]
    found = [one for one in stated if one.name in known] or stated[:1]
    if len({one.name for one in found}) > 1:
        names = ", ".join(sorted({one.name for one in found}))
        raise SpecDebugError(f"{members.path} holds several engines ({names}); name the folder of one")
    if found:
        return next((one for one in found if one.version), found[0])
    folders = {folder for name in members.names for folder in name.split("/")[:-1]}
    for name in sorted(known):
        if name.replace("-", "_") in folders:
            return Identity(name, None)
    raise SpecDebugError(f"nothing in {members.path} says what it is: no METADATA, PKG-INFO or pyproject.toml")


def _of_metadata(members: Members, name: str) -> Iterator[Identity]:
    headers = BytesHeaderParser().parsebytes(members.read(name))
    if headers["Name"]:
        yield Identity(canonicalize_name(str(headers["Name"]).strip()), str(headers["Version"] or "").strip() or None)


def _of_project(members: Members, name: str) -> Iterator[Identity]:
    try:
        document = tomllib.loads(members.read(name).decode())
    except (ValueError, RecursionError) as error:  # of it: no TOML, no UTF-8, a number of too many digits, nested lists
        raise SpecDebugError(f"{members.place(name)} is no TOML: {one_line(str(error))}") from None
    project = _table(document, "project")
    if isinstance(project.get("name"), str):
        version = project.get("version")
        if not isinstance(version, str):
            # the version that a build wrote to a file, or that the package states in one
            folder = name.rpartition("/")[0]
            tool = _table(document, "tool")
            scm = _table(tool, "setuptools_scm")
            files = [scm.get("version_file"), scm.get("write_to"), _table(tool, "hatch", "version").get("path")]
            attribute = _table(tool, "setuptools", "dynamic", "version").get("attr")
            if isinstance(attribute, str):
                module = attribute.rpartition(".")[0].replace(".", "/")
                files += [f"{module}.py", f"{module}/__init__.py", f"src/{module}.py", f"src/{module}/__init__.py"]
            paths = [f"{folder}/{file}" if folder else str(file) for file in files if file]
            versions = (_constant(members.read(path)) for path in paths if path in members.names)
            version = next(filter(None, versions), None)
        yield Identity(canonicalize_name(project["name"]), version)


def _constant(source: bytes) -> str | None:
    """The text assigned to ``__version__`` or ``version`` at a file's own level."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except _NO_PYTHON:
        return None
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            nodes = [node for target in statement.targets for node in ast.walk(target)]
            named = any(isinstance(node, ast.Name) and node.id in _VERSION_NAMES for node in nodes)
            if named and isinstance(statement.value.value, str):
                return statement.value.value
    return None


def _table(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = document.get(key)
        document = value if isinstance(value, dict) else {}
    return document


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
            self._sources[file] = self._read(file, module, where)
        return self._sources[file]

    def own_sources(self, modules: Iterable[str]) -> Iterator[ModuleSource]:
        """The texts of many of the engine's own modules, less those that are no Python; none is kept."""
        for module in modules:
            with contextlib.suppress(PatchError):
                yield self._read(self._file(module) or module, module, None)

    def _read(self, file: str, module: str, where: Where | None) -> ModuleSource:
        place = self._members.place(file)
        try:
            source = ModuleSource(module, place, importlib.util.decode_source(self._members.read(file)))
            with warnings.catch_warnings():  # odd escapes of other code are not ours to report
                warnings.simplefilter("ignore")
                _ = source.tree
        except _NO_PYTHON as error:
            raise PatchError(f"{place} does not parse: {one_line(str(error))}", where) from None
        return source

    def has_module(self, module: str) -> bool:
        return self._file(module) is not None

    def modules_that_mention(self, pattern: bytes) -> Iterator[str]:
        """Names of the engine's own modules whose bytes match a regular expression, in order of path."""
        wanted = re.compile(pattern)
        return (module for module, text in self._own_texts.items() if wanted.search(text))

    def names_of_modules(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Each of the engine's own modules, and the names in its text."""
        for module, text in self._own_texts.items():
            yield module, frozenset(name.decode(errors="replace") for name in set(_NAME.findall(text)))

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
        unstated = f"{members.path} ({identity.name}) does not state its version"
        raise SpecDebugError(f"{unstated}; give --version, as in 0.5.13")
    return Dist(identity.name, chosen, members)


def _version(text: str, owner: str | Path) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise SpecDebugError(f"{owner}: '{one_line(text, 60)}' is no version") from None
