"""Words between the harness and an engine's process: what is wanted there, and lines of its log."""

from __future__ import annotations

import json
import sys
from typing import Any

VARIABLE = "SPECDEBUG_INSIDE"
"""Holds, as JSON, what is wanted inside."""
SAID = "specdebug inside: "
"""What each line of ours begins with."""


def say(text: str) -> None:
    """A line for people."""
    sys.stderr.write(f"{SAID}{text}\n")  # in one piece: several processes write there
    sys.stderr.flush()


def tell(**facts: Any) -> None:
    """A line of facts."""
    say(json.dumps(facts))


def facts_in(line: str) -> dict[str, Any]:
    """The facts of a log's line; nothing of one that has none."""
    _, ours, text = line.partition(SAID)
    if not ours or not text.startswith("{"):
        return {}
    try:
        facts: dict[str, Any] = json.loads(text)
    except ValueError:  # another process wrote into it
        return {}
    return facts
