"""The table of sites, generated from source: every probe call with its kind and its place.

A site must be a dotted name written as a string literal: to be read, selected by a glob and recognised after a crash.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from .gate import PROBES

_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+")


@dataclass(frozen=True, order=True)
class Site:
    """One kind (nan, inf, oob or page_aligned) of one probe call. ``path``: relative to the package folder."""

    name: str
    kind: str
    path: str
    line: int


def find_sites(package_dir: Path | str) -> list[Site]:
    """Every probe call in the ``*.py`` files beneath a folder (one of two kinds twice), by name, kind and place.

    Raises ValueError, a line for each, where a site is no string literal or no dotted name, and SyntaxError.
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
            named = [keyword.value for keyword in node.keywords if keyword.arg == "site"]
            argument = next(iter([*named, *node.args[position : position + 1]]), None)
            if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                probe = f"the site of this {' and '.join(kinds)} probe"
                problems.append(f"{path}:{node.lineno}: {probe} must be a string literal")
            elif not _NAME.fullmatch(argument.value):
                problems.append(f"{path}:{node.lineno}: the site {argument.value!r} must be a dotted name")
            else:
                sites += [Site(argument.value, kind, path, node.lineno) for kind in kinds]
    if problems:
        raise ValueError("\n".join(problems))
    return sorted(sites)


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
