"""One fix in full: for a reader, and as plain data."""

from __future__ import annotations

import textwrap
from typing import Any

from specdebug.patching import Patch
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


def describe_toggle(toggle: Toggle) -> str:
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
    lines = [f"{toggle.pr}  {toggle.title}", ""]
    lines += [f"{name:<10} {value}" for name, value in facts]
    if toggle.description:
        lines += ["", textwrap.fill(" ".join(toggle.description.split()), 100)]
    for patch in toggle.patches or _elsewhere(toggle):
        lines += ["", f"reverted in {patch.target}:"]
        for edit in patch.edits:
            lines += [f"  - {line}" for line in edit.match.rstrip().split("\n")]
            if edit.replacement.strip():
                lines += [f"  + {line}" for line in edit.replacement.rstrip().split("\n")]
    return "\n".join(lines)


def _elsewhere(toggle: Toggle) -> list[Patch]:
    """What reverts a fix that only other engines have, in the last range stated of each."""
    return [patch for versions in toggle.foreign.values() for patch in list(versions.values())[-1]]
