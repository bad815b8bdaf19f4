"""Tell what is wrong with an expected signature: whether a pattern could ever match one."""

from __future__ import annotations

import fnmatch

from specdebug.errors import did_you_mean
from specdebug.verdict.outcome import RANK

SITE_KINDS = tuple(sorted({*RANK, "oom"}))
"""Kinds written ``kind@site``; ``oom@cuda`` is the device's memory, ``oom`` alone the worker's own."""
BARE_KINDS = ("hang", "oom")
"""Kinds that can stand without a site."""
CRASH = "crash:"
"""A worker that died of a signal: ``crash:SIGSEGV``."""

SHAPE = r"^(crash:.+|hang|oom|[^@]+@.+)$"
"""The same as a regular expression, for the JSON schema; it does not know the kinds."""


def complaint(pattern: str) -> str | None:
    """The fault of a signature pattern (shell wildcards); None when it can match a signature."""
    kind, at, site = pattern.partition("@")
    if not at:
        if pattern in BARE_KINDS or (pattern.startswith(CRASH) and pattern != CRASH):
            return None
        if pattern in SITE_KINDS:
            return f"needs a site: '{pattern}@*' is any"
        return f"'{pattern}' names no failure{did_you_mean(pattern, (*SITE_KINDS, *BARE_KINDS, CRASH))}"
    if not site:
        return f"needs a site after '@': '{pattern}*' is any"
    if not fnmatch.filter(SITE_KINDS, kind):
        return f"'{kind}' is no kind of failure{did_you_mean(kind, SITE_KINDS)}"
    return None
