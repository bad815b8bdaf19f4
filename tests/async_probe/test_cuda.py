"""Probes on a GPU: no synchronisation, captured and replayed, and an assertion that kills the context."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from specdebug import async_probe
from specdebug.async_probe import (
    Violation,
    maybe_detect_inf,
    maybe_detect_nan,
    maybe_detect_oob,
    maybe_detect_page_aligned,
    parse_message,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def no_synchronisation() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode(before)


def _probe_all(logits: torch.Tensor, ids: torch.Tensor) -> None:
    maybe_detect_nan(logits, "test.logits")
    maybe_detect_inf(logits, "test.logits")
    maybe_detect_oob(ids, 0, 10, "test.ids", relative_to=torch.zeros_like(ids))
    maybe_detect_page_aligned(ids, 1, "test.pages")


@pytest.mark.usefixtures("no_synchronisation")
@pytest.mark.parametrize("mode", ["record", "assert"])
def test_probing_never_waits(mode: str) -> None:
    async_probe.configure(mode)
    async_probe.set_step(3)
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        logits = torch.ones((4, 6), device="cuda").to(dtype)
        _probe_all(logits.t(), torch.ones(5, dtype=torch.int32, device="cuda"))


def test_findings_as_on_a_cpu() -> None:
    logits = torch.tensor([[1.0, math.inf], [math.nan, math.nan]])
    ids = torch.tensor([3, -4886055425978319163, 10, 11])
    found = []
    for device in ("cpu", "cuda"):
        async_probe.configure("record")
        async_probe.set_step(2)
        _probe_all(logits.to(device), ids.to(device))
        found.append([(each.signature, each.step, each.index, str(each.value), each.count, each.bound)
                      for each in async_probe.drain()])  # fmt: skip
    assert found[0] == found[1]
    assert len(found[0]) == 4


def test_replays_record_what_they_see() -> None:
    async_probe.configure("record")
    async_probe.prepare("cuda")
    ids = torch.ones(4, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        maybe_detect_oob(ids, 0, 10, "test.ids")
    for step, value in enumerate([1, 10, -2]):
        async_probe.set_step(step)
        ids[2] = value
        graph.replay()
    assert async_probe.drain() == [
        Violation("test.ids", "oob", 1, 2, 10, 1, "not below 10"),
        Violation("test.ids", "oob", 2, 2, -2, 1, "below 0"),
    ]


def test_the_first_probe_of_a_device_inside_a_capture_is_refused() -> None:
    async_probe.configure("record")
    ids = torch.ones(4, dtype=torch.int64, device="cuda")
    with pytest.raises(RuntimeError, match="prepare"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        maybe_detect_oob(ids, 0, 10, "test.ids")


def test_an_assertion_names_its_site_on_the_way_out() -> None:
    code = (
        "import torch\n"
        "from specdebug.async_probe import maybe_detect_oob\n"
        "maybe_detect_oob(torch.tensor([3, 10], device='cuda'), 0, 10, 'test.ids')\n"
        "torch.cuda.synchronize()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SGLANG_ENABLE_ASYNC_ASSERT": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert parse_message(done.stderr) == Violation("test.ids", "oob", bound="not below 10")
