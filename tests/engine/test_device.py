"""Crossing between host and device: same values on both sides; reports of long work reach every listener."""

import numpy as np
import pytest
import torch

from specdebug.engine import progress
from specdebug.engine.device import Readback, upload


def check_both_ways(device: torch.device) -> None:
    rows = [[1, 2, 3], [4, 5, -6]]
    there = upload(rows, device)
    assert there.device.type == device.type
    assert there.dtype == torch.int64
    assert Readback(there * 2).wait() == [[2, 4, 6], [8, 10, -12]]
    assert upload([True, False], device).dtype == torch.bool
    assert upload(np.array([0.5, 1.5], dtype=np.float32), device).tolist() == [0.5, 1.5]


def test_what_goes_up_comes_back() -> None:
    check_both_ways(torch.device("cpu"))


@pytest.mark.gpu
def test_a_gpu_is_not_waited_for_until_the_values_are_read() -> None:
    device = torch.device("cuda")
    check_both_ways(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        numbers = upload(list(range(4)), device).view(2, 2)
        readback = Readback(numbers + 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert readback.wait() == [[1, 2], [3, 4]]


def test_every_listener_hears_every_report_until_it_is_forgotten() -> None:
    one: list[str] = []
    other: list[str] = []
    forget_one = progress.listen(one.append)
    forget_other = progress.listen(other.append)
    try:
        progress.report("capturing graphs, batch 4")
        forget_one()
        forget_one()
        progress.report("")
    finally:
        forget_other()
    assert one == ["capturing graphs, batch 4"]
    assert other == ["capturing graphs, batch 4", ""]
    progress.report("nobody listens")
    assert other[-1] == ""
