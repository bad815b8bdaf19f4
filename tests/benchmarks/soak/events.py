"""Events as a worker tells them."""

from __future__ import annotations

from typing import Any

from benchmarks.soak import draw


def begin(engine: int = 0, nth: int = 0, decoded: int = 0) -> dict[str, Any]:
    return {"event": "begin", "engine": engine, "decoded": decoded, "scenario": draw.scenario(0, 0, engine, nth)}


def workload(**counts: int) -> dict[str, Any]:
    return {"event": "workload", "seconds": 2.0, "counts": counts}


def violation(kind: str, site: str, step: int = 3) -> dict[str, Any]:
    return {"event": "violation", "kind": kind, "site": site, "step": step, "detail": "what", "count": 1, "data": {}}


def rest(steps: int, rss_mb: float) -> dict[str, Any]:
    return {"event": "rest", "steps": steps, "rss_mb": rss_mb}


FLAT = [rest(1000 * number, 400.0) for number in range(1, 41)]
LEAKING = [rest(1000 * number, 400.0 + number) for number in range(1, 41)]
DONE = {"event": "done"}
