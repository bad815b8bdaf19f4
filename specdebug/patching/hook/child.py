"""The side of a process under ``specdebug run``: it is imported at the interpreter's start, before anything else.

It notes which packages are imported and from where; right before one with reverts is, it puts them in force. What it
notes goes into a file of this process at once, hits into memory that is mapped to a file: nothing is lost when the
process is killed. Python 3.9 and later; nothing but the standard library is imported before there is something to edit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from specdebug.patching.source import Patch

VARIABLE = "SPECDEBUG_RUN"
"""Names the folder of the run: ``wanted.json`` says what is wanted, in ``told`` each process writes its files."""
MISFIT = 125
"""Exit status of a process that cannot revert what it is asked to: it would be judged for what it is not."""


class Telling:
    """The file in which this process tells the run in a folder. One that is forked begins its own."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._file = -1

    def write(self, **facts: Any) -> None:
        try:
            if self._file < 0:
                path = os.path.join(self.folder, "told", f"{os.getpid()}-{os.urandom(3).hex()}.jsonl")
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                argv = [str(word)[:200] for word in getattr(sys, "orig_argv", sys.argv)[:8]]
                self.write(pid=os.getpid(), parent=os.getppid(), python=sys.version.split()[0], argv=argv)
            os.write(self._file, json.dumps(facts).encode() + b"\n")
        except OSError:  # the disk is full, or the folder is gone: the run says that nothing was told
            return

    def forked(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class _Hook:
    """Asks the other finders for a top-level package, notes it, and first puts reverts in force that belong to it."""

    def __init__(self, told: Telling, engines: dict[str, Any], sites: dict[str, Any], cells: dict[str, int]) -> None:
        self._told = told
        self._waiting = {name: engines.get(name, []) for name in {**engines, **sites}}
        self._sites = sites
        self._cells = cells
        self._counted: dict[int, int] = {}
        self._standard = getattr(sys, "stdlib_module_names", frozenset[str]())

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if "." in name or name in self._standard or name == __name__.partition(".")[0]:
            return None
        spec = self._asked(name, path, target)
        if spec is not None:
            places = spec.submodule_search_locations
            self._told.write(package=name, origin=spec.origin or (next(iter(places), "") if places else ""))
            if name in self._waiting:
                self._revert(name)
                return self._asked(name, path, target)  # by what is now in front of the other finders
        return spec

    def _asked(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        asked = [getattr(each, "find_spec", None) for each in sys.meta_path if each is not self]
        found = (find_spec(name, path, target) for find_spec in asked if find_spec)
        return next((spec for spec in found if spec is not None), None)

    def already(self) -> None:
        """Revert in packages that were imported before us, as a ``.pth`` file can have it."""
        for name in [each for each in self._waiting if each in sys.modules]:
            self._revert(name)

    def _revert(self, engine: str) -> None:
        fixes = self._waiting.pop(engine)
        version = _version(engine)
        for fix in fixes:
            ranges: dict[str, Any] = fix["ranges"]
            errors = []
            for wanted in ranges_in_order(ranges, version):
                try:
                    self._apply(_patches(ranges[wanted]))
                    self._told.write(applied=fix["pr"], engine=engine, version=version, range=wanted)
                    break
                except Exception as error:
                    errors.append(" ".join(str(error).split()))
            else:
                why = errors[0] if errors else f"no patches are for {engine} {version}"
                self._told.write(misfit=fix["pr"], engine=engine, version=version, why=why)
                sys.stderr.write(f"specdebug run: {fix['pr']} cannot be reverted in {engine}: {why}\n")
                sys.stderr.flush()
                os._exit(MISFIT)
        self._add_probes(engine, version)
        if self._counted:
            self._count()

    def _add_probes(self, engine: str, version: str | None) -> None:
        """Add the calls of our probes that fit; what does not is told, and no reason to end."""
        ranges = self._sites.pop(engine, {})
        for wanted in list(ranges_in_order(ranges, version))[:1]:
            for patch in ranges[wanted]:
                try:
                    self._apply(_patches([patch]), counted=False)
                except Exception as error:
                    self._told.write(no_site=patch["module"], why=" ".join(str(error).split()))

    def _apply(self, patches: Sequence[Patch], *, counted: bool = True) -> None:
        from specdebug.patching.apply import apply, leave_spawned_alone

        leave_spawned_alone()  # they start as this one did
        there = [patch for patch in patches if patch.module in sys.modules]
        rest = [patch for patch in patches if patch.module not in sys.modules]
        if there and sys.version_info < (3, 11):
            raise RuntimeError(f"{there[0].module} is imported before the hook, which needs Python 3.11 to change it")
        done = []
        try:
            for some, mode in ((there, "inprocess"), (rest, "import")):
                if some:
                    done.append(apply(some, mode))  # type: ignore[arg-type]
        except BaseException:
            for each in done:
                each.restore()
            raise
        for each in done if counted else ():
            edits = [edit.id for patch in each.patches for edit in patch.edits]
            self._counted.update(zip(each.counters, [self._cells[edit] for edit in edits]))

    def _count(self) -> None:
        from specdebug.patching import hits

        hits.count_in(os.path.join(self._told.folder, "told"), self._counted, f"{os.getpid()}-")

    def forked(self) -> None:
        self._told.forked()
        if self._counted:
            self._told.write(forked=True)
            self._count()


def begin(folder: str) -> None:
    """Do what the run's folder asks for."""
    with open(os.path.join(folder, "wanted.json"), "rb") as file:
        wanted = json.loads(file.read())
    told = Telling(folder)
    hook = _Hook(told, wanted["engines"], wanted["sites"], wanted["cells"])
    if wanted["sites"]:
        import builtins

        from specdebug.patching.hook.probing import NAME, AddedProbes

        setattr(builtins, NAME, AddedProbes(told, wanted["rules"]))
    told.write(begun=True)
    sys.meta_path.insert(0, hook)
    os.register_at_fork(after_in_child=hook.forked)
    hook.already()


def _version(engine: str) -> str | None:
    """The version of an engine's distribution; None of a bare checkout."""
    from importlib import metadata

    try:
        return metadata.version(engine)
    except metadata.PackageNotFoundError:
        return None


def ranges_in_order(ranges: Mapping[str, Any], version: str | None) -> Iterator[str]:
    """The range that has a version; where there is none, or the version is not known, all ranges, the last first: an
    edit fits only where the very lines are."""
    held = [each for each in ranges if version and in_range(version, each)]
    yield from held[:1] or reversed(list(ranges))


def in_range(version: str, wanted: str) -> bool:
    """Return True if a version is in a range such as ``>=0.5.12,<0.5.14``, as ``packaging`` has it with pre-releases
    let in; its newest does not run in all that we do. Nothing is in a range for a version of another form."""
    mine = _parsed(version)
    return mine is not None and all(_holds(mine, each) for each in wanted.split(",") if each.strip())


def _holds(mine: _Version, clause: str) -> bool:
    operator = clause.strip()[: 2 if "=" in clause else 1]
    bound = _parsed(clause.strip()[len(operator) :])
    if bound is None:
        return False
    if operator == "<":  # not the pre-releases of the bound
        final = bound.post < 0 and not bound.is_early
        return mine < bound and not (final and mine.is_early and mine.release == bound.release)
    if operator == ">":  # not its later builds
        return mine > bound and not (mine[:2] == bound[:2] and mine.post >= 0 > bound.post)
    told = {"==": mine == bound, "!=": mine != bound, "<=": mine <= bound, ">=": mine >= bound}
    return told.get(operator, False)


class _Version(NamedTuple):
    """A version in its order (PEP 440). ``stage``: 0 a development build, 1 to 3 a, b and rc with a number, 4 none."""

    release: tuple[int, ...]
    stage: tuple[int, int]
    post: int
    dev: float

    @property
    def is_early(self) -> bool:
        return self.stage < (4, 0) or self.dev < _NO_DEV


_NO_DEV = float("inf")
_FORM = r"v?(\d+(?:\.\d+)*)(?:[._-]?(a|b|rc)(\d+))?(?:\.post(\d+))?(?:\.dev(\d+))?(?:\+.*)?"


def _parsed(text: str) -> _Version | None:
    import re

    found = re.fullmatch(_FORM, text.strip())
    if found is None:
        return None
    numbers, letter, pre, post, dev = found.groups()
    release = [int(each) for each in numbers.split(".")]
    while len(release) > 1 and not release[-1]:
        release.pop()
    stage = ({"a": 1, "b": 2, "rc": 3}[letter], int(pre)) if letter else (0 if dev and not post else 4, 0)
    return _Version(tuple(release), stage, int(post or -1), float(dev) if dev else _NO_DEV)


def _patches(plain: Sequence[dict[str, Any]]) -> list[Patch]:
    """Patches out of plain data."""
    from specdebug.base.errors import Where
    from specdebug.patching.source import Edit, Patch

    made = []
    for patch in plain:
        places = [{name: Where(**each[name]) for name in ("match_at", "replacement_at")} for each in patch["edits"]]
        edits = tuple(Edit(**{**each, **where}) for each, where in zip(patch["edits"], places))
        made.append(Patch(**{**patch, "edits": edits, "where": Where(**patch["where"])}))
    return made
