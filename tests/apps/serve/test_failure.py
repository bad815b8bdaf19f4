"""The signature of an engine that died under a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specdebug.apps.serve.failure import ENDING, EngineFailure, failure_of
from specdebug.logs.scan import LogReader
from specdebug.verdict.outcome import Violation
from specdebug.workers.job import WorkerEnd
from specdebug.workers.machine_failure import MachineFailure


def ended(kind: Any = "exit", status: int = 1, log: str = "") -> WorkerEnd:
    return WorkerEnd(kind, status, 3.0, 0.0, log)


def of(end: WorkerEnd, told: tuple[Violation, ...] = (), **more: Any) -> EngineFailure:
    return failure_of(end, told, more.pop("machine", None), step=7, stage="serve", **more)


ASSERTED = Violation("assert", "accept.walk", 7, "AssertionError: no")


@pytest.mark.parametrize(
    ("end", "told", "signature"),
    [
        (ended("signal", -9), (), "crash:SIGKILL"),
        (ended("signal", -11), (), "crash:SIGSEGV"),
        (ended("timeout", -9), (), "hang"),
        (ended(status=3), (), "error@worker"),
        (ended(status=0), (), "error@worker"),
        (ended(), (ASSERTED,), "assert@accept.walk"),
        (ended("signal", -11), (Violation("nan", "verify.logits", 6),), "nan@verify.logits"),
        (ended(), (ASSERTED, Violation("oob", "draft.index", 7)), "oob@draft.index"),
        (ended(), (Violation("error", "draft.loop", 0, "while it was built"),), "error@draft.loop"),
    ],
)
def test_the_first_in_program_order_names_it(end: WorkerEnd, told: tuple[Violation, ...], signature: str) -> None:
    assert of(end, told).signature == signature


def test_an_exit_that_was_explained_is_told_by_its_reason_alone() -> None:
    assert str(of(ended(), (ASSERTED,))) == "the engine has died: fail assert@accept.walk: AssertionError: no"


def test_a_crash_that_follows_a_finding_is_told_beside_it() -> None:
    failure = of(ended("signal", -11), (Violation("nan", "verify.logits", 6, "3 bad"),))
    assert "3 bad; killed by SIGSEGV" in str(failure)


@pytest.mark.parametrize(
    ("end", "more", "told"),
    [
        (
            replace(ended("signal", -9), failure=MachineFailure("memory", "the kernel killed the engine")),
            {},
            "machine: there is no memory left",
        ),
        (ended(), {"machine": {"cause": "disk", "line": "full"}}, "machine: there is no room to write: full"),
        (ended(log="OSError: [Errno 28] No space left on device"), {}, "machine: there is no room to write"),
    ],
)
def test_a_machine_that_fails_has_no_signature(end: WorkerEnd, more: Any, told: str) -> None:
    failure = of(end, **more)
    assert failure.signature is None
    assert told in str(failure)


def test_a_log_that_is_read_by_triage_names_the_same() -> None:
    failure = of(ended(), (ASSERTED,))
    reader = LogReader()
    reader.feed(f"[2026-01-01 00:00:00] {failure}\n".encode())
    found = reader.close().main
    assert found is not None
    assert found.signature == "assert@accept.walk"


def test_an_end_that_was_asked_for_is_no_death() -> None:
    assert str(ENDING) == "the server is ending"
