"""Releases of engines, as they are named (``sglang==0.5.13``), and recipes: what it takes to install one here, each a
file of ``_assets/engines``."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from specdebug.base.errors import SpecDebugError, did_you_mean, one_line
from specdebug.base.git import ask
from specdebug.base.schema import Item
from specdebug.base.yamlio import load_yaml

ENGINES = ("sglang", "vllm")
RUNNERS: Mapping[str, tuple[str, ...]] = {"vllm": ("v1", "v2")}
"""Engines that have several model runners, and their names, the one that serves unless another is named first."""
RELEASE = rf"({'|'.join(ENGINES)})(==[0-9A-Za-z.+!-]+)?"
"""A release, as a pattern."""
SHIPPED = Path(__file__).resolve().parents[2] / "_assets" / "engines"


class ReleaseError(SpecDebugError):
    """A text that should name a release names none."""


@dataclass(frozen=True)
class Release:
    """An engine, and its version unless any will do."""

    engine: str
    version: str | None = None

    def __str__(self) -> str:
        return self.engine if self.version is None else f"{self.engine}=={self.version}"

    def admits(self, version: str) -> bool:
        """Return True if a version is the one that is meant, or any is."""
        return self.version is None or order(self.version) == order(version)


def parse_release(text: str) -> Release:
    """Read ``sglang==0.5.13`` or ``vllm``. Raises ReleaseError."""
    name, _, version = text.partition("==")
    if name not in ENGINES:
        raise ReleaseError(f"no engine '{one_line(name, 40)}'{did_you_mean(name, ENGINES)}")
    if not re.fullmatch(RELEASE, text):
        raise ReleaseError(f"'{one_line(text, 60)}' names no release; write {name}==VERSION")
    if version:
        order(version)
    return Release(name, version or None)


def order(version: str) -> Version:
    """By what versions are compared. Raises ReleaseError."""
    try:
        return Version(version)
    except InvalidVersion:
        raise ReleaseError(f"'{one_line(version, 40)}' is no version") from None


def between_releases(version: str) -> bool:
    """Return True for a version of no release, such as one of a checkout: ``0.5.14.dev57+gabc1234``."""
    found = order(version)
    return found.is_prerelease or found.is_postrelease or found.local is not None


@dataclass(frozen=True)
class Recipe:
    """The packages and the Python that a release needs here. On a CPU an engine is installed without what only a GPU
    needs: its own requirements are not asked, each package is named with its version. With CUDA its own hold.

    Attributes:
        device: what it computes on, ``cpu`` or ``cuda``.
        pythons: versions of Python that it was tried on.
        requirements: packages, each with its version.
        first: of these, those that are installed by themselves, with all that they ask for.
        stand_ins: modules that it imports and never uses here: empty ones take their place.
        left_out: packages that it asks for and does not get, and why.
        says: what it can do here.
        over: a package whose Python files, of its wheel for any device, lie over those that are installed.
    """

    engine: str
    version: str
    device: str
    pythons: tuple[str, ...]
    requirements: tuple[str, ...]
    first: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    says: str = ""
    over: str = ""

    @property
    def release(self) -> Release:
        return Release(self.engine, self.version)

    @property
    def digest(self) -> str:
        """Equal for equal recipes."""
        plain = {name: each for name, each in asdict(self).items() if name != "over" or each}
        return hashlib.sha256(repr(plain).encode()).hexdigest()[:16]

    @property
    def mix(self) -> str:
        """What it is a mix of, in words; empty of a release as it is."""
        if not self.over:
            return ""
        below = next(each for each in self.requirements if each.startswith(f"{self.engine}-cpu=="))
        return f"a mix: the Python files are those of {self.over}, the compiled modules {below}'s"


def read_recipe(item: Item, others: Sequence[Recipe] = ()) -> Recipe:
    """The recipe that a file holds. One that is ``like`` another of its engine and device, among ``others``, says only
    what differs; a requirement that it names stands in the place of that of the same package. Raises ContentError."""
    lists = ("pythons", "requirements", "first", "stand_ins")
    table = item.table(required=("engine", "version", "device"), optional=("like", *lists, "left_out", "says", "over"))
    kind = (table["engine"].text(choices=ENGINES), table["device"].text(choices=("cpu", "cuda")))
    same = {each.version: each for each in others if (each.engine, each.device) == kind}
    base = same[table["like"].text(choices=tuple(same))] if "like" in table else None
    if base is None:
        table = item.table(required=("engine", "version", "device", "pythons", "requirements"), optional=tuple(table))
    said: dict[str, Any] = {name: tuple(each.text() for each in table[name].items()) for name in lists if name in table}
    if "left_out" in table:
        said["left_out"] = {name: why.text() for name, why in table["left_out"].entries().items()}
    said |= {name: table[name].text() for name in ("says", "over", "version") if name in table}
    if base is None:
        return Recipe(engine=kind[0], device=kind[1], **said)
    named = {each.partition("==")[0]: each for each in (*base.requirements, *said.get("requirements", ()))}
    left_out = {**base.left_out, **said.get("left_out", {})}
    return replace(base, **{**said, "requirements": tuple(named.values()), "left_out": left_out})


@cache
def recipes() -> tuple[Recipe, ...]:
    """Every recipe that is shipped, the newest release of an engine first."""
    read: list[Recipe] = []
    for path in sorted(SHIPPED.glob("*.yaml")):  # one that is like another comes behind it
        read.append(read_recipe(load_yaml(str(path)).root, read))
    return tuple(sorted(read, key=lambda each: (each.engine, order(each.version)), reverse=True))


def find_recipe(release: Release, device: str) -> Recipe:
    """The recipe for a release; the newest, where it names no version. Raises SpecDebugError."""
    of_engine = [each for each in recipes() if each.engine == release.engine]
    fitting = [each for each in of_engine if each.device == device and release.admits(each.version)]
    if fitting:
        return fitting[0]
    known = ", ".join(f"{each.release} --{each.device}" for each in of_engine) or "none"
    raise SpecDebugError(
        f"no recipe installs {release} for {device}; there are: {known}. An environment of your own that has it: "
        f"specdebug engines install {release} --python PATH"
    )


def nearest_recipe(engine: str, version: str, device: str | None = None) -> Recipe | None:
    """The recipe of the newest release that is not newer than a version, else of the oldest, for a device or for any;
    None where there is none."""
    of_engine = [each for each in recipes() if each.engine == engine and device in (None, each.device)]
    older = (each for each in of_engine if order(each.version) <= order(version))
    return next(older, of_engine[-1] if of_engine else None)


def python_for(recipe: Recipe) -> str:
    """The Python that an environment is made of: this one. Raises SpecDebugError where the release was not tried."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if own not in recipe.pythons:
        raise SpecDebugError(
            f"{recipe.release} was tried on Python {', '.join(recipe.pythons)}, and this is {own}; install specdebug "
            "there, or name an environment of your own by --python PATH"
        )
    return sys.executable


def checkout_version(folder: Path, metadata: str) -> str:
    """Return the version of a checkout that is installed editable, whose metadata may be of another day: the metadata's
    where that names its commit, or its tag; else one made of the last tag, how many commits there are since, and the
    commit, as ``0.5.13.post57+gabc1234``; the metadata's where git says nothing."""
    commit = ask(folder, "rev-parse", "HEAD")
    try:
        local = Version(metadata).local or ""
    except InvalidVersion:
        local = ""
    named = (part.removeprefix("g") for part in local.split("."))
    if not commit or any(len(part) >= 4 and commit.startswith(part) for part in named):
        return metadata
    described = re.fullmatch(
        r"v([0-9]+(?:\.[0-9]+)*(?:\.post[0-9]+|rc[0-9]+)?)-([0-9]+)-g[0-9a-f]+",
        ask(folder, "describe", "--tags", "--long", "--match", "v[0-9]*") or "",
    )
    if described is None:
        return f"{metadata.partition('+')[0]}+g{commit[:7]}"
    tag, since = Version(described[1]), int(described[2])
    return f"{tag.base_version}.post{since}+g{commit[:7]}" if since else str(tag)
