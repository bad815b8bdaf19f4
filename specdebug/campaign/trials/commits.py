"""Trials of a command at the commits of a git repository, each checked out in a worktree beside the user's own.

A trial's set holds the commit that is checked out, or nothing for the good one. Only first parents are followed. Files
that the repository ignores (what was built) stay in a worktree as it goes from commit to commit."""

import contextlib
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdebug import __version__
from specdebug.base.errors import SpecDebugError
from specdebug.base.git import GIT, ask, environment, git
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Candidate
from specdebug.campaign.trials.command import (
    TAIL_CHARS,
    ThreadedSource,
    command_facts,
    limited,
    reader_state,
    result_of,
    trial_environment,
)
from specdebug.campaign.trials.state import command_state, digest_of
from specdebug.logs.scan import REVISION
from specdebug.workers.foreground import cannot_run, require_program
from specdebug.workers.system import is_gone


@dataclass
class _Slot:
    """A worktree, the commit in it, and ``ready`` once that has been built."""

    path: Path
    commit: str | None = None
    ready: bool = False


class CommitSource(ThreadedSource):
    """Runs a command at commits. Nothing shows that it ran their code (``proven``).

    Args:
        command: runs in the worktree, in the folder that corresponds to the current one; words that name files which
            the repository does not hold stand for those files.
        repo: a folder of the repository.
        good, bad: where the command does not fail, and where it does; ``good`` an ancestor of ``bad``.
        build: a shell command to run after a checkout. A commit where it fails is untestable.
        timeout_s: after this, the command is killed and has failed with ``hang``.

    Raises SpecDebugError when there is no such repository, commit or program, or ``good`` is no ancestor of ``bad``.
    """

    proven = False

    def __init__(
        self,
        command: Sequence[str],
        repo: Path,
        good: str,
        bad: str,
        *,
        build: str | None = None,
        capacity: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(capacity)
        self.top = top_of(repo)
        self._good, self._bad = (commit_of(self.top, name, option) for name, option in ((good, "good"), (bad, "bad")))
        self.candidates = between(self.top, self._good, self._bad, (good, bad))
        top, here = self.top.resolve(), Path.cwd().resolve()
        self._folder = here.relative_to(top) if here.is_relative_to(top) else Path()
        self._command = self._located(command)
        self._build = build
        self._timeout_s = timeout_s
        history = (self._good, self._bad, build or "", os.fspath(self._folder))
        self.question = digest_of(limited("commits", timeout_s), str(self.top), *history, *self._command)
        self.identity = digest_of(self.question, __version__, REVISION, *command_facts(self._command, self.top))
        self._worktrees = threading.Lock()
        self._broken: dict[str, str] = {}
        self._root: Path | None = None
        self._free: list[_Slot] = []

    def state(self) -> dict[str, str]:
        """Return that of the command, but for the repository, of which each trial has a commit of its own."""
        state = command_state(self._command, Path.cwd())
        own = {f"working tree {self.top}", *(word for word in self._command if self._has(self._folder / word))}
        return {**reader_state(), **{name: value for name, value in state.items() if name not in own}}

    def run(self, trial: Trial) -> TrialResult:
        commit = next(iter(trial.reverted), self._good)
        with self._worktrees:
            reason = self._broken.get(commit)
        if reason is not None:
            return TrialResult("untestable", None, 0.0, reason)
        slot = self._take(commit)
        try:
            return self._run_in(slot, commit, trial)
        finally:
            with self._worktrees:
                self._free.append(slot)

    def close(self) -> None:
        """Kill what runs, and remove the worktrees."""
        super().close()
        root, self._root = self._root, None
        if root is not None:
            _remove(self.top, root)

    def _run_in(self, slot: _Slot, commit: str, trial: Trial) -> TrialResult:
        if (slot.commit != commit or not slot.ready) and (reason := self._prepare(slot, commit)) is not None:
            with self._worktrees:
                self._broken[commit] = reason
            return TrialResult("untestable", None, 0.0, reason)
        cwd = slot.path / self._folder
        program = cwd / self._command[0]
        if not cwd.is_dir() or (os.sep in self._command[0] and not program.is_file()):
            missing = self._command[0] if cwd.is_dir() else self._folder
            return TrialResult("untestable", None, 0.0, f"commit {commit[:10]} has no {missing}")
        words = (str(program), *self._command[1:]) if os.sep in self._command[0] else self._command
        try:
            ended = self.execute(words, cwd=cwd, env=trial_environment(trial), timeout_s=self._timeout_s)
        except OSError as error:
            raise cannot_run(self._command[0], error) from None
        return result_of(ended)

    def _prepare(self, slot: _Slot, commit: str) -> str | None:
        fresh = slot.commit is None
        slot.commit, slot.ready = commit, False
        if fresh:
            with self._worktrees:  # git's list of worktrees is one for all
                words = ("-C", str(self.top), "worktree", "add", "--quiet", "--detach", "--force", str(slot.path))
                status, output = self._git(*words, commit)
        else:
            status, output = self._git("-C", str(slot.path), "checkout", "--quiet", "--detach", "--force", commit)
        if status == 0:
            status, output = self._git("-C", str(slot.path), "clean", "-ffdq")
        if status != 0:
            if fresh:
                slot.commit = None
                shutil.rmtree(slot.path, ignore_errors=True)
            return f"commit {commit[:10]} cannot be checked out: {output[-TAIL_CHARS:].strip()}"
        if self._build is not None:
            built = self.execute(["sh", "-c", self._build], cwd=slot.path, env=os.environ)
            if built.status != 0:
                return f"commit {commit[:10]} does not build: {built.output[-TAIL_CHARS:].strip()}"
        slot.ready = True
        return None

    def _git(self, *words: str) -> tuple[int, str]:
        ended = self.execute([*GIT, *words], cwd=self.top, env=environment())
        return ended.status, ended.output

    def _take(self, commit: str) -> _Slot:
        """Return a worktree that is not in use: with this commit, a new one, or the one unused for longest."""
        with self._worktrees:
            if self._root is None:
                self._root = _make_root(self.top)
                self._free = [_Slot(self._root / f"slot-{number}") for number in range(self.capacity)]
            chosen = next((slot for slot in self._free if slot.commit == commit), None)
            chosen = chosen or next((slot for slot in self._free if slot.commit is None), self._free[0])
            self._free.remove(chosen)
            return chosen

    def _located(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the command for another folder: files the repository lacks by their full path, the rest as it is."""
        here = Path.cwd()
        words: list[str] = []
        for word in command:
            file = here / word
            ours = not Path(word).is_absolute() and os.path.isfile(file) and not self._has(self._folder / word)
            words.append(str(file.resolve()) if ours and (words or os.sep in word) else word)
        program = words[0]
        if os.sep not in program or Path(program).is_absolute() or not self._has(self._folder / program):
            require_program(program, here)
        return tuple(words)

    def _has(self, path: Path) -> bool:
        name = os.path.normpath(path)
        return not name.startswith("..") and ask(self.top, "cat-file", "-e", f"{self._bad}:{name}") is not None


def _make_root(top: Path) -> Path:
    """Return a new folder for worktrees; those of this user's processes that are gone are removed, and no links."""
    for old in Path(tempfile.gettempdir()).glob("specdebug-commits-*"):
        owner = re.fullmatch(r"specdebug-commits-(\d{1,9})-\w+", old.name)
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            found = old.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if owner and ours and is_gone(int(owner[1])):
                _remove(top, old)
    return Path(tempfile.mkdtemp(prefix=f"specdebug-commits-{os.getpid()}-"))


def _remove(top: Path, root: Path) -> None:
    for slot in root.glob("slot-*"):
        ask(top, "worktree", "remove", "--force", str(slot))
    shutil.rmtree(root, ignore_errors=True)
    ask(top, "worktree", "prune")


def top_of(repo: Path) -> Path:
    """Return the top folder of the repository that a folder lies in. Raises SpecDebugError."""
    if shutil.which("git") is None:
        raise SpecDebugError("--over commits needs git, and there is no such command")
    if not repo.is_dir():
        raise SpecDebugError(f"there is no folder {repo}; name the repository with --repo")
    asked = git(repo, "rev-parse", "--show-toplevel")
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
