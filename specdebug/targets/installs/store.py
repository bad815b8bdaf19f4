"""The store: a folder for each environment, and in it a record of what it is, which packages it has, and how far it has
come."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from specdebug.base.errors import ContentError
from specdebug.base.files import NotOwn, cache_folder, read_file, require_own
from specdebug.base.schema import Item
from specdebug.base.yamlio import parse_json
from specdebug.targets.installs.release import Release, ReleaseError, between_releases, nearest_recipe, order, recipes
from specdebug.workers.machine_failure import blamed
from specdebug.workers.records import Lock, Record, RecordError

VARIABLE = "SPECDEBUG_ENGINES"
RECORD = "install.json"
_MAX_BYTES, _MAX_REPORT = 1 << 20, 256 << 20
_WAIT_S = 10.0
"""Seconds to wait for another process that writes to a record."""
Package = dict[str, str]
"""``version`` and, where pip knows it, ``sha256`` of the archive that it was installed from."""


def packages_in(report: Path) -> dict[str, Package]:
    """The packages that pip's report says it took, by their canonical names; none where there is no report, as of a
    step that had nothing to install. Raises OSError, ContentError for a report of another form."""
    packages: dict[str, Package] = {}
    try:
        for taken in json.loads(read_file(report, _MAX_REPORT)).get("install", ()):
            package = {"version": str(taken["metadata"]["version"])}
            if checksum := taken["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256"):
                package["sha256"] = str(checksum)
            packages[canonicalize_name(taken["metadata"]["name"])] = package
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ContentError(f"{report} is none of pip's: {type(error).__name__}: {error}") from None
    return packages


def drop_half_made(venv: Path) -> None:
    """Forget packages whose installation was cut short, so that pip installs them again: it takes one for installed as
    soon as its metadata is there, and writes INSTALLER once all of it is. Raises OSError."""
    for metadata in _metadata(venv):
        if not (metadata / "INSTALLER").exists():
            shutil.rmtree(metadata)


def _metadata(venv: Path) -> Iterator[Path]:
    return venv.glob("lib*/python*/site-packages/*.dist-info")


class StoreError(RecordError):
    """There is no such environment, or its record cannot be read or written."""


@dataclass(frozen=True)
class Installed:
    """An environment. ``python``: its interpreter. ``ours``: made by us, in ``folder``, and no one else's. ``digest``:
    of the recipe; empty for an environment of the user's. ``done``: steps that were completed. ``checked``: what it did
    when it last served tokens; empty before. ``packages``: what pip installed, by name. ``tree``: the folder, in front
    of what it imports, that has the code of a checkout in the place of its own (``trees.py``); empty without one."""

    folder: Path
    engine: str
    version: str
    device: str
    python: str
    ours: bool
    digest: str = ""
    done: tuple[str, ...] = ()
    checked: dict[str, Any] = field(default_factory=dict)
    packages: dict[str, Package] = field(default_factory=dict)
    tree: str = ""

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
        return (
            f"{self.release} is no release that specdebug has a recipe for: it is run as {self.engine}=={self.like}, "
            "and reverts and probes are held against its own files"
        )

    @property
    def mix(self) -> str:
        """As ``Recipe.mix``, of the recipe that it was made by."""
        return next((each.mix for each in recipes() if self.digest == each.digest), "")

    @property
    def complete(self) -> bool:
        """Return True once everything is installed, checked or not."""
        return "installed" in self.done

    @property
    def gone(self) -> str:
        """The finished steps whose result is gone, in words; empty where all is there."""
        if not self.done:
            return ""
        if not os.path.exists(self.python):
            return f"its Python {self.python} is gone"
        there = {canonicalize_name(metadata.name.partition("-")[0]) for metadata in _metadata(self.venv)}
        lacking = sorted(set(self.packages) - there) if self.ours else []
        return f"{len(lacking)} of its packages are gone, such as {lacking[0]}" if lacking else ""

    @property
    def venv(self) -> Path:
        """The virtual environment of one that is ours."""
        return self.folder / "venv"

    def write(self) -> None:
        """Keep the record. Raises StoreError."""
        record_in(self.folder).write(self.plain)

    @property
    def plain(self) -> dict[str, Any]:
        """As it is kept in its folder: all but where that is, and what was laid over it."""
        return {name: each for name, each in asdict(self).items() if name not in ("folder", "tree")}

    @classmethod
    def read(cls, item: Item, folder: Path) -> Installed:
        """Inverse of what is kept in a folder. Raises ContentError."""
        texts = ("engine", "version", "device", "python", "digest")
        table = item.table(required=(*texts, "ours", "done"), optional=("folder", "checked", "packages"))
        order(table["version"].text())
        checked, packages = (table[name].entries() if name in table else {} for name in ("checked", "packages"))
        package = {"required": ("version",), "optional": ("sha256",)}
        return cls(
            folder,
            **{name: table[name].text(empty=name == "digest") for name in texts},
            ours=table["ours"].boolean(),
            done=tuple(step.text() for step in table["done"].items()),
            checked={name: each.value for name, each in checked.items()},
            packages={
                name: {key: value.text() for key, value in each.table(**package).items()}
                for name, each in packages.items()
            },
        )

    def after(self, step: str, packages: Mapping[str, Package] | None = None) -> Installed:
        """The record once a step is done that took some packages, kept. Raises StoreError."""
        now = replace(self, done=(*self.done, step), packages={**self.packages, **(packages or {})})
        now.write()
        return now


def store_folder(into: Path | None) -> Path:
    """The store: as told, else by the variable, else in the user's cache."""
    named = into or os.environ.get(VARIABLE)
    return Path(named).absolute() if named else cache_folder("engines")


def folder_of(store: Path, release: Release, device: str) -> Path:
    """The folder for a release in a store."""
    return store / f"{release.engine}-{release.version}-{device}"


@dataclass(frozen=True)
class Damaged:
    """An environment whose record cannot be used, and why."""

    folder: Path
    error: StoreError

    def may_be(self, release: Release) -> bool:
        """Return True if the folder has the name of a release."""
        return self.folder.name.startswith(f"{release.engine}-{release.version or ''}")


def look(store: Path) -> tuple[list[Installed], list[Damaged]]:
    """Every environment of a store, the newest release of an engine first, and those with damaged records."""
    found: list[Installed] = []
    damaged: list[Damaged] = []
    for path in sorted(store.glob(f"*/{RECORD}")):
        try:
            found.append(_read(path))
        except StoreError as error:
            damaged.append(Damaged(path.parent, error))
    return sorted(found, key=lambda each: (each.engine, order(each.version)), reverse=True), damaged


def find_installed(store: Path, release: Release, device: str | None = None) -> Installed:
    """The environment of a release; the newest that can be used, where no version is named. Raises StoreError."""
    there, damaged = look(store)
    every = [each for each in there if each.engine == release.engine and release.admits(each.version)]
    fitting = [each for each in every if device in (None, each.device)]
    complete = [each for each in fitting if each.complete]
    for each in complete:
        if not each.gone:
            return each
    command = "specdebug engines install"
    if complete:
        again = f"{complete[0].release}" + ("" if complete[0].ours else " --python PATH")
        raise StoreError(f"{complete[0].release}: {complete[0].gone}; make it again with: {command} {again}")
    for lost in damaged:
        if lost.may_be(release):
            raise lost.error
    if fitting:
        where = f"{fitting[0].release} in {fitting[0].folder}"
        raise StoreError(f"{where} is not complete; go on with: {command} {release}")
    others = ", ".join(str(each.release) for each in there) or "nothing"
    raise StoreError(f"{release} is not installed in {store} ({others} is); install it with: {command} {release}")


def remove(folder: Path) -> None:
    """Delete an environment that is ours, or forget one of the user's. Raises StoreError."""
    with held(folder):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise StoreError(f"cannot remove {error.filename}: {error.strerror}") from None


def keep_check(there: Installed, checked: dict[str, Any]) -> Installed:
    """Keep what a check came to in the record as it is now. Raises StoreError."""
    record = record_in(there.folder)
    with Lock(record, wait_s=_WAIT_S):
        now = replace(_read(record.path), checked=checked)
        now.write()
        return now


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep others from installing into a folder meanwhile, until all that is started has ended. Raises StoreError where
    another process does, or it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in (folder.parent, folder):
            require_own(each)
    except OSError as error:
        raise blamed(StoreError, f"cannot make {folder}: {error.filename} {error.strerror}", error) from None
    with Lock(record_in(folder), shared=True):
        yield


def record_in(folder: Path) -> Record:
    """The record of an environment."""
    mend = "specdebug engines install makes it again"
    return Record(folder / RECORD, "the environment", f"name another store by --into or {VARIABLE}", mend, StoreError)


def _read(path: Path) -> Installed:
    """Raises StoreError."""
    record = record_in(path.parent)
    try:
        for folder in (path.parent.parent, path.parent):
            require_own(folder)
        return Installed.read(parse_json(read_file(path, _MAX_BYTES, own=True), str(path)).root, path.parent)
    except NotOwn as error:
        raise StoreError(
            f"{error.filename} {error.strerror}: an environment's record names a program, so it must be yours; name a "
            f"store of your own by --into or {VARIABLE}"
        ) from None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except (ContentError, ReleaseError) as error:
        raise record.damaged(error if isinstance(error, ContentError) else ContentError(str(error))) from None
