"""Parts that other distributions add by entry point: targets, oracles, report formats and parts of the engine.

A distribution that has an oracle of its own declares it in its metadata::

    [project.entry-points."specdebug.oracles"]
    my-oracle = "my_package.my_module:MyOracle"

and from then on a scenario can name it. Each kind of addition is one group, ``specdebug.<kind>``; what its value must
be stands where the kind is defined: ``targets/base.py``, ``run/oracles/base.py``, ``report/formats.py``,
``attention_plans.py``, ``engine/speculative/registry.py``, ``engine/memory/kv_pool.py``. Nothing is imported before
somebody asks for it by name.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Generic, TypeVar

from specdebug.errors import SpecDebugError

T = TypeVar("T")


class PluginError(SpecDebugError):
    """A plugin cannot be imported, or is not what its group asks for."""


@cache
def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=f"specdebug.{kind}")}


def names(kind: str) -> tuple[str, ...]:
    """Names of all installed plugins of a kind, sorted."""
    return tuple(sorted(_entry_points(kind)))


def load(kind: str, name: str) -> Any:
    """Import a plugin. Raises KeyError when none has that name, PluginError when it cannot be imported."""
    point = _entry_points(kind)[name]
    try:
        return point.load()
    except Exception as error:
        where = f"{point.value} (plugin '{name}' of group specdebug.{kind})"
        raise PluginError(f"cannot import {where}: {type(error).__name__}: {error}") from error


def import_named(reference: str, purpose: str) -> Any:
    """The object that ``module:name`` names. Raises PluginError when there is none."""
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{purpose} cannot be loaded from {reference}: {error}") from error


class PluginRegistry(Mapping[str, T], Generic[T]):
    """The parts of one kind by name: ours, then those of installed packages.

    To look up one of ours reads nothing of the installed packages; to go through all of them does.

    Args:
        kind: the plugins' group is ``specdebug.<kind>``.
        called: a part, as messages have it with its article.
        fits: tells whether an object that an entry point leads to is such a part.
        ours: those that ship with this package.
    """

    def __init__(self, kind: str, called: str, fits: Callable[[Any], bool], ours: Mapping[str, T]) -> None:
        self.kind = kind
        self._called = called
        self._fits = fits
        self._ours = ours

    def __getitem__(self, name: str) -> T:
        """Raises KeyError for a name that no part has, PluginError for a plugin that cannot be used."""
        return self._ours[name] if name in self._ours else self._load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._ours, *names(self.kind))))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _load(self, name: str) -> T:
        part: T = load(self.kind, name)
        who = f"plugin '{name}' of group specdebug.{self.kind}"
        if not self._fits(part):
            raise PluginError(f"{who} must be {self._called}, not {type(part).__name__}")
        own = getattr(part, "name", name)
        if own != name:
            raise PluginError(f"{who} names itself '{own}'; the entry point and the part must have one name")
        return part


def forget() -> None:
    """Look again for what is installed, the next time somebody asks."""
    _entry_points.cache_clear()
