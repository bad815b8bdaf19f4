"""Which of our looks and stand-ins fit an installed release of another engine, told from its files before it is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from specdebug.targets.installs.store import Installed


@dataclass(frozen=True)
class FitPart:
    """A look, or a stand-in for a part of the engine, and what it finds no place for there; nothing if it fits."""

    what: str
    stand_in: bool
    lost: tuple[str, ...]


def fit_of(here: Installed) -> Sequence[FitPart]:
    """Every part of ours for an installed release. Raises ConfigError where its files cannot be found any more."""
    return tuple(import_module(f"specdebug.targets.{here.engine}.fit").parts_of(here))
