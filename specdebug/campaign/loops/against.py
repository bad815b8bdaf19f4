"""A run beside its baseline, or beside another run: what each group of requests accepted, and if that is less."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specdebug.verdict.accept import MIN_VERIFIES, AcceptSample

SLOWER = 2.0
"""Tokens a second that are fewer by more than this factor are told, on the machine that wrote the baseline."""

_TINY = 1e-9


@dataclass(frozen=True)
class GroupAgainst:
    """One group beside its baseline. ``status``: ``kept``, ``lost``, ``more`` or ``not judged``. ``wanted``: the least
    that is no loss; ``got`` and ``baseline``: mean accept lengths, None where nothing was verified."""

    group: str
    status: str
    got: float | None
    verifies: int
    wanted: float
    high: float
    baseline: float | None
    baseline_verifies: int

    @property
    def line(self) -> str:
        got, base = ("none" if each is None else f"{each:.2f}" for each in (self.got, self.baseline))
        few = f" (fewer than {MIN_VERIFIES})" if self.status == "not judged" else ""
        return (
            f"{self.group} accepts {got} over {self.verifies} verifies, baseline {base} over {self.baseline_verifies}, "
            f"at least {self.wanted:.2f}: {self.status}{few}"
        )


@dataclass(frozen=True)
class Against:
    """A run beside its baseline. ``status``: ``kept``, ``lost``, ``no baseline`` or ``not compared``; ``why`` says more
    of the last two. ``slower``: on the same machine, by more than :data:`SLOWER`."""

    file: str
    status: str
    why: str = ""
    groups: tuple[GroupAgainst, ...] = ()
    tokens_per_s: float | None = None
    baseline_tokens_per_s: float | None = None
    same_machine: bool = False
    slower: bool = False

    @property
    def lines(self) -> list[str]:
        """All of it in sentences."""
        if self.why:
            return [f"{self.status}: {self.why}"]
        lines = [f"baseline: {group.line}" for group in self.groups] or ["baseline: nothing speculates"]
        if self.tokens_per_s and self.baseline_tokens_per_s:
            speeds = f"{self.tokens_per_s:.0f} tokens/s, baseline {self.baseline_tokens_per_s:.0f}"
            where = "" if self.same_machine else ", on another machine"
            lines.append(f"slower: {speeds}" if self.slower else f"baseline: {speeds}{where}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def beside(name: str, base: AcceptSample, now: AcceptSample, drop: float | None = None) -> GroupAgainst:
    """A group beside its baseline. ``drop``: the largest part of it that may be lost; None: what its interval says."""
    low, high = base.interval(now)
    if drop is not None:
        low = (base.accept or 0.0) * (1 - drop)
    if base.verifies < MIN_VERIFIES or 0 < now.verifies < MIN_VERIFIES:
        status = "not judged"
    elif now.accept is None or now.accept < low - _TINY:
        status = "lost"
    else:
        status = "more" if now.accept > high + _TINY else "kept"
    return GroupAgainst(name, status, now.accept, now.verifies, low, high, base.accept, base.verifies)
