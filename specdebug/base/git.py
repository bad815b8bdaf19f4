"""What git says of a repository, which is asked and never told."""

import os
import subprocess
from pathlib import Path

# Hooks of the repository have no business with what we ask, nor with our worktrees.
GIT = ("git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")


def ask(folder: Path, *words: str) -> str | None:
    """Return what git answers, None when it says no, or is not there."""
    try:
        asked = git(folder, *words)
    except FileNotFoundError:
        return None
    return asked.stdout.decode(errors="replace").strip() if asked.returncode == 0 else None


def git(folder: Path, *words: str, told: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, with ``told`` on its standard input. Raises FileNotFoundError where there is none."""
    return subprocess.run([*GIT, "-C", str(folder), *words], capture_output=True, env=environment(), input=told)


def environment() -> dict[str, str]:
    """Return our environment, less what a git hook that started us has set of another repository."""
    foreign = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    return {name: value for name, value in os.environ.items() if name not in foreign}
