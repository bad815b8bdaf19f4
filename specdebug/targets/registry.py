"""Targets by name: ours, and those that other distributions add."""

from __future__ import annotations

import importlib

from specdebug.errors import ConfigError, did_you_mean
from specdebug.plugins import PluginRegistry
from specdebug.targets.base import Target

DEFAULT = "embedded"
OURS = {DEFAULT: "specdebug.targets.embedded", "reference": "specdebug.targets.reference"}
"""Modules that hold a ``TARGET``, by its name. Each is imported when it is first asked for."""

_ADDED: PluginRegistry[Target] = PluginRegistry("targets", "a Target", lambda part: hasattr(part, "open"), {})


def target_names() -> tuple[str, ...]:
    """Every target that a scenario can name."""
    return tuple(sorted({*OURS, *_ADDED}))


def find_target(name: str) -> Target:
    """A target by name. Raises ConfigError when there is none, PluginError when it cannot be imported."""
    try:
        found: Target = importlib.import_module(OURS[name]).TARGET if name in OURS else _ADDED[name]
    except KeyError:
        raise ConfigError(f"no target '{name}'{did_you_mean(name, target_names())}") from None
    return found
