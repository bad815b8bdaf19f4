"""Rows come out as findings in program order; rings that are full, several, or of too many entries."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from specdebug import async_probe
from specdebug.async_probe import checks, recorder
from specdebug.async_probe.recorder import Recorder
from specdebug.async_probe.rows import (
    COLUMNS,
    TAG_ENTRY,
    TAG_JOB,
    TAG_PART,
    RawFinding,
    intact,
    merge,
)


def _write(target: Recorder, site: str, values: list[float] | list[int], high: float = 1) -> None:
    tensor = torch.tensor(values)
    for part in checks.parts("oob", tensor, -100, high):
        target.write(site, "oob", tensor, part)


def test_clean_checks_leave_no_row() -> None:
    target = Recorder(capacity=2)
    _write(target, "a.b", [0, 0])
    assert target.findings("take") == []
    assert target.totals() == {}


@pytest.mark.parametrize("read", ["take", "poll"])
def test_a_device_that_fails_over_the_reading_takes_no_other_s_findings_along(
    monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    def fail() -> list[RawFinding]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    target = Recorder(capacity=2)
    _write(target, "a.b", [7])
    lost = recorder.Ring(torch.device("cpu"), 2, 0)
    for name in ("take", "poll"):
        monkeypatch.setattr(lost, name, fail)
    monkeypatch.setattr(lost, "salvage", list)
    target.rings[torch.device("meta")] = lost
    with pytest.raises(RuntimeError):
        target.findings(read)
    assert [found.value for found in target.findings("salvage")] == [7]
    assert target.findings("salvage") == []


def test_computed_site_names_run_into_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_ENTRIES", 2)
    target = Recorder(capacity=2)
    _write(target, "a.b", [1])
    with pytest.raises(RuntimeError, match=r"more than 2 probes: is a site name computed, as in 'a\.c'"):
        _write(target, "a.c", [1])


def test_prepare_makes_the_ring_before_the_first_finding() -> None:
    async_probe.configure("record")
    async_probe.prepare("cpu")
    async_probe.maybe_detect_oob(torch.tensor([5]), 0, 1, "a.b")
    assert len(async_probe.drain()) == 1


@pytest.mark.parametrize("kind", ["nan", "inf", "oob", "page_aligned"])
def test_recording_never_reads_a_value_back(kind: str) -> None:
    # Fake tensors have no values: whatever would make the host wait for a device raises here.
    with FakeTensorMode():
        ring = recorder.Ring(torch.device("cpu"), capacity=4, step=0)
        for dtype in (torch.float16, torch.int64):
            values = checks.subject(torch.zeros((3, 4), dtype=dtype).t(), None)
            if checks.applies(kind, values):
                for part in checks.parts(kind, values, 0, 8):
                    ring.write(0, values, part)
        ring.set_step(1)
        with pytest.raises(DataDependentOutputException):
            ring.take()


def _row(
    ticket: int,
    *,
    origin: int = 1,
    launch: int = 0,
    entry: int = 0,
    job: int = 0,
    part: int = 0,
    index: int = 0,
    value: int = 0,
    count: int = 1,
) -> list[int]:
    tag = entry << TAG_ENTRY | job << TAG_JOB | part << TAG_PART
    row = [ticket + 1, origin, launch, 7, tag, index, value, count, 0]
    assert len(row) == COLUMNS
    return row


@given(st.data())
def test_findings_do_not_depend_on_which_program_came_first(data: st.DataObject) -> None:
    """Launches follow each other; within one, programs draw tickets in any order."""
    launches, expected = [], []
    for number in range(data.draw(st.integers(0, 4))):
        shares = []
        for job in range(data.draw(st.integers(1, 3))):
            for part in range(data.draw(st.integers(1, 2))):
                places = data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True))
                counts = [data.draw(st.integers(1, 9)) for _ in places]
                entry = number * 10 + job * 2 + part
                shares += [
                    {"entry": entry, "job": job, "part": part, "index": place, "value": place + 1, "count": count}
                    for place, count in zip(places, counts, strict=True)
                ]
                expected.append(RawFinding(entry, 7, min(places), min(places) + 1, sum(counts), 0.0))
        random.Random(data.draw(st.integers(0, 99))).shuffle(shares)
        launches.append((-3, number) if data.draw(st.booleans()) else (number + 1, 0))
        launches[-1] = (*launches[-1], shares)  # type: ignore[assignment]
    rows, ticket = [], 100
    for origin, launch, shares in launches:  # type: ignore[misc]
        for share in shares:
            rows.append(_row(ticket, origin=origin, launch=launch, **share))
            ticket += 1
    assert merge(rows) == expected
    assert merge(reversed(rows)) == expected


def test_launches_that_lack_rows_are_left_out() -> None:
    stale = _row(3)
    table = [_row(20), _row(21), _row(22, origin=2), stale, stale, _row(25, origin=4), _row(26, origin=5)]
    assert intact(table, 20, more=False) == [table[0], table[1], table[5], table[6]]
    assert intact(table, 20, more=True) == [table[0], table[1], table[5]]
    assert intact([stale, _row(21)], 20, more=False) == [_row(21)]
    assert intact([], 20, more=True) == []
