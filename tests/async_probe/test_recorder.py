"""Rings: what happens when they are full, when there are several, and when too much is counted."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from specdebug import async_probe
from specdebug.async_probe import checks, recorder
from specdebug.async_probe.recorder import Recorder
from specdebug.async_probe.rows import RawFinding


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
