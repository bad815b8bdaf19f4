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
    assert target.drain() == []
    assert target.totals() == {}


def test_a_full_ring_keeps_the_first_findings_and_counts_all() -> None:
    target = Recorder(capacity=2)
    for value in (1, 2, 3, 4):
        _write(target, "a.b", [value, value])
    assert [found.value for found in target.drain()] == [1, 2]
    assert target.totals() == {("a.b", "oob"): 8}
    _write(target, "a.b", [5])
    assert [found.value for found in target.drain()] == [5]


@pytest.mark.parametrize("read", ["drain", "poll"])
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
        getattr(target, read)()
    assert [found.value for found in target.salvage()] == [7]
    assert target.salvage() == []


def test_findings_come_in_program_order() -> None:
    target = Recorder(capacity=8)
    for step, site in enumerate(["c.c", "a.a", "b.b", "a.a"]):
        target.set_step(step)
        _write(target, site, [1])
    assert [(found.site, found.step) for found in target.drain()] == [
        ("c.c", 0),
        ("a.a", 1),
        ("b.b", 2),
        ("a.a", 3),
    ]


def test_floats_keep_their_value_and_their_bound() -> None:
    target = Recorder(capacity=8)
    _write(target, "a.b", [0.25, 1.7], high=0.1)
    (found,) = target.drain()
    assert found.value == 0.25
    assert found.bound == "not below 0.1"
    assert found.count == 2


def test_a_value_and_its_limit_may_be_of_different_types() -> None:
    target = Recorder(capacity=8)
    tensor = torch.tensor([4.0, 6.5])
    for part in checks.parts("page_aligned", tensor, 0, 4):
        target.write("a.b", "page_aligned", tensor, part)
    (found,) = target.drain()
    assert (found.value, found.bound) == (6.5, "not a multiple of 4")


def test_polling_a_device_that_is_the_host_is_draining_it() -> None:
    target = Recorder(capacity=8)
    _write(target, "a.b", [1])
    assert [found.value for found in target.poll()] == [1]
    assert target.poll() == target.drain() == []


def test_a_ring_made_late_knows_the_step() -> None:
    target = Recorder(capacity=8)
    target.set_step(41)
    _write(target, "a.b", [1])
    assert target.drain()[0].step == 41


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
