"""The table of sites, generated from source: every probe call with its kind and its place.

A site must be a dotted name written as a string literal, so that it can be found by reading, selected by a
glob and recognised in the output of a crash.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from .kinds import PROBES

_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+")


class SiteNameError(ValueError):
    """A probe whose site cannot be read from the source; the message lists all of them, one a line."""


@dataclass(frozen=True, order=True)
class Site:
    """One kind of one probe call."""

    name: str
    kind: str
    """One of ``KINDS``."""
    path: str
    """Relative to the scanned folder."""
    line: int


def scan(package_dir: Path | str) -> list[Site]:
    """Every probe call in the ``*.py`` files beneath a folder (one of two kinds twice), by name, kind and place.

    Raises:
        SiteNameError: a site is not a string literal, or not a dotted name.
        SyntaxError: a file is not Python.
    """
    root = Path(package_dir)
    sites: list[Site] = []
    problems: list[str] = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), filename=str(file))):
            if not isinstance(node, ast.Call) or _called(node.func) not in PROBES:
                continue
            kinds, position = PROBES[_called(node.func)]
            argument = _site_argument(node, position)
            if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                problems.append(
                    f"{path}:{node.lineno}: the site of this {' and '.join(kinds)} probe must be a string literal"
                )
            elif not _NAME.fullmatch(argument.value):
                problems.append(f"{path}:{node.lineno}: the site {argument.value!r} must be a dotted name")
            else:
                sites += [Site(argument.value, kind, path, node.lineno) for kind in kinds]
    if problems:
        raise SiteNameError("\n".join(problems))
    return sorted(sites)


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _site_argument(call: ast.Call, position: int) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == "site":
            return keyword.value
    return call.args[position] if len(call.args) > position else None
