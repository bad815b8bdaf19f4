"""Recipes: what it takes to install a release here, a file of ``_assets/engines`` for each that was tried.

On a CPU an engine is installed without what only a GPU needs: its own requirements are not asked, each package is named
with its version. With CUDA its own requirements hold.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from specdebug.base.errors import SpecDebugError
from specdebug.base.schema import Item
from specdebug.base.yamlio import load_yaml
from specdebug.targets.installs.release import ENGINES, Release, order

SHIPPED = Path(__file__).resolve().parents[2] / "_assets" / "engines"


@dataclass(frozen=True)
class Recipe:
    """The packages and the Python that a release needs here.

    Attributes:
        device: what it computes on, ``cpu`` or ``cuda``.
        pythons: versions of Python that it was tried on.
        requirements: packages, each with its version.
        first: of these, those that are installed by themselves, with all that they ask for.
        stand_ins: modules that it imports and never uses here: empty ones take their place.
        left_out: packages that it asks for and does not get, and why.
        says: what it can do here.
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

    @property
    def release(self) -> Release:
        return Release(self.engine, self.version)

    @property
    def digest(self) -> str:
        """Equal for equal recipes."""
        return hashlib.sha256(repr(asdict(self)).encode()).hexdigest()[:16]


def read_recipe(item: Item) -> Recipe:
    """The recipe that a file holds. Raises ContentError."""
    table = item.table(
        required=("engine", "version", "device", "pythons", "requirements"),
        optional=("first", "stand_ins", "left_out", "says"),
    )

    def texts(name: str) -> tuple[str, ...]:
        return tuple(each.text() for each in table[name].items()) if name in table else ()

    return Recipe(
        table["engine"].text(choices=ENGINES),
        table["version"].text(),
        table["device"].text(choices=("cpu", "cuda")),
        texts("pythons"),
        texts("requirements"),
        texts("first"),
        texts("stand_ins"),
        {name: why.text() for name, why in table["left_out"].entries().items()} if "left_out" in table else {},
        table["says"].text() if "says" in table else "",
    )


@cache
def recipes() -> tuple[Recipe, ...]:
    """Every recipe that is shipped, the newest release of an engine first."""
    read = [read_recipe(load_yaml(str(path)).root) for path in sorted(SHIPPED.glob("*.yaml"))]
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
