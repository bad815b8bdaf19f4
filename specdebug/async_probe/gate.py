"""The gate of probes: which are live, and what a live one does. Settled once for a site's kinds, then looked up."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .kinds import KINDS

OFF = "off"
ASSERT = "assert"
RECORD = "record"
MODES = (OFF, ASSERT, RECORD)

ENVIRONMENT_VARIABLE = "SGLANG_ENABLE_ASYNC_ASSERT"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Rule:
    """A mode for the probes of a glob, in which ``*`` matches dots too; None: the mode given to ``configure``."""

    glob: str
    mode: str | None = None
    kinds: tuple[str, ...] = KINDS

    def __post_init__(self) -> None:
        if self.mode is not None:
            check_mode(self.mode)
        for kind in self.kinds:
            if kind not in KINDS:
                raise ValueError(f"unknown probe kind {kind!r}, expected one of {', '.join(KINDS)}")

    def covers(self, site: str, kind: str) -> bool:
        """Return True if the rule speaks of this probe."""
        return kind in self.kinds and fnmatchcase(site, self.glob)


class Gate:
    """A mode for every probe. Of the rules that cover a probe the last one decides; no rule: off.

    Without any rules at all, every probe runs in ``mode``. Mode ``off`` silences every rule.
    """

    def __init__(self, mode: str, rules: Sequence[Rule] = ()) -> None:
        check_mode(mode)
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
        """The modes of those of the kinds that are not off at this site."""
        live = self._live.get((site, kinds))
        if live is None:
            modes = {kind: self.mode(site, kind) for kind in kinds}
            live = self._live[(site, kinds)] = {kind: mode for kind, mode in modes.items() if mode != OFF}
        return live


def check_mode(mode: str) -> None:
    """Raises ``ValueError`` unless ``mode`` is one of ``MODES``."""
    if mode not in MODES:
        raise ValueError(f"unknown probe mode {mode!r}, expected one of {', '.join(MODES)}")


def mode_from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """``assert`` or ``off``, as the environment says. Raises ``ValueError`` when it says neither."""
    text = environment.get(ENVIRONMENT_VARIABLE, "")
    word = text.strip().lower()
    if word in _TRUE:
        return ASSERT
    if word in _FALSE:
        return OFF
    yes, no = "/".join(_TRUE), "/".join(_FALSE[1:])
    raise ValueError(f"{ENVIRONMENT_VARIABLE} is {text!r}, expected {yes} or {no}")
