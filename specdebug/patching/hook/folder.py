"""The folder of a run under the hook: the path entry that processes begin with, what is wanted, and what they told."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import specdebug
from specdebug.base.errors import SpecDebugError
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.patching.hook.child import VARIABLE

if TYPE_CHECKING:
    from specdebug.async_probe.gate import Rule
    from specdebug.patching.source import Patch
    from specdebug.patching.toggles import Toggle

PACKAGE = "_specdebug_run"
"""The name of our copy in processes that may import another specdebug."""
_COPIED = (
    *("patching/" + name for name in ("__init__", "apply", "compilers", "hits", "live", "match", "rewrite", "source")),
    *("patching/spawned", "patching/hook/child", "patching/hook/probing", "base/__init__", "base/errors"),
)
_RENAMED = (
    ("specdebug.patching.hook.child", f"{PACKAGE}.child"),
    ("specdebug.patching.hook.probing", f"{PACKAGE}.probing"),
    ("specdebug.patching", f"{PACKAGE}.patching"),
    ("specdebug.base", f"{PACKAGE}.base"),
    ("__specdebug_hit__", "__specdebug_run_hit__"),
)
_START_UP = f'''import os, sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin(folder):
    if sys.version_info >= (3, 9):
        from {PACKAGE}.child import begin

        begin(folder)
        return
    with open(os.path.join(folder, "told", "%d-old.jsonl" % os.getpid()), "w") as file:
        version = ".".join(map(str, sys.version_info[:3]))
        file.write('{{"pid": %d, "parent": 0, "python": "%s", "argv": []}}\\n' % (os.getpid(), version))


def _go_on():
    """Have the start-up module run that this one stands in front of."""
    from importlib import util
    from importlib.machinery import PathFinder

    found = PathFinder.find_spec("sitecustomize", [each for each in sys.path if os.path.abspath(each) != _HERE])
    if found is not None:
        module = sys.modules["sitecustomize"] = util.module_from_spec(found)
        found.loader.exec_module(module)


if os.path.isdir(os.environ.get("{VARIABLE}", "")) and "{PACKAGE}" not in sys.modules:
    _begin(os.environ["{VARIABLE}"])
_go_on()
'''
OLDEST = (3, 9)
"""The first Python that the hook runs in."""


@dataclass
class Process:
    """What one process told: its ``packages`` by name with their origins, by fix where it was ``applied`` or why it is
    a ``misfit``, by edit its ``hits``, how often each probe was ``reached`` at least, and how many bad values it
    ``found`` at least, with the first; ``no_sites``: why probes were not added."""

    pid: int
    parent: int
    python: str
    argv: tuple[str, ...]
    packages: dict[str, str] = field(default_factory=dict)
    applied: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    misfits: dict[int, str] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    found: dict[str, tuple[int, str]] = field(default_factory=dict)
    no_sites: list[str] = field(default_factory=list)

    @property
    def hooked(self) -> bool:
        """Return False for an interpreter that is too old."""
        return tuple(map(int, self.python.split(".")[:2])) >= OLDEST


@dataclass(frozen=True)
class Told:
    """All that the processes of a run told."""

    processes: tuple[Process, ...]

    @property
    def packages(self) -> dict[str, str]:
        """The packages that were imported, with the file or folder of each."""
        return {name: origin for each in self.processes for name, origin in each.packages.items()}

    @property
    def misfits(self) -> dict[int, str]:
        """By fix, why it could not be reverted."""
        return {pr: why for each in self.processes for pr, why in each.misfits.items()}

    def hits(self, pr: int) -> dict[str, int]:
        """How often each edit of a fix ran, in all processes."""
        found: dict[str, int] = {}
        for each in self.processes:
            for edit, count in each.hits.items():
                if edit.partition("#")[0] == str(pr):
                    found[edit] = found.get(edit, 0) + count
        return found


class HookedRun:
    """One run of a command under the hook, with some fixes reverted in whatever package has them. Its folder goes with
    :meth:`close`; a container needs it mounted at the same path, and the variables of :meth:`environment`."""

    def __init__(
        self,
        toggles: Iterable[Toggle] = (),
        rules: Sequence[Rule] = (),
        sites: Mapping[str, Mapping[str, Sequence[Patch]]] | None = None,
    ) -> None:
        """``sites``: by package and range of versions, patches that add probes, which are live as the ``rules`` say.
        Raises SpecDebugError where the folder cannot be made."""
        self._toggles = tuple(toggles)
        self._rules = [(rule.glob, rule.mode, rule.kinds) for rule in rules]
        self._sites = sites or {}
        self._edits: list[str] = []
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="specdebug-run-"))
            (self.folder / "told").mkdir()
            self._copy(self.folder / "site")
            (self.folder / "wanted.json").write_text(json.dumps(self._wanted()), encoding="utf-8")
        except OSError as error:
            raise SpecDebugError(f"cannot write {error.filename or tempfile.gettempdir()}: {error.strerror}") from None

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """These variables, with the path entry in front. The engines' own variable goes: the hook takes its place."""
        path = os.pathsep.join([str(self.folder / "site"), *filter(None, [env.get("PYTHONPATH")])])
        return {
            **{name: value for name, value in env.items() if name != REVERT_VARIABLE},
            "PYTHONPATH": path,
            VARIABLE: str(self.folder),
        }

    def told(self) -> Told:
        """What the processes have told so far. A line that is cut off, its process having been killed, is left out."""
        processes = dict[int, Process]()
        for path in sorted((self.folder / "told").glob("*.jsonl")):
            process: Process | None = None
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    facts = json.loads(line)
                except ValueError:
                    continue
                if "pid" in facts:
                    process = Process(facts["pid"], facts["parent"], facts["python"], tuple(facts["argv"]))
                    processes[process.pid] = process
                elif process is not None:
                    _take(process, facts)
        for path in sorted((self.folder / "told").glob("*.hits")):
            counts = memoryview(path.read_bytes()).cast("Q")
            process = processes.get(int(path.name.partition("-")[0]))
            for edit, count in zip(self._edits, counts, strict=False):
                if process is not None and count:
                    process.hits[edit] = process.hits.get(edit, 0) + count
        return Told(tuple(sorted(processes.values(), key=lambda each: each.pid)))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> HookedRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wanted(self) -> dict[str, Any]:
        engines: dict[str, list[dict[str, Any]]] = {}
        for toggle in self._toggles:
            for engine, ranges in toggle.foreign.items():
                if engine in toggle.mends:  # there the patches put the fix in
                    continue
                plain = {wanted: [asdict(patch) for patch in patches] for wanted, patches in ranges.items()}
                engines.setdefault(engine, []).append({"pr": toggle.pr, "ranges": plain})
                found = [edit.id for patches in ranges.values() for patch in patches for edit in patch.edits]
                self._edits += [each for each in dict.fromkeys(found) if each not in self._edits]
        own = [toggle.pr for toggle in self._toggles if toggle.patches]
        sites = {
            name: {wanted: [asdict(patch) for patch in patches] for wanted, patches in ranges.items()}
            for name, ranges in self._sites.items()
        }
        wanted = {"engines": engines, "own": own, "sites": sites, "rules": self._rules}
        return {**wanted, "cells": {edit: cell for cell, edit in enumerate(self._edits)}}

    def _copy(self, site: Path) -> None:
        package, source = site / PACKAGE, Path(specdebug.__file__).parent
        for name in _COPIED:
            text = (source / f"{name}.py").read_text(encoding="utf-8")
            for ours, theirs in _RENAMED:
                text = text.replace(ours, theirs)
            place = package / f"{name.removeprefix('patching/hook/')}.py"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        (package / "__init__.py").touch()
        (site / "sitecustomize.py").write_text(_START_UP, encoding="utf-8")


def _take(process: Process, facts: Mapping[str, Any]) -> None:
    if "package" in facts:
        process.packages[facts["package"]] = facts["origin"]
    elif "applied" in facts:
        process.applied[facts["applied"]] = facts
    elif "misfit" in facts:
        process.misfits[facts["misfit"]] = facts["why"]
    elif "reached" in facts:
        process.reached[facts["reached"]] = facts["times"]
    elif "finding" in facts:
        _, first = process.found.get(facts["finding"], (0, facts["first"]))
        process.found[facts["finding"]] = facts["bad"], first
    elif "no_site" in facts:
        process.no_sites.append(f"no probe is added to {facts['no_site']}: {facts['why']}")
    elif "hits" in facts:  # of a specdebug that was asked by the same folder
        process.hits.update(facts["hits"])


def refused(words: Sequence[str]) -> str | None:
    """Why the hook cannot reach a Python that a command's own words start; None where nothing is known against it."""
    program = Path(words[0]).name
    if not program.startswith(("python", "pypy")):
        return None
    for word in words[1:]:
        if not word.startswith("-") or word[1:] in ("c", "m", ""):  # what follows is the program's
            break
        if not word.startswith("--") and set(word[1:]) & set("IES"):
            return f"{program} {word} does not look at PYTHONPATH, by which the hook is found; leave {word} out"
    return None
