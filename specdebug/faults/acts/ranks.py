"""Damage of ranks: a process of several that dies, stands still or comes late, collectives that one of them enters
otherwise than the others do, and what a server that prefills hands over. ``shot.view.ranks`` has the ranks
(``targets/ranks/session.py``)."""

from typing import Any

from specdebug.faults.model import NotHere, Shot, fault_class

_HANDED: dict[str, Any] = {"needs": ("transfers",), "addressed_by": ("rank",)}
_NEEDS: dict[str, Any] = {"needs": ("ranks",), "addressed_by": ("rank",)}


def _tamper(shot: Shot, how: str, after: str) -> None:
    """Have a rank do this at its next collective of a model's forward."""
    ranks: Any = shot.view.ranks  # type: ignore[attr-defined]  # our own engine has one
    rank = ranks.world - 1 if shot.fault.rank is None else shot.fault.rank
    ranks.tamper(rank, how)
    shot.note(f"rank {rank}", (), "in step", after)


@fault_class("ranks", "ranks", "kills", **_NEEDS)
def rank_dead(shot: Shot) -> None:
    """A rank gets SIGKILL as it enters a collective."""
    _tamper(shot, "dead", "SIGKILL")


@fault_class("ranks", "ranks", "kills", **_NEEDS)
def rank_hangs(shot: Shot) -> None:
    """A rank never enters its next collective."""
    _tamper(shot, "hangs", "asleep")


@fault_class("ranks", "ranks", "benign", **_NEEDS)
def rank_late(shot: Shot) -> None:
    """A rank enters a collective a second after the others."""
    _tamper(shot, "late", "a second late")


@fault_class("ranks", "ranks", "corrupts", **_NEEDS)
def rank_behind(shot: Shot) -> None:
    """A rank takes in the requests of a step one step later."""
    if not shot.view.ranks.arriving:  # type: ignore[attr-defined]
        raise NotHere("no request arrives in that step")
    _tamper(shot, "behind", "one step behind")


@fault_class("ranks", "ranks", "corrupts", **_NEEDS)
def collective_skipped(shot: Shot) -> None:
    """A rank goes on without a collective that the others enter."""
    _tamper(shot, "skip", "skips one")


@fault_class("ranks", "ranks", "corrupts", **_NEEDS)
def collective_twice(shot: Shot) -> None:
    """A rank enters a collective twice."""
    _tamper(shot, "twice", "enters one twice")


@fault_class("ranks", "ranks", "corrupts", **_NEEDS)
def collective_shape(shot: Shot) -> None:
    """A rank enters a collective with half of the elements."""
    _tamper(shot, "shape", "half of the elements")


@fault_class("ranks", "ranks", "corrupts", **_HANDED)
def transfer_lost(shot: Shot) -> None:
    """The next that a rank hands over does not arrive, and is reported as if it had."""
    _tamper(shot, "transfer_lost", "lost")


@fault_class("ranks", "ranks", "corrupts", **_HANDED)
def transfer_cut(shot: Shot) -> None:
    """Of the next that a rank hands over half arrives."""
    _tamper(shot, "transfer_cut", "half arrives")


@fault_class("ranks", "ranks", "corrupts", **_HANDED)
def transfer_misplaced(shot: Shot) -> None:
    """The next that a rank hands over arrives as far behind its place as it is long, where another request's is."""
    _tamper(shot, "transfer_misplaced", "misplaced")


@fault_class("ranks", "ranks", "benign", **_HANDED)
def transfer_late(shot: Shot) -> None:
    """The next that a rank hands over arrives a second later."""
    _tamper(shot, "transfer_late", "a second late")
