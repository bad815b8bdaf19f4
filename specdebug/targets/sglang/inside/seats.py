"""The places in SGLang's source that taps, readers and stand-ins hold on to, and which of them a release has: by its
files, which are read, never imported, in its own process as before anything is started (``targets/sglang/fit.py``)."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specdebug.targets.inside.source import Source

KERNELS = "sgl_kernel"
"""The package beside SGLang's that has what it imports where it is called; taken to have every name."""


class NoSeat(Exception):
    """A release has none of the places that something may be at."""


@dataclass(frozen=True)
class Seat:
    """Something of SGLang's, by the places that it has had, the newest first. ``look``: what is lost without it."""

    look: str
    places: tuple[str, ...]

    @property
    def module(self) -> str:
        """That of its newest place, below the package."""
        return self.places[0].partition(":")[0]

    def place(self, source: Source) -> str:
        """The first place that is there. Raises NoSeat."""
        found = next((each for each in self.places if each.startswith(f"{KERNELS}:") or source.has(each)), None)
        if found is None:
            raise NoSeat(f"SGLang has no {' nor '.join(self.places)}")
        return found

    def find(self) -> tuple[Any, str]:
        """Its owner, a module or a class, and its name there, in this process's SGLang. Raises NoSeat."""
        module, _, names = self.place(installed()).partition(":")
        owner: Any = importlib.import_module(module if module == KERNELS else f"sglang.{module}")
        *classes, name = names.split(".")
        for each in classes:
            owner = getattr(owner, each)
        return owner, name


RETRACT = Seat("a request set back", ("srt.managers.scheduler:TEST_RETRACT",))
"""SGLang's own switch, at which its decodes retract."""


def in_sglang(module: str) -> Any:
    """A module of this process's SGLang, by its path below the package."""
    return importlib.import_module(f"sglang.{module}")


@cache
def installed() -> Source:
    """The files of the SGLang that this process imports. Raises NoSeat where there is none."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise NoSeat("there is no SGLang here")
    return Source(Path(next(iter(spec.submodule_search_locations))))
