"""Tables of installed releases, and of a check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdebug.campaign.loops.replays import EngineChecked
from specdebug.report.listings import listing
from specdebug.report.parts import Column, Line, Report, Table, columns
from specdebug.report.words import counted
from specdebug.targets.installs.fit import FitPart
from specdebug.targets.installs.release import Recipe
from specdebug.targets.installs.store import Damaged, Installed


def engines_list(
    store: Path, there: Sequence[Installed], damaged: Sequence[Damaged], recipes: Sequence[Recipe]
) -> Report:
    """List the environments that are installed, then the releases that can be."""
    heads = (*columns("release", "for", key=True), *columns("state", "Python", prose=True))
    rows = [(str(each.release), each.device, _state(each), each.python) for each in there]
    rows += [(each.folder.name, "?", f"damaged: {each.error}", "?") for each in damaged]
    known = [(str(each.release), each.device, each.says or "-", ", ".join(each.pythons)) for each in recipes]
    offered = (*columns("to install", "for", key=True), Column("what it can do here", prose=True), Column("on Python"))
    head = Table(heads, rows) if rows else Line("nothing is installed")
    parts = [Line(f"in {store}"), head, *([] if rows else [Line("")]), Table(offered, known)]
    return listing("engines list", parts, _document(store, there, damaged, recipes))


def _document(
    store: Path, there: Sequence[Installed], damaged: Sequence[Damaged], recipes: Sequence[Recipe]
) -> dict[str, Any]:
    return {
        "store": str(store),
        "installed": [
            {
                "release": str(each.release),
                "device": each.device,
                "python": each.python,
                "own": not each.ours,
                "like": each.like,
                "complete": each.complete,
                "gone": each.gone,
                "packages": each.packages,
                "checked": each.checked,
                "folder": str(each.folder),
            }
            for each in there
        ],
        "damaged": [{"folder": str(each.folder), "why": str(each.error)} for each in damaged],
        "recipes": [
            {
                "release": str(each.release),
                "device": each.device,
                "pythons": list(each.pythons),
                "says": each.says,
                "left_out": each.left_out,
            }
            for each in recipes
        ],
    }


def fit_lines(there: Installed, parts: Sequence[FitPart]) -> list[str]:
    """Say which parts of ours fit a release, in one line, and a line for each part that does not."""
    counts = []
    for kind, noun in ((False, "look"), (True, "stand-in")):
        some = [each for each in parts if each.stand_in is kind]
        if some:
            counts.append(f"{sum(not each.lost for each in some)} of {counted(len(some), noun)}")
    lost = [f"  lost: {each.what}: {why}" for each in parts for why in each.lost]
    return [f"{' and '.join(counts)} fit {there.release}", *lost]


def check_lines(checked: EngineChecked) -> list[str]:
    """A line for each arm of a check, and what the release rests on here."""
    lines = []
    for result in checked.replay.results:
        outcome = result.outcome
        mean = outcome.metrics.accept_mean
        more = f", accept length {mean:.2f}" if result.run.arm == "drafts" and mean is not None else ""
        failed = "" if outcome.verdict == "pass" else f": {outcome.detail or '; '.join(outcome.reasons)}"
        tokens = sum(len(request.output_ids) for request in outcome.requests)
        lines.append(f"{result.run.arm}: {outcome.verdict}, {tokens} tokens{more}{failed}")
    notes = dict.fromkeys(note for result in checked.replay.results for note in result.outcome.notes)
    return [*lines, *(f"  {note}" for note in notes)]


def _state(each: Installed) -> str:
    if each.gone:
        return f"{each.gone}; install it again"
    if not each.complete:
        return f"not complete ({len(each.done)} steps done)"
    if not each.checked:
        return "not checked"
    verdicts = {name: value for name, value in each.checked.items() if name != "accept_length"}
    if set(verdicts.values()) == {"pass"}:
        mean = each.checked.get("accept_length")
        return "serves" + (f", accept length {mean:.2f}" if isinstance(mean, float) else "")
    return ", ".join(f"{name}: {verdict}" for name, verdict in verdicts.items())
