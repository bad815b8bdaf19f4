"""Replays of an arm in a process of their own, and their requests side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REPLAY = (sys.executable, "-m", "specdebug", "replay")


def replayed(scenario: str, *more: str, revert: int | None = None) -> tuple[int, dict[str, Any]]:
    """Exit code and the document of one arm. ``scenario``: a shipped one, or a file."""
    env = {name: value for name, value in os.environ.items() if name != "SGLANG_DEBUG_REVERT_PR"}
    env |= {} if revert is None else {"SGLANG_DEBUG_REVERT_PR": str(revert)}
    path = _path(scenario)
    done = subprocess.run([*REPLAY, path, "--json", *more], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["arms"][0]


def diverged(scenario: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the document of a comparison of two arms. ``scenario``: a shipped one, or a file."""
    words = [sys.executable, "-m", "specdebug", "diverge", _path(scenario), "--json", *more]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def _path(scenario: str) -> str:
    return scenario if scenario.endswith(".yaml") else str(ROOT / "scenarios" / f"{scenario}.yaml")


def alike(one: dict[str, Any], other: dict[str, Any], *names: str) -> bool:
    """Compare the tokens and accept lengths of all requests of two arms, and what else is named."""
    pairs = zip(*(sorted(arm["requests"], key=lambda each: each["rid"]) for arm in (one, other)), strict=True)
    for left, right in pairs:
        assert left["output_ids"] == right["output_ids"], left["rid"]
        assert sorted(left["accept_lengths"]) == sorted(right["accept_lengths"]), left["rid"]
        for name in names:
            assert left[name] == right[name], (left["rid"], name)
    return True
