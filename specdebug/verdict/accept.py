"""Accept lengths by group: the unit in which floors and baselines judge them."""

from __future__ import annotations

from collections.abc import Collection

from specdebug.verdict.outcome import Outcome, Violation

MIN_VERIFIES = 8
"""Verifies that a group has at least where its accept length is judged. With fewer, a single verify is worth more than
an eighth of the way from the worst to the best, and where a text ends decides more than how it was drafted."""


def accept_drop(group: str, got: float, wanted: float, verifies: int, detail: str) -> Violation:
    """The violation of a group that accepts too little. It belongs to no step."""
    return Violation(
        "accept-drop", group, None, detail, data={"got": got, "wanted": wanted, "verifies": verifies, "group": group}
    )


def not_judged(group: str, verifies: int) -> str:
    """The note on a group of too few verifies."""
    return f"accept length of group {group} not judged: {verifies} verifies, fewer than {MIN_VERIFIES}"


def group_lengths(outcome: Outcome, groups: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Accept lengths of every verify of these groups, request after request."""
    found: dict[str, list[int]] = {group: [] for group in groups}
    for request in outcome.requests:
        if request.group in found:
            found[request.group].extend(request.accept_lengths)
    return {group: tuple(lengths) for group, lengths in found.items()}
