"""Expected signatures: what is wrong with one, and whether an outcome has it.

What is found in outputs is located before it is reported (``diverge/locate.py``): ``mismatch@request`` becomes
``mismatch@draft_extend.logits``. Searches count what was found, so one expectation may state both.
"""

import fnmatch
from collections.abc import Sequence

from specdebug.base.errors import did_you_mean
from specdebug.engine.sites import SITES
from specdebug.verdict.outcome import PASSED_ON, RANK, Outcome

SITE_KINDS = tuple(sorted({*RANK, "oom"}))
"""Kinds written ``kind@site``; ``oom@cuda`` is the device's memory, ``oom`` alone the worker's own."""
BARE_KINDS = ("hang", "oom")  # kinds that can stand without a site
CRASH = "crash:"  # a worker that died of a signal: crash:SIGSEGV

OUTPUTS = ("mismatch", "accept-drop", "sampling")
"""Kinds of what is found in outputs and in stored state, which began somewhere before."""
LATE = ("error@server.", "error@engine.", "ends@")
"""Beginnings of signatures of what a release raises, and of how a request ends: often for a value that came there."""
DECIDED = ("mismatch@acceptance",)
"""Signatures of those kinds that are judged by what the engine itself decided from: they name their place."""
SHARED = ("attention.", "kv_pool.")
"""Sites that the forwards of all stages pass: a place is written with its stage, as in ``verify.kv_pool.write.loc``."""
SCHEDULE = "schedule"
"""The place where a failure began if the engine went on with other requests, not with other numbers."""

SHAPE = r"^(crash:.+|hang|oom|[^@]+@.+)$"
"""The same as a regular expression, for the JSON schema; it does not know the kinds."""


def may_have_begun_before(outcome: Outcome, wanted: Sequence[str] = ()) -> bool:
    """Return True if a failure may have begun before what names it. What a tensor holds where a probe looks, and what
    is :data:`LATE`, did not, if that is ``wanted``: it is then where one of these patterns has it."""
    signature = outcome.signature or ""
    kind = signature.partition("@")[0]
    if outcome.verdict != "fail" or outcome.interrupted or outcome.located is not None or signature in DECIDED:
        return False
    passed_on = kind in PASSED_ON or signature.startswith(LATE)
    return kind in OUTPUTS or (passed_on and not stated(wanted, signature))


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


def names_place(pattern: str) -> bool:
    """Return True if a pattern is of located failures: one of :data:`OUTPUTS`, at a probe's site or the schedule."""
    kind, _, site = pattern.partition("@")
    behind_stage = site.partition(".")[2]
    if behind_stage.startswith(SHARED):
        site = behind_stage
    place = site == SCHEDULE or ("." in site and bool(fnmatch.filter(SITES, site)))
    return place and bool(fnmatch.filter(OUTPUTS, kind))


def stated(patterns: Sequence[str], signature: str | None, seen: str | None = None) -> bool:
    """Return True if one of the patterns is of a failure's signature. ``seen``: of one that was located, the signature
    of what was found; either may be stated, but the place counts where a place is."""
    places = [pattern for pattern in patterns if names_place(pattern)] if seen is not None else []
    names = (signature or "",) if places or seen is None else (signature or "", seen)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in places or patterns)
