"""Logs in the forms of each engine and of each test runner, made up, are named as a person names them."""

import shlex
from pathlib import Path

import pytest

from specdebug.apps.triage import candidates
from specdebug.logs.scan import Scan, scan_bytes
from specdebug.scenario.library import Library

LOGS = sorted((Path(__file__).parent / "invented").glob("*.txt"))
LIBRARY = Library()


def read(path: Path) -> tuple[dict[str, str], bytes]:
    """What a person says of a log, and the log."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    told = {}
    while lines and lines[0].startswith("# "):
        key, _, value = lines.pop(0)[2:].strip().partition(": ")
        told[key] = value
    return told, "".join(lines).encode()


def named(found: Scan) -> str:
    return "none" if found.main is None else found.main.signature


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_log_is_named_by_its_failure_its_engine_and_its_test(path: Path) -> None:
    told, log = read(path)
    found = scan_bytes(log)
    origin = found.facts
    assert named(found) == told["expect"]
    assert origin.engine == told["engine"]
    assert origin.version == told.get("version", origin.version)
    assert shlex.join(origin.test) == told.get("test", shlex.join(origin.test))
    if told["engine"] != "sglang":
        assert candidates(found, LIBRARY) == ()


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_name_is_the_same_in_another_run(path: Path) -> None:
    """Other times, processes, addresses and numbers of a step; other lines around."""
    told, log = read(path)
    other = log.replace(b"pid=31", b"pid=4711").replace(b"10:01:00", b"23:59:58").replace(b"0x7f", b"0x5e")
    other = other.replace(b"2026-0", b"2027-0").replace(b"line 4", b"line 5").replace(b"line 6", b"line 7")
    assert named(scan_bytes(b"loading\n" * 50 + other + b"bye\n" * 3)) == told["expect"]
