"""One fix in full: for a reader, and as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug.patching import Patch
from specdebug.patching.toggles import OWN_ENGINE, Detection, Toggle, not_in
from specdebug.report.foreign import shown
from specdebug.report.tables import Column, Listing, Prose, columns, line


def toggle_document(toggle: Toggle) -> dict[str, Any]:
    """A toggle as plain data."""
    return {
        "pr": toggle.pr,
        "aliases": list(toggle.aliases),
        "title": toggle.title,
        "url": toggle.url,
        "family": toggle.family,
        "symptom": toggle.symptom,
        "description": " ".join(toggle.description.split()),
        "detected_by": _detection(toggle.detected_by) if toggle.patches else None,
        "also_detected_by": [_detection(each) for each in toggle.also_detected_by],
        "path": str(toggle.path),
        "patches": [
            {
                "target": patch.target,
                "edits": [
                    {name: getattr(edit, name) for name in ("id", "match", "replacement")} for edit in patch.edits
                ],
            }
            for patch in toggle.patches
        ],
        "foreign": {engine: list(versions) for engine, versions in toggle.foreign.items()},
        "mends": sorted(toggle.mends),
    }


def _detection(detection: Detection) -> dict[str, Any]:
    return {"scenario": detection.scenario, "signatures": list(detection.signatures)}


def toggle_table(toggles: Iterable[Toggle]) -> Listing:
    """One row a fix: its numbers, its scenario and signature, its family and title."""
    heads = (*columns("PR", "scenario", "signature", key=True), Column("family"), Column("title", prose=True))
    rows = [
        (
            ", ".join(map(str, each.numbers)),
            ", ".join(one.scenario for one in each.detections) if each.patches else _without(each),
            tuple(dict.fromkeys(signature for one in each.detections for signature in one.signatures)),
            each.family,
            each.title,
        )
        for each in toggles
    ]
    return Listing(heads, rows, bar=True)


def _without(toggle: Toggle) -> str:
    """Say where a fix is that has no scenario of this engine."""
    others = ", ".join(engine for engine in toggle.foreign if engine not in toggle.mends)
    mended = [f"mends {', '.join(sorted(toggle.mends))}"] if toggle.mends else []
    return "; ".join([*([f"not in this engine, but in {others}"] if others else []), *mended])


def describe_toggle(toggle: Toggle) -> RenderableType:
    """A toggle for a person: the facts, then the edits that revert it, as a diff."""
    facts = [("also", ", ".join(map(str, toggle.aliases)))] if toggle.aliases else []
    facts += [("url", toggle.url), ("family", toggle.family), ("symptom", toggle.symptom)]
    for one in toggle.detections if toggle.patches else ():
        facts += [("scenario", one.scenario), ("signature", " or ".join(one.signatures))]
    facts.append(("file", str(toggle.path)))
    if not toggle.patches:
        facts.append(("engine", not_in(OWN_ENGINE, toggle)))
    facts += [
        (engine, f"{'mended' if engine in toggle.mends else 'patched'} in {' or '.join(versions)}")
        for engine, versions in toggle.foreign.items()
    ]
    lines: list[RenderableType] = [line(f"{toggle.pr}  {toggle.title}"), Text()]
    lines += [Prose(Text(shown(f"{name:<10} {value}")), hang=11) for name, value in facts]
    if toggle.description:
        lines += [Text(), Prose(Text(shown(" ".join(toggle.description.split()))), hang=0)]
    done = "mended" if toggle.mends and not toggle.patches else "reverted"
    for patch in toggle.patches or _elsewhere(toggle):
        lines += [Text(), line(f"{done} in {patch.target}:", fold=False)]
        for edit in patch.edits:
            lines += _diff("-", edit.match) + _diff("+", edit.replacement)
    return Group(*lines)


def _diff(sign: str, text: str) -> list[Prose]:
    return [line(f"  {sign} {each}", fold=False) for each in text.rstrip().split("\n") if text.strip()]


def _elsewhere(toggle: Toggle) -> list[Patch]:
    """The patches that revert a fix that only other engines have, in the last range stated of each."""
    return [patch for versions in toggle.foreign.values() for patch in list(versions.values())[-1]]
