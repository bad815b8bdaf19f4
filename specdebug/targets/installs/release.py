"""Releases of engines, as they are named: ``sglang==0.5.13``, or ``sglang``, which is the newest of those there are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from specdebug.base.errors import SpecDebugError, did_you_mean, one_line

ENGINES = ("sglang", "vllm")
RELEASE = rf"({'|'.join(ENGINES)})(==[0-9A-Za-z.+!-]+)?"
"""A release, as a pattern."""
_RELEASE = re.compile(RELEASE)


class ReleaseError(SpecDebugError):
    """A text that should name a release names none."""


@dataclass(frozen=True)
class Release:
    """An engine, and its version unless any will do."""

    engine: str
    version: str | None = None

    def __str__(self) -> str:
        return self.engine if self.version is None else f"{self.engine}=={self.version}"

    def admits(self, version: str) -> bool:
        """Return True if a version is the one that is meant, or any is."""
        return self.version is None or order(self.version) == order(version)


def parse_release(text: str) -> Release:
    """Read ``sglang==0.5.13`` or ``vllm``. Raises ReleaseError."""
    name, _, version = text.partition("==")
    if name not in ENGINES:
        raise ReleaseError(f"no engine '{one_line(name, 40)}'{did_you_mean(name, ENGINES)}")
    if not _RELEASE.fullmatch(text):
        raise ReleaseError(f"'{one_line(text, 60)}' names no release; write {name}==VERSION")
    if version:
        order(version)
    return Release(name, version or None)


def order(version: str) -> Version:
    """By what versions are compared. Raises ReleaseError."""
    try:
        return Version(version)
    except InvalidVersion:
        raise ReleaseError(f"'{one_line(version, 40)}' is no version") from None


def between_releases(version: str) -> bool:
    """Return True for a version of no release, such as one of a checkout: ``0.5.14.dev57+gabc1234``."""
    found = order(version)
    return found.is_prerelease or found.is_postrelease or found.local is not None
