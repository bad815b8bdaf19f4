"""Every way in which an arm of ours can end is named again from what we print of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specdebug.campaign.loops.replay import Replay
from specdebug.logs.rule import Strength
from specdebug.logs.scan import Scan, scan_bytes
from specdebug.report.formats import junit_xml, to_json
from specdebug.report.replay import replay_report
from specdebug.verdict.outcome import RANK
from specdebug.workers.job import WorkerEnd
from tests.bundle.bundles import arm_run, traced
from tests.run.fakes import good_run, text_of

ENDS = {
    "hang": WorkerEnd("timeout", -9, 9.0, 100.0, ""),
    "oom": WorkerEnd("memory", -9, 9.0, 5000.0, ""),
    "crash:SIGSEGV": WorkerEnd("signal", -11, 1.0, 100.0, ""),
    "crash:SIGABRT": WorkerEnd("signal", -6, 1.0, 100.0, ""),
    "crash:SIGKILL": WorkerEnd("signal", -9, 1.0, 100.0, ""),
    "error@worker": WorkerEnd("exit", 1, 1.0, 100.0, ""),
}


def dying(end: WorkerEnd) -> Any:
    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        return good_run(job)[0][:-1], end

    return script


def failing(kind: str) -> Any:
    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        events, end = good_run(job)
        first = {
            "event": "violation",
            "kind": kind,
            "site": "draft.kv_indices->draft.kv_indptr",
            "step": 1,
            "detail": "found",
        }
        later = {"event": "violation", "kind": "mismatch", "site": "output", "step": 1, "detail": "found"}
        return [*events[:-1], later, first, events[-1]], end

    return script


def scanned(text: str) -> Scan:
    return scan_bytes(text.encode())


@pytest.mark.parametrize("script", [*map(dying, ENDS.values()), *map(failing, RANK)], ids=[*ENDS, *RANK])
def test_terminal_and_json_lead_back_to_the_signature(script: Any) -> None:
    result = traced(arm_run(), script).result
    answer = Replay(result.run.scenario, (result,), 1.0)
    assert result.outcome.verdict == "fail"
    for text in (text_of(replay_report(answer)), to_json(replay_report(answer).document)):
        main = scanned(text).main
        assert main is not None
        assert (main.signature, main.strength) == (result.outcome.signature, Strength.VERDICT)
    assert result.outcome.signature in scanned(junit_xml(replay_report(answer))).findings
    assert json.loads(to_json(replay_report(answer).document))["arms"][0]["signature"] == result.outcome.signature
