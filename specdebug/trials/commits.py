"""Trials of a command at the commits of a git repository, each checked out in a worktree beside the user's own.

A trial's set holds the one commit that is checked out, or nothing for the good one. Only first parents are followed,
so a merge counts as one commit.

Worktrees lie in the temporary folder, one for each trial that may run at a time, and go from commit to commit as git
does: files that the repository ignores (what was built) stay. They are removed at the end; those of a process that was
killed are removed by the next.
"""

from __future__ import annotations

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
from specdebug.bisect import Answer, OrderedBisector, Rates
from specdebug.logs.naming import REVISION
from specdebug.trials.command import (
    TAIL_CHARS,
    cannot_run,
    command_facts,
    digest_of,
    limited,
    require_program,
    result_of,
    trial_environment,
)
from specdebug.trials.repository import GIT, ask, between, commit_of, environment, top_of
from specdebug.trials.source import Candidate
from specdebug.trials.threads import ThreadedSource
from specdebug.trials.trial import Trial, TrialResult


@dataclass
class _Slot:
    """A worktree, and what is in it; ``ready`` says that it has been built."""

    path: Path
    commit: str | None = None
    ready: bool = False


class CommitChooser:
    """Picks commits: :class:`OrderedBisector`, its trials written as sets.

    Args:
        commits: after the good one, oldest first.
        confidence: posterior probability at which there is an answer.
    """

    def __init__(self, commits: Sequence[str], confidence: float) -> None:
        self._commits = commits
        self._position = {commit: position for position, commit in enumerate(commits)}
        self._bisector = OrderedBisector(commits, confidence=confidence)

    def next_trial(self, pending: Sequence[frozenset[str]] = ()) -> frozenset[str]:
        """The commit to try next."""
        chosen = self._bisector.next_trial([self._trial(one) for one in pending])
        return frozenset(self._commits[chosen : chosen + 1]) if chosen >= 0 else frozenset()

    def observe(self, reverted: frozenset[str], failed: bool | None) -> None:
        """Take in what came of one."""
        self._bisector.observe(self._trial(reverted), failed)

    def posterior(self, top: int) -> list[tuple[frozenset[str], float]]:
        """The likeliest first bad commits."""
        return self._bisector.posterior(top)

    @property
    def answer(self) -> Answer | None:
        """The first bad commit once it is certain enough."""
        return self._bisector.answer

    @property
    def rates(self) -> Rates:
        """Return how often it fails from the first bad commit on, and before."""
        return self._bisector.rates

    @property
    def stalled(self) -> bool:
        """Return whether the commits that could tell cannot be tested."""
        return self._bisector.stalled

    def _trial(self, reverted: frozenset[str]) -> int:
        return next((self._position[commit] for commit in reverted), -1)


class CommitSource(ThreadedSource):
    """Runs a command at commits.

    Args:
        command: the program and its arguments. It runs in the worktree, in the folder that corresponds to the current
            one; words that name files which the repository does not hold stand for those files.
        repo: a folder of the repository.
        good, bad: where the command does not fail, and where it does; ``good`` an ancestor of ``bad``.
        build: a shell command to run after a checkout. A commit where it fails is untestable.
        capacity: how many commits may be tried at a time.
        timeout_s: after this, the command is killed and has failed with ``hang``.

    Raises:
        CommitsError: no such repository or commit, or ``good`` is no ancestor of ``bad``.
        CommandError: there is no such program.
    """

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
        self._top = top_of(repo)
        self._good, self._bad = (commit_of(self._top, name, option) for name, option in ((good, "good"), (bad, "bad")))
        self._candidates = between(self._top, self._good, self._bad, (good, bad))
        self._folder = _folder_within(self._top, Path.cwd())
        self._command = self._located(command)
        self._build = build
        self._timeout_s = timeout_s
        self._identity = digest_of(
            *(
                limited("commits", timeout_s),
                __version__,
                REVISION,
                self._good,
                self._bad,
                build or "",
                os.fspath(self._folder),
            ),
            *command_facts(self._command, self._top),
        )
        self._lock = threading.Lock()
        self._broken: dict[str, str] = {}
        self._root: Path | None = None
        self._free: list[_Slot] = []

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The commits after the good one, up to the bad one, oldest first."""
        return self._candidates

    @property
    def identity(self) -> str:
        """The commits, the command, the time it may take, the files it names and how it is built."""
        return self._identity

    @property
    def top(self) -> Path:
        """The repository."""
        return self._top

    def run(self, trial: Trial) -> TrialResult:
        """Check out, build, run."""
        commit = next(iter(trial.reverted), self._good)
        with self._lock:
            reason = self._broken.get(commit)
        if reason is not None:
            return TrialResult("untestable", None, 0.0, reason)
        slot = self._take(commit)
        try:
            return self._run_in(slot, commit, trial)
        finally:
            with self._lock:
                self._free.append(slot)

    def close(self) -> None:
        """Kill what runs, remove the worktrees."""
        super().close()
        root, self._root = self._root, None
        if root is not None:
            _remove(self._top, root)

    def _run_in(self, slot: _Slot, commit: str, trial: Trial) -> TrialResult:
        if (slot.commit != commit or not slot.ready) and (reason := self._prepare(slot, commit)) is not None:
            with self._lock:
                self._broken[commit] = reason
            return TrialResult("untestable", None, 0.0, reason)
        cwd = slot.path / self._folder
        program = cwd / self._command[0]
        if not cwd.is_dir() or (os.sep in self._command[0] and not program.is_file()):
            missing = self._command[0] if cwd.is_dir() else self._folder
            return TrialResult("untestable", None, 0.0, f"commit {commit[:10]} has no {missing}")
        words = (str(program), *self._command[1:]) if os.sep in self._command[0] else self._command
        try:
            ended = self.processes.run(words, cwd=cwd, env=trial_environment(trial), timeout_s=self._timeout_s)
        except OSError as error:
            raise cannot_run(self._command[0], error) from None
        return result_of(ended)

    def _prepare(self, slot: _Slot, commit: str) -> str | None:
        """Check a commit out and build it. Returns why that failed, None if it did not."""
        fresh = slot.commit is None
        slot.commit, slot.ready = commit, False
        if fresh:
            with self._lock:  # git's list of worktrees is one for all
                words = ("-C", str(self._top), "worktree", "add", "--quiet", "--detach", "--force", str(slot.path))
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
            built = self.processes.run(["sh", "-c", self._build], cwd=slot.path, env=os.environ)
            if built.status != 0:
                return f"commit {commit[:10]} does not build: {built.output[-TAIL_CHARS:].strip()}"
        slot.ready = True
        return None

    def _git(self, *words: str) -> tuple[int, str]:
        ended = self.processes.run([*GIT, *words], cwd=self._top, env=environment())
        return ended.status, ended.output

    def _take(self, commit: str) -> _Slot:
        """A worktree that nobody uses: the one that has this commit, a new one, or the one unused for longest."""
        with self._lock:
            if self._root is None:
                self._root = _make_root(self._top)
                self._free = [_Slot(self._root / f"slot-{number}") for number in range(self.capacity)]
            chosen = next((slot for slot in self._free if slot.commit == commit), None)
            chosen = chosen or next((slot for slot in self._free if slot.commit is None), self._free[0])
            self._free.remove(chosen)
            return chosen

    def _located(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command for another folder: files the repository lacks by their full path, the rest as it is."""
        here = Path.cwd()
        words: list[str] = []
        for word in command:
            file = here / word
            ours = not Path(word).is_absolute() and _is_file(file) and not self._has(self._folder / word)
            words.append(str(file.resolve()) if ours and (words or os.sep in word) else word)
        program = words[0]
        if os.sep not in program or Path(program).is_absolute() or not self._has(self._folder / program):
            require_program(program, here)
        return tuple(words)

    def _has(self, path: Path) -> bool:
        """Return whether the bad commit holds a file."""
        name = os.path.normpath(path)
        return not name.startswith("..") and ask(self._top, "cat-file", "-e", f"{self._bad}:{name}") is not None


def _folder_within(top: Path, here: Path) -> Path:
    try:
        return here.resolve().relative_to(top.resolve())
    except ValueError:
        return Path()


def _make_root(top: Path) -> Path:
    """A new folder for worktrees; those of processes that are gone are removed."""
    for old in Path(tempfile.gettempdir()).glob("specdebug-commits-*"):
        owner = re.fullmatch(r"specdebug-commits-(\d{1,9})-\w+", old.name)
        if owner and not _alive(int(owner[1])) and _is_our_folder(old):
            _remove(top, old)
    return Path(tempfile.mkdtemp(prefix=f"specdebug-commits-{os.getpid()}-"))


def _is_our_folder(path: Path) -> bool:
    """Return whether it is a folder, no link to one, and this user's; not so once another process has removed it."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(top: Path, root: Path) -> None:
    for slot in root.glob("slot-*"):
        ask(top, "worktree", "remove", "--force", str(slot))
    shutil.rmtree(root, ignore_errors=True)
    ask(top, "worktree", "prune")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
