"""Tell which release a distribution is from what it says of itself. No code of it runs."""

from __future__ import annotations

import ast
import tomllib
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from fnmatch import fnmatchcase
from typing import Any

from packaging.utils import canonicalize_name

from specdebug.base.errors import SpecDebugError
from specdebug.base.yamlio import one_line
from specdebug.patching.drift.members import Members

_VERSION_NAMES = ("__version__", "version")


@dataclass(frozen=True)
class Identity:
    """``version`` is None when nothing states it, as in a checkout whose version comes from its tags."""

    name: str
    version: str | None


def identify(members: Members, known: Collection[str]) -> Identity:
    """Name and version of a distribution. Raises SpecDebugError if nothing names it, or two of ``known`` are in there.

    In order: a wheel's ``METADATA``, an sdist's ``PKG-INFO``, ``pyproject.toml`` (also one folder down, where monorepos
    keep it) with the files it takes its version from, and at last a package folder with a known name. Among several
    distributions (a ``site-packages``) one of ``known`` counts.
    """
    stated = list(_stated(members))
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


def _stated(members: Members) -> Iterator[Identity]:
    for name in members.names:
        if fnmatchcase(name, "*.dist-info/METADATA") and name.count("/") == 1:
            yield from _of_metadata(members.read(name))
    if "PKG-INFO" in members.names:
        yield from _of_metadata(members.read("PKG-INFO"))
    projects = [name for name in members.names if name.rpartition("/")[2] == "pyproject.toml" and name.count("/") < 2]
    for name in sorted(projects, key=lambda one: one.count("/")):
        yield from _of_project(members, name)


def _of_metadata(data: bytes) -> Iterator[Identity]:
    headers = BytesHeaderParser().parsebytes(data)
    if headers["Name"]:
        yield Identity(canonicalize_name(str(headers["Name"]).strip()), str(headers["Version"] or "").strip() or None)


def _of_project(members: Members, name: str) -> Iterator[Identity]:
    try:
        document = tomllib.loads(members.read(name).decode())
    except (ValueError, RecursionError) as error:  # of it: no TOML, no UTF-8, a number of too many digits, nested lists
        raise SpecDebugError(f"{members.place(name)} is no TOML: {one_line(str(error))}") from None
    project = _table(document, "project")
    if not isinstance(project.get("name"), str):
        return
    version = project.get("version")
    if not isinstance(version, str):
        version = _dynamic_version(members, name.rpartition("/")[0], _table(document, "tool"))
    yield Identity(canonicalize_name(project["name"]), version)


def _dynamic_version(members: Members, folder: str, tool: Mapping[str, Any]) -> str | None:
    """The version that a build wrote to a file, or that the package states in one."""
    scm, hatch = _table(tool, "setuptools_scm"), _table(_table(tool, "hatch"), "version")
    stated = _table(_table(tool, "setuptools"), "dynamic").get("version")
    files = [scm.get("version_file"), scm.get("write_to"), hatch.get("path")]
    attribute = stated.get("attr") if isinstance(stated, dict) else None
    if isinstance(attribute, str):
        module = attribute.rpartition(".")[0].replace(".", "/")
        files += [f"{module}.py", f"{module}/__init__.py", f"src/{module}.py", f"src/{module}/__init__.py"]
    for file in files:
        path = f"{folder}/{file}" if folder else str(file)
        if file and path in members.names and (version := _constant(members.read(path))):
            return version
    return None


def _constant(source: bytes) -> str | None:
    """The text assigned to ``__version__`` or ``version`` at a file's own level."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Constant):
            continue
        names = [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        if not set(names).isdisjoint(_VERSION_NAMES) and isinstance(statement.value.value, str):
            return statement.value.value
    return None


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}
