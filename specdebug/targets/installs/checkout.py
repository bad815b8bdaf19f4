"""What a checkout of an engine is called that is installed editable, for its metadata may be of another day."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from packaging.version import InvalidVersion, Version

_DESCRIBED = re.compile(r"v([0-9]+(?:\.[0-9]+)*(?:\.post[0-9]+|rc[0-9]+)?)-([0-9]+)-g[0-9a-f]+")


def checkout_version(folder: Path, metadata: str) -> str:
    """Return the version of a checkout: the metadata's where that names its commit, or its tag; else one made of the
    last tag, how many commits there are since, and the commit; the metadata's where git says nothing.

    As in ``0.5.13.post57+gabc1234``: 57 commits after ``v0.5.13``.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit or _names(metadata, commit):
        return metadata
    described = _DESCRIBED.fullmatch(_git(folder, "describe", "--tags", "--long", "--match", "v[0-9]*"))
    if described is None:
        return f"{metadata.partition('+')[0]}+g{commit[:7]}"
    tag, since = Version(described[1]), int(described[2])
    if not since:
        return str(tag)
    return f"{tag.base_version}.post{since}+g{commit[:7]}"


def _names(metadata: str, commit: str) -> bool:
    """Return True if a version says which commit it is of, and it is this one."""
    try:
        local = Version(metadata).local or ""
    except InvalidVersion:
        return False
    named = (part.removeprefix("g") for part in local.split("."))
    return any(len(part) >= 4 and commit.startswith(part) for part in named)


def _git(folder: Path, *words: str) -> str:
    """What git says of a folder; nothing where it is none of its, or there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
