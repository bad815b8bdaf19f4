"""Results as one JSON document."""

from __future__ import annotations

import json
from typing import Any

from specdebug import __version__
from specdebug.campaign.loops.compare import Comparison
from specdebug.campaign.loops.replay import ArmResult, Replay
from specdebug.report.explain import explain


def replay_document(replay: Replay) -> dict[str, Any]:
    """A replay as plain data."""
    return {
        "specdebug": __version__,
        "scenario": replay.scenario.name,
        "path": str(replay.scenario.path),
        "exit_code": replay.exit_code,
        "interrupted": replay.interrupted,
        "wall_s": round(replay.wall_s, 3),
        "arms": [arm_document(result) for result in replay.results],
        "not_run": [arm.to_dict() for arm in replay.left_out],
    }


def arm_document(result: ArmResult) -> dict[str, Any]:
    """One arm: the run, the expectation, the outcome."""
    expectation, asked = result.run.expectation, result.run.asked
    return {
        "arm": result.run.arm,
        "seed": result.run.seed,
        "reverted": list(result.run.reverts),
        "engine": {
            "device": asked.device,
            "dtype": asked.dtype,
            "attention_backend": asked.attention_backend,
            "overridden": sorted(result.run.scenario.overrides),
        },
        "expected": None if expectation is None else expectation.to_dict(),
        "met": result.met,
        "explanation": None if (why := explain(result)) is None else why.to_dict(),
        **({} if result.against is None else {"baseline": result.against.to_dict()}),
        **result.outcome.to_dict(),
    }


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain data."""
    return {"specdebug": __version__, "exit_code": comparison.exit_code, **comparison.to_dict()}


def to_json(document: Any) -> str:
    """Strict JSON (no NaN), readable, ending without a newline."""
    return json.dumps(document, indent=2, allow_nan=False)
