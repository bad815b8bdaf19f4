"""Whose memory an address is."""

from __future__ import annotations

import torch

from specdebug.kernel_memory.regions import live_tensors


def test_what_only_stands_for_a_tensor_is_passed_over() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3)
    assert fake.device.type == "cpu"
    assert all(each is not fake for each in live_tensors())
