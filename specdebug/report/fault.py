"""One class of faults, for a person."""

from __future__ import annotations

from collections.abc import Iterable

from specdebug.faults.model import NEEDS, FaultClass
from specdebug.report.tables import Column, Listing

POINTS = {
    "before": "between two steps, before one",
    "after": "between two steps, after one",
    "site": "at a probe's site",
    "lengths": "when a step publishes its lengths",
    "readback": "when the host reads what was accepted",
    "move": "when accepted KV is moved to the front",
    "free": "when slots are released",
    "attach": "when a request takes a cached prefix",
    "release": "when a request gives its slots back",
}
EFFECTS = {
    "corrupts": "damage that must be seen",
    "benign": "none: a sound engine goes on as if nothing had happened",
    "kills": "the worker's end",
}


def in_graphs(kind: FaultClass) -> str:
    """The sites at which it can act inside a CUDA graph, in a few words; nothing if it can at all of its sites."""
    captured = kind.captured_sites
    others = [site for site in kind.sites if site not in captured]
    if not captured:
        return ""
    if not others:
        return "no"
    return f"at {others[0]}" if kind.sites[0] in captured else f"not at {len(captured)} of {len(kind.sites)} sites"


def fault_table(kinds: Iterable[FaultClass]) -> Listing:
    """One row a class."""
    columns = (
        Column("fault", key=True),
        Column("family"),
        Column("effect"),
        Column("needs", prose=True),
        Column("with CUDA graphs"),
        Column("what it does", prose=True),
    )
    rows = [
        (kind.name, kind.family, kind.effect, ", ".join(kind.needs), in_graphs(kind), kind.summary) for kind in kinds
    ]
    return Listing(columns, rows)


def describe_fault(kind: FaultClass) -> str:
    """Lines for a terminal."""
    lines = [f"{kind.name} ({kind.family})", f"  {kind.summary}", f"  acts          {POINTS[kind.point]}"]
    for number, site in enumerate(kind.sites):
        captured = site in kind.captured_sites
        notes = [*(["the default"] if number == 0 else []), *(["not inside a CUDA graph"] if captured else [])]
        label, remark = "site" if number == 0 else "", f" ({', '.join(notes)})" if notes else ""
        lines.append(f"  {label:<13} {site}{remark}")
    lines.append(f"  effect        {EFFECTS[kind.effect]}")
    lines.append(f"  needs         {', '.join(NEEDS[need] for need in kind.needs) or 'nothing in particular'}")
    lines.append(f"  addressed by  {', '.join(kind.keys)}")
    lines.append(f"  as in         specdebug replay SCENARIO --fault {kind.name}:step=3..9")
    return "\n".join(lines)
