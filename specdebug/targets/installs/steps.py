"""Install an environment, step by step: one that is cut short goes on with the step that it was at. Packages come from
where pip looks by the user's own settings; what it says is in a log, and on a terminal. A command ends with us."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from specdebug.base import interrupts
from specdebug.base.errors import ContentError, one_line
from specdebug.base.interpreters import other_python
from specdebug.targets.installs.release import (
    Recipe,
    Release,
    between_releases,
    checkout_version,
    nearest_recipe,
    order,
    python_for,
)
from specdebug.targets.installs.store import (
    Installed,
    Package,
    StoreError,
    drop_half_made,
    folder_of,
    held,
    look,
    packages_in,
)
from specdebug.workers.child import Child
from specdebug.workers.machine_failure import MachineFailed, MachineFailure, blamed, failure_in_log

_LOOK_S = 0.1
"""Seconds after which a signal is heard at the latest."""
_TAIL_BYTES = 8192


@dataclass(frozen=True)
class StepEnded:
    """The end of a command: ``status`` is negative for the signal that killed it, ``tail`` the end of what it said."""

    status: int
    tail: str = ""


def run_logged(words: Sequence[str], log: Path) -> StepEnded:
    """Run a command to its end. What it says goes to the end of a log, as far as there is room; on a terminal its
    progress is seen there. Raises StoreError where it cannot be started, KeyboardInterrupt for a signal."""
    watched = sys.stdout is not None and sys.stdout.isatty()
    streams = (None, subprocess.PIPE) if watched else (subprocess.PIPE, subprocess.STDOUT)
    with _started(words, *streams) as process:
        pipe = process.stderr if watched else process.stdout
        assert pipe is not None  # for the type checker: a pipe was asked for
        tail = b""
        for data in _said(process, pipe):
            tail = (tail + data)[-_TAIL_BYTES:]
            with contextlib.suppress(OSError), log.open("ab") as sink:
                sink.write(data)
            if watched and sys.stderr is not None:
                with contextlib.suppress(OSError):
                    sys.stderr.write(data.decode("utf-8", "replace"))
                    sys.stderr.flush()
        return StepEnded(process.wait(), tail.decode("utf-8", "replace"))


def ask(words: Sequence[str], timeout_s: float) -> tuple[str, str]:
    """Return what a command says on stdout, and on stderr. Raises StoreError where it cannot be started or takes too
    long, KeyboardInterrupt for a signal."""
    until = time.monotonic() + timeout_s
    with _started(words, subprocess.PIPE, subprocess.PIPE) as process:
        while time.monotonic() < until:
            interrupts.check()
            with contextlib.suppress(subprocess.TimeoutExpired):
                said, trouble = (each.decode("utf-8", "replace") for each in process.communicate(timeout=_LOOK_S))
                return said, trouble
    raise StoreError(f"{words[0]} did not answer within {timeout_s:g} s")


@contextmanager
def _started(words: Sequence[str], stdout: int | None, stderr: int) -> Iterator[Child]:
    """Start a command as a group of its own; whatever is left of that at the end is killed. Raises StoreError."""
    try:
        process = Child(words, os.environ, stdout=stdout, stderr=stderr)
    except OSError as error:
        raise blamed(StoreError, f"{words[0]} does not run: {error.strerror}", error) from None
    try:
        yield process
    finally:
        process.end()
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()


def _said(process: Child, pipe: IO[bytes]) -> Iterator[bytes]:
    """Yield what a process says until it has ended. Raises KeyboardInterrupt."""
    while True:
        interrupts.check()
        if select.select([pipe], [], [], _LOOK_S)[0]:
            if not (data := os.read(pipe.fileno(), 1 << 16)):
                break
            yield data
        elif process.poll() is not None:  # what it left in the background holds the pipe
            return
    while process.poll() is None:
        interrupts.check()
        time.sleep(_LOOK_S)


LOG = "install.log"
_REPORT = "pip-report.json"
_ROOM_BYTES = 64 << 10
"""A disk with less room is full."""
_ASK_S = 120.0
"""Seconds that an interpreter may take to say what it has."""
_PROBE = """
import importlib, importlib.metadata, json, sys, urllib.parse
name = sys.argv[1]
told = {"python": list(sys.version_info[:3]), "prefix": sys.prefix}
try:
    import torch
    told["torch"] = torch.__version__
    told["cuda"] = torch.cuda.is_available()
except ImportError as error:
    told["problem"] = f"torch cannot be imported: {error}"
for each in (name, name + "-cpu"):
    try:
        found = importlib.metadata.distribution(each)
    except importlib.metadata.PackageNotFoundError:
        continue
    told["version"] = found.version
    source = json.loads(found.read_text("direct_url.json") or "{}")
    if source.get("dir_info", {}).get("editable"):
        told["checkout"] = urllib.parse.unquote(urllib.parse.urlparse(source["url"]).path)
    break
print(json.dumps(told))
"""


class Steps(Protocol):
    """Told of each step."""

    def begin(self, what: str) -> None: ...
    def done(self, seconds: float) -> None: ...
    def skipped(self, what: str) -> None: ...


Run = Callable[[Sequence[str], Path], StepEnded]
"""Runs a command, its output going to a log, too."""


@dataclass(frozen=True)
class _Step:
    """``name`` in the record, ``what`` it does in words, and the command."""

    name: str
    what: str
    words: list[str]


def install(recipe: Recipe, store: Path, steps: Steps, run: Run = run_logged) -> Installed:
    """Install a release by its recipe, or go on with it. Raises SpecDebugError, KeyboardInterrupt for a signal."""
    python = python_for(recipe)
    folder = folder_of(store, recipe.release, recipe.device)
    with held(folder):
        now = _begun(recipe, folder)
        for step in _steps(recipe, now, python):
            if step.name in now.done:
                steps.skipped(step.what)
            else:
                now = now.after(step.name, _made(step, now, steps, run))
        return now if now.complete else now.after("installed")


def adopt(release: Release, device: str, python: Path, store: Path) -> Installed:
    """Take in an environment of the user's own, under the name of what is there: a checkout that comes after the
    release that is asked for is none itself. Raises StoreError, also for one that lacks the engine."""
    told = look_into(python, release.engine)
    if "version" not in told:
        raise StoreError(f"{python} has no {release.engine} installed")
    if problem := told.get("problem"):
        raise StoreError(f"{python}: {one_line(str(problem))}")
    version = str(told["version"])
    if "checkout" in told:
        version = checkout_version(Path(told["checkout"]), version)
        if release.version is not None and not any(order(version).release):  # built without tags: 0.0.0
            version = "+".join(filter(None, (release.version, order(version).local)))
    if not release.admits(version) and not _follows(release, version):
        raise StoreError(
            f"{python} has {release.engine} {version}, not {release.version}; to take it as what it is: "
            f"specdebug engines install {release.engine} --python {python}"
        )
    release = Release(release.engine, version)
    folder = folder_of(store, release, device)
    with held(folder):
        if any(each.folder == folder and each.ours for each in look(store)[0]):
            raise StoreError(f"{folder} is an environment of ours; remove it first: specdebug engines remove {release}")
        now = Installed(folder, release.engine, version, device, str(python.absolute()), False)
        return now.after("installed")


def _follows(release: Release, version: str) -> bool:
    """Return True if a version is no release itself, and comes after the one that is named and before the next."""
    if release.version is None or not between_releases(version):
        return False
    nearest = nearest_recipe(release.engine, version)
    return order(version).base_version == order(release.version).base_version or (
        nearest is not None and order(nearest.version) == order(release.version)
    )


def look_into(python: Path, engine: str) -> dict[str, Any]:
    """Ask an environment's own Python what it has. Raises StoreError where that does not run, KeyboardInterrupt for a
    signal."""
    said, trouble = ask(other_python(str(python), "-c", _PROBE, engine), _ASK_S)
    try:
        told: dict[str, Any] = json.loads(said)
    except ValueError:
        last = (trouble.strip().splitlines() or ["it said nothing"])[-1]
        raise StoreError(f"{python} is no Python that can be used: {one_line(last)}") from None
    return told


def _begun(recipe: Recipe, folder: Path) -> Installed:
    """The record to go on with: the one that is there, or a new one where the recipe is another now, the record is
    damaged, or what it is of has gone."""
    there = next((each for each in look(folder.parent)[0] if each.folder == folder), None)
    if there is not None and there.digest == recipe.digest and not there.gone:
        return there
    if there is not None and not there.ours:
        raise StoreError(
            f"{there.release} here is your own environment; forget it first: specdebug engines remove {there.release}"
        )
    python = folder / "venv" / "bin" / "python"
    record = Installed(folder, recipe.engine, recipe.version, recipe.device, str(python), True, recipe.digest)
    record.write()
    return record


def _steps(recipe: Recipe, now: Installed, python: str) -> list[_Step]:
    version = ".".join(map(str, sys.version_info[:3]))
    asks = other_python(now.python, "-m", "pip", "--disable-pip-version-check", "--no-input")
    pip = [*asks, "install", "--report", str(now.folder / _REPORT)]
    fetch = [*asks, "download", "--no-deps", "--only-binary", ":all:"]
    rest = [each for each in recipe.requirements if each not in recipe.first]
    wheel, site = now.folder / "over", now.venv / "lib" / f"python{version.rpartition('.')[0]}" / "site-packages"
    over = [
        _Step("over", f"{recipe.over}, for its Python files", [*fetch, "-d", str(wheel), recipe.over]),
        _Step(
            "overlay",
            f"the Python files of {recipe.over} over those that are installed",
            other_python(python, "-m", "specdebug.targets.installs.overlay", str(wheel), str(site), now.engine),
        ),
    ]
    told = f", without {len(recipe.left_out)} that are not needed here" if recipe.left_out else ""
    made = other_python(python, "-m", "venv", "--clear", str(now.venv))
    return [
        _Step("environment", f"an environment of Python {version} in {now.venv}", made),
        *(_Step(each, each, [*pip, each]) for each in recipe.first),
        _Step("packages", f"{len(rest)} packages{told}", [*pip, "--no-deps", *rest]),
        *(over if recipe.over else ()),
    ]


def _made(step: _Step, now: Installed, steps: Steps, run: Run) -> dict[str, Package]:
    """Do a step, and return the packages that it took. Raises StoreError."""
    report = now.folder / _REPORT
    steps.begin(step.what)
    began = time.monotonic()
    try:
        report.unlink(missing_ok=True)
        drop_half_made(now.venv)
        ended = run(step.words, now.folder / LOG)
        if ended.status:
            raise _failed(step, now.folder, ended)
        packages = packages_in(report)
        report.unlink(missing_ok=True)
    except OSError as error:
        raise blamed(StoreError, f"{error.filename or now.folder}: {error.strerror}", error) from None
    except ContentError as error:
        raise StoreError(f"pip's report cannot be read: {error}") from None
    steps.done(time.monotonic() - began)
    return packages


def _failed(step: _Step, folder: Path, ended: StepEnded) -> StoreError:
    """The error for a command that failed; exit code 125 where that was for want of room, memory or processes."""
    machine, disk = failure_in_log(ended.tail), os.statvfs(folder)
    # Not every command says so: venv hides what ensurepip says.
    if machine is None and disk.f_bavail * disk.f_frsize < _ROOM_BYTES:
        machine = MachineFailure("disk", f"{folder} has no room left")
    who = "pip" if "pip" in step.words else step.words[0]
    told = f"{who} ended with exit status {ended.status}"
    if machine is not None:
        made = StoreError(f"{told}: {machine.reason}; mend that, and the same command goes on from here")
        made.exit_code = MachineFailed.exit_code
        return made
    last = next((line for line in reversed(ended.tail.splitlines()) if line.strip()), "it said nothing")
    return StoreError(
        f"{told} ({one_line(last, 160)}); all that it said is in {folder / LOG}; the same command goes on from here"
    )
