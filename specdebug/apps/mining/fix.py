"""A fix as git has it: its number, its subject, and the edits that take it back."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdebug.base.errors import SpecDebugError
from specdebug.base.git import ask, git
from specdebug.patching.reversal import Reversal, read_diff, reversals

_NUMBERED = re.compile(r"\(#(\d{1,7})\)|^Merge pull request #(\d{1,7})\b")
_GITHUB = re.compile(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$")
_OWN_NUMBERS = 1_000_000
"""Numbers of commits without one of a pull request begin here, above those of pull requests."""


@dataclass(frozen=True)
class Fix:
    """A commit, and what takes it back. ``number`` selects it: of its pull request, else made from its hash.
    ``left_out``: files that are not taken back, each with the reason."""

    commit: str
    number: int
    title: str
    url: str
    made: tuple[Reversal, ...]
    left_out: tuple[str, ...]

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions, classes and modules that its edits are in, as targets of patches."""
        return tuple(
            f"{each.source.name}:{name}" if name else each.source.name for each in self.made for name in each.edits
        )


def fix_of(top: Path, commit: str, heard: Callable[[str], None]) -> Fix:
    """A commit of the repository at ``top``. Each file is told to ``heard``, for one may take seconds. Raises
    SpecDebugError where it changes no code of a package, or no edits of whole lines take it back."""
    before = ask(top, "rev-parse", "--verify", "--quiet", f"{commit}^")
    if before is None:
        raise SpecDebugError(f"commit {commit[:10]} has no parent in {top}: there is nothing to go back to")
    diff = ("diff", "--no-color", "--no-ext-diff", "--no-renames", "-U0", before, commit)
    names = _text(git(top, *diff, "--name-only", "--", ":!*.py").stdout).splitlines()
    others = [f"{name}: no Python" for name in names]
    for each in others:
        heard(f"left out: {each}")
    asked = git(top, *diff, "--", "*.py")
    if not asked.stdout:
        raise SpecDebugError(f"commit {commit[:10]} changes no Python file")

    def text_of(path: str) -> str | None:
        shown = git(top, "show", f"{commit}:{path}")
        return _text(shown.stdout) if shown.returncode == 0 else None

    made, left_out = taken_back(_text(asked.stdout), text_of, heard)
    subject = _text(git(top, "show", "--no-patch", "--no-show-signature", "--format=%s", commit).stdout).strip()
    number, known = number_of(subject, commit)
    found = _GITHUB.search(ask(top, "remote", "get-url", "origin") or "")
    place = f"pull/{number}" if known else f"commit/{commit}"
    url = f"https://github.com/{found[1]}/{place}" if found else ""
    return Fix(commit, number, subject, url, made, (*others, *left_out))


def fix_named(top: Path, name: str) -> str:
    """The commit of a fix by the number of its pull request, which ends its subject, or at least stands in it, else by
    its own name. Raises SpecDebugError."""
    found = ask(top, "log", "--all", "--format=%H %s", "--fixed-strings", f"--grep=(#{name})") or ""
    lines = [line for line in found.splitlines() if f"(#{name})" in line]
    lines = [line for line in lines if line.endswith(f"(#{name})")] or lines
    commit = lines[-1].split()[0] if lines else ask(top, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if commit is None:
        raise SpecDebugError(f"no commit of {top} has (#{name}) in its subject, nor is {name} a commit there")
    return commit


def number_of(subject: str, commit: str) -> tuple[int, bool]:
    """The number that a fix is selected by, and whether its subject has it: the last ``(#N)``, for a pick names its
    own behind that of the fix that it picks; else one that its hash makes."""
    found = [first or second for first, second in _NUMBERED.findall(subject)]
    if found and int(found[-1]):
        return int(found[-1]), True
    return _OWN_NUMBERS + int(commit[:12], 16) % (8 * _OWN_NUMBERS), False


def taken_back(
    diff: str, text_of: Callable[[str], str | None], heard: Callable[[str], None]
) -> tuple[tuple[Reversal, ...], tuple[str, ...]]:
    """Return what takes a diff back, and the files that are left out. Raises SpecDebugError where nothing is left."""
    made, left_out = list[Reversal](), list[str]()
    for each in reversals(read_diff(diff), text_of):
        if isinstance(each, Reversal):
            made.append(each)
            heard(f"taken back: {each.source.path}: {_edits(list(each.edits.values()))}")
        else:
            left_out.append(each)
            heard(f"left out: {each}")
    if not made:
        raise SpecDebugError("the diff changes no code of a package")
    return tuple(made), tuple(left_out)


def _edits(by_function: Sequence[Sequence[object]]) -> str:
    count = sum(map(len, by_function))
    return f"{count} edit{'' if count == 1 else 's'}"


def _text(found: bytes) -> str:
    return found.decode(errors="replace")
