"""A GPU's ring: rooms, replays, and several tensors in one launch. Without a GPU under Triton's interpreter."""

import math
import os
from collections.abc import Callable
from unittest.mock import MagicMock

import pytest
import torch

from specdebug.async_probe import jobs
from specdebug.async_probe.rows import MAX_ENTRIES, RawFinding

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and Triton was imported before its interpreter could be chosen", allow_module_level=True)

from specdebug.async_probe import device
from specdebug.async_probe.device import DeviceRing

pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def _ring(capacity: int = 8, programs: int = 3) -> DeviceRing:
    return DeviceRing(DEVICE, capacity, step=0, programs=programs)


def _job(values: torch.Tensor, high: float = 10) -> jobs.ProbeJob:
    kinds = ("nan", "inf") if values.is_floating_point() else ("oob",)
    job = jobs.make(kinds, values.to(DEVICE), 0, high, None, None)
    assert job is not None
    return job


def _bad(*values: int) -> jobs.ProbeJob:
    return _job(torch.tensor(values))


def _replayed(ring: DeviceRing, launch: Callable[[], None], times: int) -> None:
    """As a captured launch: again and again with one origin."""
    origin = ring._origin
    ring._origin = lambda: -4  # type: ignore[method-assign]
    for _ in range(times):
        launch()
    ring._origin = origin  # type: ignore[method-assign]


def test_clean_looks_leave_nothing() -> None:
    ring = _ring()
    ring.look([_bad(1, 2)], [(0, 1)])
    ring.look([_job(torch.ones(5000))], [(2, 3)])
    assert ring.take() == []
    assert ring.totals(MAX_ENTRIES) == [0] * MAX_ENTRIES
    assert all(ring.fine(entry).item() == 1 for entry in range(4))


def test_findings_come_in_program_order_with_their_steps() -> None:
    ring = _ring()
    for step in (3, 1, 2):
        ring.set_step(step)
        ring.look([_bad(5, 10 + step)], [(step, 9)])
        ring.look([_bad(-step)], [(step, 9)])
    assert ring.take() == [
        finding
        for step in (3, 1, 2)
        for finding in (RawFinding(9, step, 1, 10 + step, 1, 10), RawFinding(step, step, 0, -step, 1, 0))
    ]
    assert ring.take() == []


def test_all_programs_of_a_launch_add_up_to_one_finding() -> None:
    ring = _ring(programs=3)
    values = torch.zeros(9000, dtype=torch.int64)
    values[[8999, 4000, 700]] = -1
    values[[8999 - 512, 1]] = 12
    ring.look([_job(values)], [(0, 1)])
    assert ring.take() == [RawFinding(0, 0, 700, -1, 3, 0), RawFinding(1, 0, 1, 12, 2, 10)]
    assert ring.totals(2) == [3, 2]
    assert [ring.fine(entry).item() for entry in range(3)] == [0, 0, 1]


def test_replays_of_one_step_are_told_apart_whichever_program_sees_what() -> None:
    ring = _ring(programs=4)
    values = torch.zeros(2048, dtype=torch.int64, device=DEVICE)
    job = _job(values)
    seen = []

    def launch() -> None:
        replay = len(seen)
        job.tensor.zero_()
        if replay != 1:  # nothing in the second
            job.tensor[512 * replay] = -1 - replay  # each time in another program's tile
        ring.look([job], [(0, 1)])
        seen.append(replay)

    _replayed(ring, launch, 4)
    assert ring.take() == [RawFinding(0, 0, 512 * replay, -1 - replay, 1, 0) for replay in (0, 2, 3)]


def test_a_table_without_room_reports_no_finding_in_part() -> None:
    """Three programs with two rows each, again and again, in a table for 25 rows."""
    ring = _ring(capacity=1, programs=3)
    ring.capacity = 100
    job = _job(torch.tensor([-1, 11] * 600))
    room = ring._rows
    launches = room // 6 + 3
    for step in range(launches):
        ring.set_step(step)
        ring.look([job], [(0, 1)])
    found = ring.take()
    assert found
    assert all((finding.count, finding.index) == (600, finding.entry) for finding in found)
    # The launch that the table ends in is not reported, nor are those after it; nor, if it ends between two,
    # the last before: the host cannot tell.
    assert [finding.step for finding in found] == sorted([*range(room // 6 - (room % 6 == 0))] * 2)
    assert ring.totals(2) == [600 * launches] * 2
    ring.set_step(77)
    ring.look([job], [(0, 1)])
    assert [(finding.step, finding.count) for finding in ring.take()] == [(77, 600)] * 2


def test_a_table_read_again_and_again_goes_round() -> None:
    """72 rows: read in time nothing is lost, doubled or out of order; read too late, only the newest are lost."""
    ring = _ring(capacity=1, programs=1)
    ring.capacity = 1000
    step = 0
    for launches in (30, 30, 71, 3, 80, 5):
        steps = list(range(step, step + launches))
        step += launches
        for each in steps:
            ring.set_step(each)
            ring.look([_bad(-each - 1)], [(0, 1)])
        found = ring.take()
        kept = launches if launches <= 72 else 71
        assert found == [RawFinding(0, each, 0, -each - 1, 1, 0) for each in steps[:kept]]


def test_tensors_that_share_a_launch_are_reported_one_by_one() -> None:
    """Two to six of different kinds, one of them with strides and so alone; some fine."""
    base = torch.tensor([4, 5], device=DEVICE)
    relative = jobs.make(("oob",), torch.tensor([4, 7], device=DEVICE), 0, 2, base, None)
    assert relative is not None
    floats = torch.ones(6000)
    floats[[5, 5999]] = math.nan
    half = torch.ones(3000, dtype=torch.float16)
    half[2999] = -math.inf
    strided = torch.ones(60, 30)
    strided[7, 3] = math.inf
    all_jobs = [
        _bad(3, -1),
        _job(floats),
        relative,
        _job(half),
        _job(strided.to(DEVICE).t()),
        _bad(1, 2),
    ]
    expected = {
        0: [RawFinding(0, 0, 1, -1, 1, 0)],
        1: [RawFinding(2, 0, 5, math.nan, 2, 0.0)],
        2: [RawFinding(5, 0, 1, 2, 1, 2)],
        3: [RawFinding(7, 0, 2999, -math.inf, 1, 0.0)],
        4: [RawFinding(9, 0, 3 * 60 + 7, math.inf, 1, 0.0)],
        5: [],
    }
    for count in (2, 3, 4, 6):
        ring = _ring(programs=2)
        ring.look(all_jobs[:count], [(2 * i, 2 * i + 1) for i in range(count)])
        findings = [finding for i in range(count) for finding in expected[i]]
        assert repr(ring.take()) == repr(findings)


def test_rows_of_two_pools_share_a_launch() -> None:
    ring = _ring(programs=2)
    pools = torch.zeros((4, 40, 2, 16), dtype=torch.bfloat16)
    pools[1, 7, 1, 3] = math.nan
    pools[2, 39, 0, 0] = math.nan
    pools[3, 38] = math.nan
    pools = pools.to(DEVICE)
    at = torch.arange(40, device=DEVICE)
    made = [jobs.make(("nan",), half, 0, 0, None, rows) for half in (pools[:2], pools[2:]) for rows in (at, at[:39])]
    assert None not in made
    before = next(ring._serials)
    ring.look([job for job in made if job is not None], [(i, None) for i in range(4)])
    assert next(ring._serials) - before == 3
    assert [(finding.entry, finding.index, finding.count) for finding in ring.take()] == [
        (0, (40 + 7) * 32 + 19, 1),
        (2, 39 * 32, 33),
        (1, (39 + 7) * 32 + 19, 1),
        (3, (39 + 38) * 32, 32),
    ]


def _later(arrived: bool = False) -> MagicMock:
    """Stands in for ``torch.cuda``: what is copied arrives when the test says so, by ``arrived``."""
    later = MagicMock(arrived=arrived)
    for name in ("Event", "Stream", "current_stream"):
        getattr(later, name).return_value = later
    later.current_device.return_value = DEVICE.index
    later.is_current_stream_capturing.return_value = False
    later.query.side_effect = lambda: later.arrived
    return later


@pytest.mark.skipif(DEVICE.type == "cuda", reason="plays the part of the device; test_cuda.py polls a real one")
def test_polling_hands_over_what_has_arrived_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    later = _later()
    monkeypatch.setattr(device, "_cuda", later)
    ring = _ring()
    ring._on_gpu = True
    assert ring.poll() == []  # begins to copy the counters, of which there are none yet
    ring.look([_bad(-1)], [(0, 1)])
    assert (ring.poll(), ring.poll(), later.Event.call_count) == ([], [], 2)
    later.arrived = True
    assert ring.poll() == []  # there was nothing then; begins to copy the counters as they are now
    ring.look([_bad(-2)], [(0, 1)])
    assert [finding.value for finding in ring.poll()] == [-1]
    later.synchronize.assert_not_called()
    ring.look([_bad(-3)], [(0, 1)])
    assert [finding.value for finding in ring.take()] == [-2, -3]
    later.synchronize.assert_called()
    assert ring.poll() == ring.poll() == []


@pytest.mark.skipif(DEVICE.type == "cuda", reason="plays the part of the device; test_cuda_deaths.py loses a real one")
@pytest.mark.parametrize("read", ["poll", "take"])
@pytest.mark.parametrize("limit", [False, True], ids=["at the next copy", "at the limit"])
def test_a_device_lost_while_findings_are_read_loses_none(
    monkeypatch: pytest.MonkeyPatch, read: str, limit: bool
) -> None:
    later = _later(arrived=True)
    monkeypatch.setattr(device, "_cuda", later)
    ring = _ring()
    ring._on_gpu = True
    ring.look([_bad(-1)], [(0, 1)])
    ring.poll()  # the counters are on their way
    ring.look([_bad(-2)], [(0, 1)])
    error = RuntimeError("CUDA error: device-side assert triggered")

    def lose(*_: object) -> None:
        later.synchronize.side_effect = later.wait_event.side_effect = error
        raise error

    if limit:
        monkeypatch.setattr(ring, "_limit", MagicMock(fill_=lose))
    else:
        later.synchronize.side_effect = later.wait_event.side_effect = error
    told = []
    for _ in range(2):
        try:
            told += getattr(ring, read)()
        except RuntimeError:
            break
    told += ring.salvage()
    assert [finding.value for finding in told] == [-1, -2]


def test_compiling_in_advance_finds_nothing() -> None:
    ring = _ring()
    ring.compile((torch.bfloat16,))
    assert ring.take() == []
    assert ring.totals(4) == [0] * 4


def test_what_finished_launches_found_can_be_salvaged_without_the_device() -> None:
    ring = _ring()
    ring.look([_bad(1, 12, -3)], [(5, 6)])
    ring.look([_job(torch.tensor([1, 2]))], [(5, 6)])
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    assert [(found.entry, found.index, found.value) for found in ring.salvage()] == [(5, 2, -3), (6, 1, 12)]
    assert ring.salvage() == ring.take(), "nothing was consumed"
    assert ring.salvage() == []
