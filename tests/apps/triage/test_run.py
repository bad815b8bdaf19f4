"""Trying candidates, without an engine."""

from __future__ import annotations

import io
from typing import Any

import pytest

from specdebug.apps.triage.candidates import candidates
from specdebug.apps.triage.run import Tried, try_out
from specdebug.logs.scan import scan
from specdebug.scenario.library import Library
from specdebug.workers.job import WorkerEnd
from tests.run.fakes import FakePool, good_run

LOG = b"base: fail nan@draft_prefill.hidden_states, 1.0 s\n"


def failing(kind: str, site: str) -> Any:
    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        events, end = good_run(job)
        found = {"event": "violation", "kind": kind, "site": site, "step": 1, "detail": "found"}
        return [*events[:-1], found, events[-1]], end

    return script


def tried(script: Any) -> tuple[Tried, ...]:
    library, found = Library(), scan(io.BytesIO(LOG))
    assert found.main is not None
    best = candidates(found, library)
    pool = FakePool(script)
    answers, interrupted = try_out(pool, library, best, found.main)  # type: ignore[arg-type]
    assert not interrupted
    assert [job.name for job in pool.jobs] == [str(candidate.toggle.pr) for candidate in best]
    return answers


@pytest.mark.parametrize(
    ("kind", "site", "verdict"),
    [
        ("nan", "draft_prefill.hidden_states", "fails with the same signature"),
        ("nan", "verify.logits", "fails alike"),
        ("pools", "allocator", "fails otherwise"),
    ],
)
def test_a_candidate_is_compared_with_the_log(kind: str, site: str, verdict: str) -> None:
    (first, *_) = tried(failing(kind, site))
    assert first.candidate.toggle.pr == 19897
    assert first.verdict == verdict
    assert first.to_dict()["alike"] == (kind == "nan")


def test_a_candidate_that_passes_is_not_it() -> None:
    (first, *_) = tried(good_run)
    assert first.verdict in ("pass", "unknown")
    assert not first.alike
