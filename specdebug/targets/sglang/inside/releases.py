"""Releases of SGLang differ: tables say how, each by the first release that it is for."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from packaging.version import Version

from specdebug.targets.inside import VARIABLE

_T = TypeVar("_T")


@dataclass(frozen=True)
class StandIn:
    """What is put in the place of a name in a module of SGLang.

    Attributes:
        module: without ``sglang.`` in front.
        new: the name is there only where there is a GPU; else SGLang must have it.
    """

    module: str
    name: str
    value: Any
    new: bool = False

    def put(self) -> str:
        """Put it there; returns the place. Raises AttributeError where SGLang has no such name."""
        found = importlib.import_module(f"sglang.{self.module}")
        if not self.new:
            getattr(found, self.name)
        setattr(found, self.name, self.value)
        return f"{self.module.removeprefix('srt.')}.{self.name}"


def installed() -> str:
    """The release of SGLang that this process runs: as it was installed, for a checkout may call itself otherwise."""
    wanted = json.loads(os.environ.get(VARIABLE, "null")) or {}
    if named := wanted.get("release"):
        return str(named)
    version: str = importlib.import_module("sglang.version").__version__
    return version


def of_release(tables: Mapping[str, _T], release: str) -> _T:
    """The table of the newest release that is not newer than this one, or the oldest of all."""
    known = [first for first in tables if Version(first) <= Version(release)]
    return tables[max(known, key=Version) if known else min(tables, key=Version)]
