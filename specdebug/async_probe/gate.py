"""What probes are called, which are live and in which mode, and what one that found something says. Imports no torch.

Another kind of probe is a line of ``KINDS``, a check in ``checks.py``, a job for the kernels in ``jobs.py``, and its
function in ``probes.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

KINDS = ("nan", "inf", "oob", "page_aligned")
OF_INTEGERS = frozenset({"oob", "page_aligned"})
"""Kinds that integers can be bad by; floating-point numbers can be by any."""
PHRASES = ("below", "not below", "not a multiple of")
"""A bad value is one of these with regard to a bound."""
PROBES = {
    "maybe_detect_nan": (("nan",), 1),
    "maybe_detect_inf": (("inf",), 1),
    "maybe_detect_nonfinite": (("nan", "inf"), 1),
    "maybe_detect_oob": (("oob",), 3),
    "maybe_detect_page_aligned": (("page_aligned",), 2),
}
"""By function: the kinds that it probes for, and the position of the site among its arguments."""

OFF = "off"
ASSERT = "assert"
RECORD = "record"
MODES = (OFF, ASSERT, RECORD)

ENVIRONMENT_VARIABLE = "SGLANG_ENABLE_ASYNC_ASSERT"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("", "0", "false", "no", "off")

_NUMBER = r"-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|inf)|nan"
_LINE = re.compile(
    rf"async probe (?P<kind>{'|'.join(KINDS)})@(?P<site>[^\s:`'\"]+)"
    rf"(?:: value (?P<bound>(?:{'|'.join(PHRASES)}) (?:{_NUMBER})))?"
    rf"(?: \[step (?P<step>-?\d+), (?P<count>\d+) bad, first (?P<value>{_NUMBER}) at (?P<index>\d+)\])?"
)


@dataclass(frozen=True)
class Rule:
    """A mode for the probes of a glob, in which ``*`` matches dots too; None: the mode given to ``configure``."""

    glob: str
    mode: str | None = None
    kinds: tuple[str, ...] = KINDS

    def __post_init__(self) -> None:
        if self.mode is not None:
            _check(self.mode, "mode", MODES)
        for kind in self.kinds:
            _check(kind, "kind", KINDS)

    def covers(self, site: str, kind: str) -> bool:
        """Return True if the rule speaks of this probe."""
        return kind in self.kinds and fnmatchcase(site, self.glob)


class Gate:
    """A mode for every probe. Of the rules that cover a probe the last one decides; no rule: off.

    Without any rules at all, every probe runs in ``mode``. Mode ``off`` silences every rule. Raises ValueError for an
    unknown mode.
    """

    def __init__(self, mode: str, rules: Sequence[Rule] = ()) -> None:
        _check(mode, "mode", MODES)
        self._mode = mode
        self._rules = tuple(rules) or (Rule("*"),)
        self._live: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}

    @property
    def active(self) -> bool:
        """True if any probe can be live."""
        return self._mode != OFF and any(rule.mode != OFF for rule in self._rules)

    def mode(self, site: str, kind: str) -> str:
        """The mode of the probe of this kind at this site: one of ``MODES``."""
        covering = [rule for rule in self._rules if rule.covers(site, kind)]
        if self._mode == OFF or not covering:
            return OFF
        return covering[-1].mode or self._mode

    def live(self, site: str, kinds: tuple[str, ...]) -> Mapping[str, str]:
        """The modes of those of the kinds that are not off at this site; settled once, then looked up."""
        live = self._live.get((site, kinds))
        if live is None:
            modes = {kind: self.mode(site, kind) for kind in kinds}
            live = self._live[(site, kinds)] = {kind: mode for kind, mode in modes.items() if mode != OFF}
        return live


def _check(word: str, what: str, known: Sequence[str]) -> None:
    if word not in known:
        raise ValueError(f"unknown probe {what} {word!r}, expected one of {', '.join(known)}")


def mode_from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """``assert`` or ``off``, as the environment says. Raises ``ValueError`` when it says neither."""
    text = environment.get(ENVIRONMENT_VARIABLE, "")
    if text.strip().lower() in _TRUE:
        return ASSERT
    if text.strip().lower() in _FALSE:
        return OFF
    yes, no = "/".join(_TRUE), "/".join(_FALSE[1:])
    raise ValueError(f"{ENVIRONMENT_VARIABLE} is {text!r}, expected {yes} or {no}")


@dataclass(frozen=True)
class ProbeFinding:
    """One probe's finding in one tensor. Details are None when only the text of an assertion is known.

    ``kind``: nan, inf, oob or page_aligned. ``step``: as ``set_step`` last said. ``value``: the first bad element (for
    a relative oob its difference from ``relative_to``), ``index``: its place, flat (row-major), whatever the strides.
    ``count``: of bad elements. ``bound``: broken by the value, as in ``not below 2048`` or ``not a multiple of 16``.
    """

    site: str
    kind: str
    step: int | None = None
    index: int | None = None
    value: int | float | None = None
    count: int | None = None
    bound: str | None = None

    @property
    def signature(self) -> str:
        """``kind@site``."""
        return f"{self.kind}@{self.site}"

    def message(self) -> str:
        """The finding as the one line of an assertion; ``parse_message`` is its inverse."""
        text = f"async probe {self.signature}"
        if self.bound is not None:
            text += f": value {self.bound}"
        if self.count is not None:
            text += f" [step {self.step}, {self.count} bad, first {self.value!r} at {self.index}]"
        return text


def parse_message(text: str) -> ProbeFinding | None:
    """The first finding that ``text`` (an exception's or a driver's output) tells of, if any."""
    found = _LINE.search(text)
    if found is None:
        return None
    finding = ProbeFinding(found["site"], found["kind"], bound=found["bound"])
    if found["count"] is None:
        return finding
    step, index, count = (int(found[name]) for name in ("step", "index", "count"))
    value = int(found["value"]) if re.fullmatch(r"-?\d+", found["value"]) else float(found["value"])
    return replace(finding, step=step, index=index, value=value, count=count)
