"""What a server's failure is called: by its process and log, by its own words, or by how the connection ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.logs.scan import LogReader, Scan
from specdebug.targets.http.checked import BadAnswer
from specdebug.targets.http.client import Declined, Silent, Unreachable
from specdebug.targets.http.failures import failure_of, split
from specdebug.verdict.signatures import complaint


class Process:
    """A server's process that ended so, or not, and left that log."""

    def __init__(self, ended: int | None, log: str = "", **tells: Any) -> None:
        self.ended = ended
        told: dict[str, Any] = {"findings": tuple, "hits": dict, "reached": dict} | tells
        self.log: Any = SimpleNamespace(path="/a/log", scan_run=lambda: scanned(log), **told)

    def status(self) -> int | None:
        return self.ended

    def release(self, sound: bool) -> None: ...


def scanned(log: str) -> Scan:
    reader = LogReader(settings=False)
    reader.feed(log.encode())
    return reader.close()


BROKEN = Unreachable("ReadError")
ASSERTION = "AssertionError: draft expand page_table (width decode_length + 1): used 3 > capacity 2\n"


@pytest.mark.parametrize(
    ("error", "host", "signature"),
    [
        (BROKEN, None, ("error", "http.connection")),
        (Declined(500, "no"), None, ("error", "http.500")),
        (Declined(500, "it died: fail nan@draft.x: 3 bad"), None, ("nan", "draft.x")),
        (BadAnswer("no JSON"), None, ("error", "http.answer")),
        (Silent("nothing came"), None, ("hang", "")),
        (BROKEN, Process(-11, ""), ("crash:SIGSEGV", "")),
        (BROKEN, Process(1, ""), ("error", "server.exit.1")),
        (BROKEN, Process(-11, "async probe nan@draft.x [3 bad]\n"), ("nan", "draft.x")),
        (BROKEN, Process(None, "async probe nan@draft.x [3 bad]\n"), ("nan", "draft.x")),
        (BROKEN, Process(None, "all is well\n"), ("error", "http.connection")),
        (BROKEN, Process(None, ASSERTION),
         ("assert", "server.draft-expand-page_table-width-decode_length-#-used-#-capacity-#")),
    ],
)  # fmt: skip
def test_the_name_of_a_failure(error: Exception, host: Process | None, signature: tuple[str, str]) -> None:
    failed = failure_of(error, host, "http://host:1", "a.0")
    assert (failed.kind, failed.site) == signature
    assert str(failed).startswith("request a.0: ")


@pytest.mark.parametrize(
    "name",
    [
        "guard@a->b",
        "hang",
        "crash:SIGSEGV",
        "assert:x == y",
        "error:ValueError",
        "exit:3",
        "assert:x>=#@scheduler.run",
        "error:KeyError:no key a@core.step",
        "panic:x@q.rs",
        "hang@core.step",
        "assert:obj@ggml.c",
    ],
)
def test_every_name_becomes_a_signature_that_a_scenario_can_state(name: str) -> None:
    kind, site = split(name)
    assert complaint(f"{kind}@{site}" if site else kind) is None
