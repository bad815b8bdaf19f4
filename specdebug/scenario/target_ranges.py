"""Targets that a scenario speaks of besides its own: one by name, or releases, as ``sglang>=0.5.18,<0.5.23``, or one of
an engine's model runners, as ``vllm/v2``.

Where several fit a target, the last in the file counts.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from specdebug.base.errors import did_you_mean
from specdebug.targets.installs.release import ENGINES, RUNNERS
from specdebug.targets.installs.store import Installed, StoreError, find_installed, store_folder
from specdebug.targets.registry import target_names
from specdebug.targets.settings import SERVE, LaunchedServer, ReleasedEngine, TargetChoice

_BOUND = r"(==|!=|<=|>=|<|>)[0-9][0-9A-Za-z.+!-]*"
_NAME = r"[a-z0-9_.-]+(/[a-z0-9]+)?"
TARGET_RANGE = rf"{_NAME}({_BOUND}(,{_BOUND})*)?"  # a target's name, or an engine and versions of it, as a pattern
_NAMED = re.compile(rf"({_NAME})(.*)", re.DOTALL)
_RUNS = {f"{engine}/{runner}": engine for engine, runners in RUNNERS.items() for runner in runners}

_T = TypeVar("_T")


def complaint_of(text: str) -> str | None:
    """What is wrong with a text of the form of :data:`TARGET_RANGE`: there is no such target, or no such versions."""
    name, versions = _parts(text)
    if versions:
        if name not in (*ENGINES, *_RUNS):
            return f"'{name}' has no releases{did_you_mean(name, ENGINES)}"
        try:
            SpecifierSet(versions)
        except InvalidSpecifier:
            return f"'{versions}' names no versions; write for example {name}==0.5.13 or {name}>=0.5.18"
    known = (*ENGINES, *_RUNS, *target_names())
    return None if name in known else f"no target '{name}'{did_you_mean(name, known)}"


def said_of(table: Mapping[str, _T], target: TargetChoice) -> _T | None:
    """What a table says of a target, the last that fits; None where nothing does."""
    fitting = [value for text, value in table.items() if holds(text, target)]
    return fitting[-1] if fitting else None


def holds(text: str, target: TargetChoice) -> bool:
    """Return True if a target is meant. Of an engine without a version it is the newest that is installed."""
    name, versions = _parts(text)
    if isinstance(target, LaunchedServer):
        return name == target.command == SERVE
    if not isinstance(target, ReleasedEngine):
        return name == target
    if name not in (target.kind, target.runs) or not versions:
        return name in (target.kind, target.runs)
    version = version_of(target)
    return version is not None and SpecifierSet(versions, prereleases=True).contains(version)


def version_of(target: ReleasedEngine) -> str | None:
    """The version that is named, or the newest that is installed; None where none is, which the run will say."""
    if target.named.version is not None:
        return target.named.version
    there = environment_of(target)
    return None if there is None else there.version


def environment_of(target: ReleasedEngine) -> Installed | None:
    """What is installed of a target; None where nothing is."""
    try:
        return find_installed(store_folder(None if target.store is None else Path(target.store)), target.named)
    except StoreError:
        return None


def _parts(text: str) -> tuple[str, str]:
    found = _NAMED.fullmatch(text)
    return (text, "") if found is None else (found[1], found[3])
