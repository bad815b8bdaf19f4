"""One fix in full: for a reader, and as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug.patching import Patch
from specdebug.report.foreign import shown
from specdebug.report.tables import Column, Listing, Prose, line
from specdebug.toggles import Toggle, not_in_this_engine


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
        "detected_by": {
            "scenario": toggle.detected_by.scenario,
            "signatures": list(toggle.detected_by.signatures),
        }
        if toggle.patches
        else None,
        "path": str(toggle.path),
        "patches": [
            {
                "target": patch.target,
                "edits": [
                    {"id": edit.id, "match": edit.match, "replacement": edit.replacement} for edit in patch.edits
                ],
            }
            for patch in toggle.patches
        ],
        "foreign": {engine: list(versions) for engine, versions in toggle.foreign.items()},
    }


def toggle_table(toggles: Iterable[Toggle]) -> Listing:
    """One row a fix: its numbers, what it mends, and what notices its revert."""
    columns = (
        Column("PR", key=True),
        Column("scenario", key=True),
        Column("signature", key=True),
        Column("family"),
        Column("title", prose=True),
    )
    rows = [
        (
            ", ".join(map(str, each.numbers)),
            each.detected_by.scenario or f"not in this engine, but in {', '.join(each.foreign)}",
            each.detected_by.signatures,
            each.family,
            each.title,
        )
        for each in toggles
    ]
    return Listing(columns, rows, bar=True)


def describe_toggle(toggle: Toggle) -> RenderableType:
    """A toggle for a person: what it is, then the edits that revert it, as a diff."""
    facts = [
        ("url", toggle.url),
        ("family", toggle.family),
        ("symptom", toggle.symptom),
        ("file", str(toggle.path)),
    ]
    if toggle.patches:
        facts[3:3] = [
            ("scenario", toggle.detected_by.scenario),
            ("signature", " or ".join(toggle.detected_by.signatures)),
        ]
    else:
        facts.append(("engine", not_in_this_engine(toggle)))
    facts += [(engine, "patched in " + " or ".join(versions)) for engine, versions in toggle.foreign.items()]
    if toggle.aliases:
        facts.insert(0, ("also", ", ".join(map(str, toggle.aliases))))
    lines: list[RenderableType] = [line(f"{toggle.pr}  {toggle.title}"), Text()]
    lines += [Prose(Text(shown(f"{name:<10} {value}")), hang=11) for name, value in facts]
    if toggle.description:
        lines += [Text(), Prose(Text(shown(" ".join(toggle.description.split()))), hang=0)]
    for patch in toggle.patches or _elsewhere(toggle):
        lines += [Text(), line(f"reverted in {patch.target}:", fold=False)]
        for edit in patch.edits:
            lines += [line(f"  - {each}", fold=False) for each in edit.match.rstrip().split("\n")]
            if edit.replacement.strip():
                lines += [line(f"  + {each}", fold=False) for each in edit.replacement.rstrip().split("\n")]
    return Group(*lines)


def _elsewhere(toggle: Toggle) -> list[Patch]:
    """Return what reverts a fix that only other engines have, in the last range stated of each."""
    return [patch for versions in toggle.foreign.values() for patch in list(versions.values())[-1]]
