"""Phrases that several reports share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def times(count: int) -> str:
    """``once``, ``3 times``."""
    return "once" if count == 1 else f"{count} times"


def counted(count: int, noun: str) -> str:
    """``1 trial``, ``3 trials``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def number(value: float | None, digits: int) -> str:
    """The number with so many digits after the point; a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def dash(value: object) -> str:
    """The value; a dash for none."""
    return "-" if value is None else str(value)


def ended(verdict: str, signature: str | None) -> str:
    """``pass``, ``fail nan@draft.logits``."""
    return f"{verdict} {signature}" if signature else verdict


def some(names: Sequence[str], most: int) -> str:
    """The first names; of more than ``most`` also how many are left: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


NOT_ENGINE_CODE = "in place of the engine's own GPU code"


def replaced(parts: Sequence[str]) -> list[str]:
    """A short line on what is not the engine's own code (``Outcome.not_engine_code``), if anything is not: what is told
    in words by its name, the stand-ins by their number."""
    told = [name for name, colon, _ in (part.partition(": ") for part in parts) if colon]
    if len(parts) > len(told):
        told.append(counted(len(parts) - len(told), "stand-in"))
    return [f"{NOT_ENGINE_CODE}: {'; '.join(told)} (see --json)"] if parts else []


def not_engine_code(arms: Iterable[tuple[str, Sequence[str]]], *, short: bool = False) -> list[str]:
    """A line on what is not the engine's own code for all arms that share it: all of it, or as :func:`replaced` has
    it."""
    sharing: dict[tuple[str, ...], list[str]] = {}
    for arm, parts in arms:
        sharing.setdefault(tuple(parts), []).append(arm)
    return [
        f"{', '.join(names)}: {told}"
        for parts, names in sharing.items()
        for told in (replaced(parts) if short else [f"{NOT_ENGINE_CODE}: {'; '.join(parts)}"] if parts else [])
    ]
