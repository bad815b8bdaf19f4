# ruff: noqa: F403, F405  (the names of ``probes`` are resolved lazily)
"""Probes in the middle of a model: they look at a tensor without waiting for the device.

``SGLANG_ENABLE_ASYNC_ASSERT=1`` makes every probe assert; :func:`configure` chooses site by site between asserting
(``torch._assert_async``: on a GPU the process dies at the next synchronisation, on a CPU the call raises) and recording
(read with :func:`drain` or, without waiting, :func:`poll`). A probe that is off costs one check of one global.

The package needs nothing but torch, and can be copied. Modes, rules, messages and sites are read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .gate import (
    ENVIRONMENT_VARIABLE,
    KINDS,
    MODES,
    PROBES,
    ProbeFinding,
    Rule,
    mode_from_environment,
    parse_message,
)

if TYPE_CHECKING:
    from .probes import *

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "KINDS",
    "MODES",
    "Capture",
    "ProbeFinding",
    "Rule",
    "SiteCall",
    "capturing",
    "configure",
    "drain",
    "grouped",
    "live",
    "mode_from_environment",
    "on_site",
    "parse_message",
    "poll",
    "prepare",
    "reached",
    "reset",
    "salvage",
    "set_step",
    "site_hook",
    "totals",
    *PROBES,
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.probes"), name)
    globals()[name] = value  # so that the next look costs no call
    return value
