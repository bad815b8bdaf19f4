"""Ask git which commits of a repository lie between a good one and a bad one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.source import Candidate

# Hooks of the repository have no business with our worktrees.
GIT = ("git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")


def top_of(repo: Path) -> Path:
    """Return the top folder of the repository that a folder lies in. Raises SpecDebugError."""
    if shutil.which("git") is None:
        raise SpecDebugError("--over commits needs git, and there is no such command")
    if not repo.is_dir():
        raise SpecDebugError(f"there is no folder {repo}; name the repository with --repo")
    asked = _run(repo, "rev-parse", "--show-toplevel")
    if asked.returncode != 0:
        said = asked.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise SpecDebugError(f"{repo} is in no git repository that can be used ({said}); name one with --repo")
    return Path(asked.stdout.decode(errors="replace").strip())


def commit_of(top: Path, name: str, option: str) -> str:
    """Return the hash of the commit that ``--option`` names. Raises SpecDebugError."""
    found = ask(top, "rev-parse", "--verify", "--quiet", "--end-of-options", name + "^{commit}")
    if found is None:
        shallow = ask(top, "rev-parse", "--is-shallow-repository") == "true"
        hint = ", which is a shallow clone; `git fetch --unshallow --tags` gets the rest" if shallow else ""
        raise SpecDebugError(f"--{option} {name}: no such commit in {top}{hint}")
    return found


def between(top: Path, good: str, bad: str, names: tuple[str, str]) -> tuple[Candidate, ...]:
    """Return the commits after ``good`` up to ``bad``, oldest first. Raises SpecDebugError, which says ``names``."""
    if good == bad:
        raise SpecDebugError(f"--good {names[0]} and --bad {names[1]} are the same commit, {good[:10]}")
    if ask(top, "merge-base", "--is-ancestor", good, bad) is None:
        backwards = ask(top, "merge-base", "--is-ancestor", bad, good) is not None
        hint = "; the other way round it is" if backwards else ""
        raise SpecDebugError(f"--good {names[0]} is no ancestor of --bad {names[1]}{hint}")
    words = ("log", "--first-parent", "--reverse", "--no-show-signature", "--format=%H %s", f"{good}..{bad}")
    # A subject may be empty, or hold what Python takes for the end of a line.
    lines = (line.partition(" ") for line in (ask(top, *words) or "").split("\n"))
    return tuple(Candidate(commit, subject) for commit, _, subject in lines)


def ask(folder: Path, *words: str) -> str | None:
    """Return what git answers, None when it says no."""
    asked = _run(folder, *words)
    return asked.stdout.decode(errors="replace").strip() if asked.returncode == 0 else None


def changed_files(top: Path) -> list[tuple[str, str]]:
    """Return the files of a working tree that differ from its commit, or that git neither knows nor ignores, each with
    git's two letters for how."""
    words = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=none")
    asked = _run(top, "--no-optional-locks", *words)
    listed = os.fsdecode(asked.stdout).split("\0") if asked.returncode == 0 else []
    return [(entry[:2], entry[3:]) for entry in listed if len(entry) > 3]


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [*GIT, "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, env=environment(), stdin=subprocess.DEVNULL)


def environment() -> dict[str, str]:
    """Return our environment, less what a git hook that started us has set of another repository."""
    foreign = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    return {name: value for name, value in os.environ.items() if name not in foreign}
