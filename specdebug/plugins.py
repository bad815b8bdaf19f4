"""What other distributions add to this one: targets, oracles, reports and parts of the engine, by entry point.

A distribution that has an oracle of its own declares it in its metadata::

    [project.entry-points."specdebug.oracles"]
    my-oracle = "my_package.my_module:MyOracle"

and from then on a scenario can name it. Each kind of addition is one group, ``specdebug.<kind>``; what its value must
be stands where the kind is defined (``targets/base.py``, ``run/oracles/base.py`` and so on). Nothing is imported before
somebody asks for it by name.
"""

from __future__ import annotations

import importlib.metadata
from functools import cache
from typing import Any

from specdebug.errors import SpecDebugError


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


def forget() -> None:
    """Look again for what is installed, the next time somebody asks."""
    _entry_points.cache_clear()
