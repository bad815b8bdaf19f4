"""The store: a folder with one for each environment, and in that a record of what it is and how far it has come."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from specdebug.errors import SpecDebugError, one_line
from specdebug.files import NotOwn, cache_folder, read_file, replace_file, require_own
from specdebug.installs.recipe import nearest_recipe
from specdebug.installs.release import Release, between_releases, order

VARIABLE = "SPECDEBUG_ENGINES"
RECORD = "install.json"
_MAX_BYTES = 1 << 20


class StoreError(SpecDebugError):
    """There is no such environment, or its record cannot be read or written."""


@dataclass(frozen=True)
class Installed:
    """An environment. ``python``: its interpreter. ``ours``: made by us, in ``folder``, and no one else's. ``digest``:
    of the recipe; empty for an environment of the user's. ``done``: steps that were completed. ``checked``: what it did
    when it last served tokens; empty before."""

    folder: Path
    engine: str
    version: str
    device: str
    python: str
    ours: bool
    digest: str = ""
    done: tuple[str, ...] = ()
    checked: dict[str, Any] = field(default_factory=dict)

    @property
    def release(self) -> Release:
        return Release(self.engine, self.version)

    @property
    def like(self) -> str:
        """The release whose recipe is the nearest; its own version, where there is none."""
        nearest = nearest_recipe(self.engine, self.version)
        return self.version if nearest is None else nearest.version

    @property
    def versions(self) -> tuple[str, ...]:
        """Its own version; of a checkout between two releases, also that of the one before: patches for either are held
        against its files."""
        return (self.version, self.like) if between_releases(self.version) else (self.version,)

    @property
    def taken_as(self) -> str:
        """What follows where it is no release that is known, in words; empty of any other."""
        if order(self.like) == order(self.version):
            return ""
        known = f"{self.engine}=={self.like}"
        return (
            f"{self.release} is no release that specdebug has a recipe for: it is run as {known}, and reverts and "
            "probes are held against its own files"
        )

    @property
    def complete(self) -> bool:
        """Return True once everything is installed, checked or not."""
        return "installed" in self.done

    def write(self) -> None:
        """Keep the record. Raises StoreError."""
        plain = {**asdict(self), "folder": None}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / RECORD, (json.dumps(plain, indent=1) + "\n").encode())
        except OSError as error:
            raise StoreError(f"cannot write {self.folder / RECORD}: {error.strerror}") from None

    def after(self, step: str) -> Installed:
        """The record once a step is done, kept. Raises StoreError."""
        now = replace(self, done=(*self.done, step))
        now.write()
        return now


def store_folder(into: Path | None) -> Path:
    """The store: as told, else by the variable, else in the user's cache."""
    if into is not None:
        return into.absolute()
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    return cache_folder("engines")


def folder_of(store: Path, release: Release, device: str) -> Path:
    """The folder for a release in a store."""
    return store / f"{release.engine}-{release.version}-{device}"


def installed(store: Path) -> list[Installed]:
    """Every environment of a store, the newest release of an engine first. Raises StoreError for a damaged record."""
    found = [_read(path) for path in sorted(store.glob(f"*/{RECORD}"))]
    return sorted(found, key=lambda each: (each.engine, order(each.version)), reverse=True)


def find_installed(store: Path, release: Release, device: str | None = None) -> Installed:
    """The environment of a release; the newest that is complete, where no version is named. Raises StoreError."""
    every = [each for each in installed(store) if each.engine == release.engine and release.admits(each.version)]
    fitting = [each for each in every if device in (None, each.device)]
    complete = [each for each in fitting if each.complete]
    if complete:
        return complete[0]
    if fitting:
        raise StoreError(
            f"{fitting[0].release} in {fitting[0].folder} is not complete; go on with: {_install(release)}"
        )
    others = ", ".join(str(each.release) for each in installed(store)) or "nothing"
    raise StoreError(f"{release} is not installed in {store} ({others} is); install it with: {_install(release)}")


def remove(environment: Installed) -> None:
    """Delete an environment that is ours, or forget one of the user's. Raises StoreError."""
    try:
        shutil.rmtree(environment.folder)
    except OSError as error:
        raise StoreError(f"cannot remove {error.filename}: {error.strerror}") from None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep others from installing into a folder meanwhile. Raises StoreError where somebody does, or it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in (folder.parent, folder):
            require_own(each)
        lock = open(folder / ".lock", "wb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.filename} {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"another process installs into {folder}; wait until it has ended") from None
        yield


def _install(release: Release) -> str:
    return f"specdebug engines install {release}"


def _read(path: Path) -> Installed:
    try:
        for folder in (path.parent.parent, path.parent):
            require_own(folder)
        plain = json.loads(read_file(path, _MAX_BYTES, own=True))
        return Installed(**{**plain, "folder": path.parent, "done": tuple(plain["done"])})
    except NotOwn as error:
        raise StoreError(
            f"{error.filename} {error.strerror}: an environment's record names a program, so it must be yours; name a "
            f"store of your own by --into or {VARIABLE}"
        ) from None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        why = one_line(str(error), 80)
        raise StoreError(f"{path} is damaged ({why}); remove the folder and install again") from None
