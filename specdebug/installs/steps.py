"""Install an environment, step by step: one that is cut short goes on with the step that it was at.

Packages come from where pip looks by the user's own settings. On a terminal pip shows its progress; elsewhere a line is
said when a step begins and one when it ends, and what pip says is in a log.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from specdebug.errors import SpecDebugError, one_line
from specdebug.installs.checkout import checkout_version
from specdebug.installs.recipe import Recipe, nearest_recipe, python_for
from specdebug.installs.release import Release, between_releases, order
from specdebug.installs.store import Installed, folder_of, held, installed
from specdebug.interpreters import other_python

LOG = "install.log"
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


class InstallError(SpecDebugError):
    """A step failed; the message says where its output is."""


class Steps(Protocol):
    """Told of each step."""

    def begin(self, what: str) -> None: ...
    def done(self, seconds: float) -> None: ...
    def skipped(self, what: str) -> None: ...


Run = Callable[[Sequence[str], Path], int]
"""Runs a command, its output going to a log unless somebody watches; returns its exit status."""


def run_logged(words: Sequence[str], log: Path) -> int:
    """Run a command: on a terminal for all to see, else into the end of a log. Raises InstallError."""
    try:
        if sys.stdout is not None and sys.stdout.isatty():
            return subprocess.call(words)
        with log.open("ab") as sink:
            return subprocess.call(words, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    except OSError as error:
        raise InstallError(f"cannot run {words[0]}: {error.strerror}") from None


def install(recipe: Recipe, store: Path, steps: Steps, run: Run = run_logged) -> Installed:
    """Install a release by its recipe, or go on with it. Raises InstallError, StoreError or NoRecipe."""
    python = python_for(recipe)
    folder = folder_of(store, recipe.release, recipe.device)
    with held(folder):
        now = _begun(recipe, folder)
        interpreter = Path(now.python)
        pip = other_python(now.python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install")
        for name, what, words in _commands(recipe, folder, python, pip):
            if name in now.done:
                steps.skipped(what)
                continue
            if name != "environment" and not interpreter.exists():
                raise InstallError(f"{interpreter} is gone; remove {folder} and install again")
            _step(what, words, folder / LOG, steps, run)
            now = now.after(name)
        return now if now.complete else now.after("installed")


def adopt(release: Release, device: str, python: Path, store: Path) -> Installed:
    """Take in an environment of the user's own, under the name of what is there: a checkout that comes after the
    release that is asked for is none itself. Raises InstallError for one that lacks the engine, StoreError."""
    told = look_into(python, release.engine)
    if "version" not in told:
        raise InstallError(f"{python} has no {release.engine} installed")
    if problem := told.get("problem"):
        raise InstallError(f"{python}: {one_line(str(problem))}")
    version = str(told["version"])
    if "checkout" in told:
        version = checkout_version(Path(told["checkout"]), version)
        if release.version is not None and not any(order(version).release):  # built without tags: 0.0.0
            version = "+".join(filter(None, (release.version, order(version).local)))
    if not release.admits(version) and not _follows(release, version):
        other = f"{release.engine} --python {python}"
        raise InstallError(
            f"{python} has {release.engine} {version}, not {release.version}; to take it as what it is: "
            f"specdebug engines install {other}"
        )
    release = Release(release.engine, version)
    folder = folder_of(store, release, device)
    with held(folder):
        there = [each for each in installed(store) if each.folder == folder and each.ours]
        if there:
            raise InstallError(
                f"{folder} is an environment of ours; remove it first: specdebug engines remove {release}"
            )
        now = Installed(folder, release.engine, str(release.version), device, str(python.absolute()), False)
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
    """Ask an environment's own Python what it has. Raises InstallError where that does not run."""
    try:
        done = subprocess.run(
            other_python(str(python), "-c", _PROBE, engine),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        told: dict[str, Any] = json.loads(done.stdout)
    except OSError as error:
        raise InstallError(f"{python} does not run: {error.strerror}; name a Python interpreter") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"{python} did not answer within two minutes") from None
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InstallError(f"{python} is no Python that can be used: {one_line(last)}") from None
    return told


def _begun(recipe: Recipe, folder: Path) -> Installed:
    """The record to go on with: the one that is there, or a new one where the recipe is another now."""
    there = next((each for each in installed(folder.parent) if each.folder == folder), None)
    if there is not None and there.digest == recipe.digest:
        return there
    if there is not None and not there.ours:
        raise InstallError(
            f"{there.release} here is your own environment; forget it first: specdebug engines remove {there.release}"
        )
    python = folder / "venv" / "bin" / "python"
    record = Installed(folder, recipe.engine, recipe.version, recipe.device, str(python), True, recipe.digest)
    record.write()
    return record


def _commands(recipe: Recipe, folder: Path, python: str, pip: list[str]) -> list[tuple[str, str, list[str]]]:
    """Each step: its name, what it does in words, and the command."""
    version = ".".join(map(str, sys.version_info[:3]))
    made = ("environment", f"an environment of Python {version} in {folder / 'venv'}",
            other_python(python, "-m", "venv", "--clear", str(folder / "venv")))  # fmt: skip
    alone = [(each, each, [*pip, each]) for each in recipe.first]
    rest = [each for each in recipe.requirements if each not in recipe.first]
    told = f", without {len(recipe.left_out)} that are not needed here" if recipe.left_out else ""
    return [made, *alone, ("packages", f"{len(rest)} packages{told}", [*pip, "--no-deps", *rest])]


def _step(what: str, words: Sequence[str], log: Path, steps: Steps, run: Run) -> None:
    steps.begin(what)
    began = time.monotonic()
    status = run(words, log)
    if status:
        said = "what it says is above" if not log.exists() else f"{log} ends with: {_last_line(log)}"
        raise InstallError(
            f"pip ended with exit status {status} ({said}); the same command goes on from here"
            if "pip" in words
            else f"{words[0]} ended with exit status {status} ({said})"
        )
    steps.done(time.monotonic() - began)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return one_line(lines[-1], 160) if lines else "nothing"
