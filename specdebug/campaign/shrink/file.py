"""Write what is left of a scenario to a file."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import yaml

from specdebug.scenario.grammar import Arrive, Scenario, WorkloadGroup


def scenario_text(scenario: Scenario, name: str, seed: int, signature: str, header: Sequence[str]) -> str:
    """Return the text of a written-out scenario, less defaults, which is expected to fail with ``signature`` under
    ``seed``; ``header`` are lines of comment for its top."""
    plain = scenario.to_dict()
    bare = Scenario(name, scenario.workload, scenario.arms, scenario.expect).to_dict()
    (arm,) = scenario.arms
    kept = {
        key: value
        for key, value in plain.items()
        if key in ("engine", "faults", "probes", "oracles", "limits") and value != bare[key]
    }
    document = {
        "name": name,
        "description": " ".join(header[0].split()),
        "seed": seed,
        **kept,
        "workload": [_group_plain(group) for group in scenario.workload],
        "arms": {arm: {key: value for key, value in plain["arms"][arm].items() if value}},
        "expect": {arm: {"verdict": "fail", "signature": signature}},
    }
    wrapped = (part for line in header for part in textwrap.wrap(line, 117) or [""])
    comments = "".join(f"# {line}".rstrip() + "\n" for line in wrapped)
    body: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110)
    return comments + body


def _group_plain(group: WorkloadGroup) -> dict[str, Any]:
    plain = group.to_dict()
    default = WorkloadGroup(group.id, prompt=group.prompt, turns=group.turns).to_dict()
    kept = {key: value for key, value in plain.items() if key in ("id", "prompt", "turns") or value != default.get(key)}
    if "arrive" in kept:
        nothing = Arrive().to_dict()
        kept["arrive"] = {key: value for key, value in kept["arrive"].items() if value != nothing[key]}
    return kept
