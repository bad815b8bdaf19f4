"""Targets by name: ours, and those that other distributions add."""

from __future__ import annotations

import importlib

from specdebug.base.errors import SpecDebugError, did_you_mean
from specdebug.base.plugins import PluginRegistry
from specdebug.targets.base import Target
from specdebug.targets.settings import SERVE, TargetChoice

DEFAULT = "embedded"
OURS = {DEFAULT: "specdebug.targets.embedded", "reference": "specdebug.targets.reference"}
"""Modules that hold a ``TARGET``, by its name. Each is imported when it is first asked for."""

SERVED = {
    "http": "specdebug.targets.http.target:HttpTarget",
    "launch": "specdebug.targets.launch.target:LaunchTarget",
    "sglang": "specdebug.targets.sglang.target:SglangTarget",
    "vllm": "specdebug.targets.vllm.target:VllmTarget",
}
"""Classes that are made of what a scenario says about a server, by the kind of that."""

_ADDED: PluginRegistry[Target] = PluginRegistry("targets", "a Target", lambda part: isinstance(part, Target), {})


def target_names() -> tuple[str, ...]:
    """Every target that a scenario can name."""
    return tuple(sorted({*OURS, SERVE, *_ADDED}))


def find_target(name: TargetChoice) -> Target:
    """A target by name, or a server. Raises SpecDebugError for none, PluginError for one that cannot be imported."""
    if not isinstance(name, str):
        module, _, made_by = SERVED[name.kind].partition(":")
        made: Target = getattr(importlib.import_module(module), made_by)(name)
        return made
    if name in SERVED:
        raise SpecDebugError(f"target '{name}' needs to know which: write {{{name}: ...}} (docs/http.md)")
    try:
        found: Target = importlib.import_module(OURS[name]).TARGET if name in OURS else _ADDED[name]
    except KeyError:
        raise SpecDebugError(f"no target '{name}'{did_you_mean(name, target_names())}") from None
    return found
