"""Probes on a GPU: no synchronisation, captured and replayed, and an assertion that kills the context."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from specdebug import async_probe
from specdebug.async_probe import (
    ProbeFinding,
    maybe_detect_inf,
    maybe_detect_nan,
    maybe_detect_nonfinite,
    maybe_detect_oob,
    maybe_detect_page_aligned,
    parse_message,
)

pytestmark = pytest.mark.gpu


@pytest.fixture
def no_synchronisation() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode(before)


def _probe_all(logits: torch.Tensor, ids: torch.Tensor) -> None:
    maybe_detect_nan(logits, "test.logits")
    maybe_detect_inf(logits, "test.logits")
    maybe_detect_nonfinite(logits, "test.both")
    maybe_detect_oob(ids, 0, 10, "test.ids", relative_to=torch.zeros_like(ids))
    maybe_detect_page_aligned(ids, 1, "test.pages")
    with async_probe.grouped():
        maybe_detect_oob(ids, 1, 9, "test.ids")
        maybe_detect_nonfinite(logits, "test.both", at=torch.zeros_like(ids[:1]))
        maybe_detect_oob(ids, 2, 8, "test.pages")


@pytest.mark.usefixtures("no_synchronisation")
@pytest.mark.parametrize("mode", ["record", "assert"])
def test_probing_never_waits(mode: str) -> None:
    async_probe.configure(mode)
    async_probe.set_step(3)
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        logits = torch.ones((4, 6), device="cuda").to(dtype)
        _probe_all(logits.t(), torch.full((5,), 3, dtype=torch.int32, device="cuda"))
    async_probe.set_step(4)
    async_probe.poll()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_findings_as_on_a_cpu(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0, math.inf], [math.nan, math.nan]], dtype=dtype)
    ids = torch.tensor([3, -4886055425978319163, 10, 11])
    found = []
    for device in ("cpu", "cuda"):
        async_probe.configure("record")
        async_probe.set_step(2)
        _probe_all(logits.to(device), ids.to(device))
        found.append([(each.signature, each.step, each.index, str(each.value), each.count, each.bound)
                      for each in async_probe.drain()])  # fmt: skip
    assert sorted(found[0], key=str) == sorted(found[1], key=str)  # in a group, those of a launch come together
    assert len(found[0]) == 11


def test_replays_within_a_step_are_told_apart() -> None:
    """Large enough for many programs, bad each time in another one's part."""
    async_probe.configure("record")
    async_probe.prepare("cuda", [torch.bfloat16])
    logits = torch.ones((1, 128_256), dtype=torch.bfloat16, device="cuda")
    ids = torch.ones(512, dtype=torch.int64, device="cuda")

    def probe() -> None:
        with async_probe.grouped():
            maybe_detect_oob(ids, 0, 10, "test.ids")
            maybe_detect_nonfinite(logits, "test.logits")

    probe()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        probe()
    places = [0, 128_255, 4000, 60_000]
    for place in places:
        logits.fill_(1.0)
        logits[0, place] = math.nan
        graph.replay()
        logits[0, place] = math.inf
        graph.replay()
    found = [(each.signature, each.index, each.count) for each in async_probe.drain()]
    assert found == [(f"{kind}@test.logits", place, 1) for place in places for kind in ("nan", "inf")]
    assert async_probe.totals() == {("test.logits", "nan"): 4, ("test.logits", "inf"): 4}


def test_probes_that_are_off_add_nothing_to_a_graph() -> None:
    async_probe.configure("off")
    logits = torch.ones(8, device="cuda")

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            maybe_detect_nonfinite(logits, "test.logits")
            with async_probe.grouped():
                maybe_detect_oob(logits, 0, 1, "test.logits")

    with pytest.warns(UserWarning, match="CUDA Graph is empty"):
        capture()


def test_polling_brings_everything_in_order_and_never_waits() -> None:
    async_probe.configure("record")
    async_probe.prepare("cuda", [])
    ids = torch.ones(4, dtype=torch.int64, device="cuda")
    found: list[ProbeFinding] = []
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    for step in range(200):
        async_probe.set_step(step)
        ids.fill_(-step)
        maybe_detect_oob(ids, 0, 10, "test.ids")
        found += async_probe.poll()
    torch.cuda.set_sync_debug_mode(before)
    for _ in range(10):  # what was under way arrives once the device is idle
        torch.cuda.synchronize()
        found += async_probe.poll()
    assert [each.step for each in found] == list(range(1, 200))
    assert async_probe.drain() == []


def test_more_elements_than_an_int32_counts() -> None:
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GiB of device memory")
    async_probe.configure("record")
    big = torch.zeros(2**31 + 4096 + 3, dtype=torch.int8, device="cuda").view(torch.float8_e5m2)
    bits = big.view(torch.int8)
    bits[2**31 + 4096 + 2], bits[5] = 0x7F, 0x7C
    maybe_detect_nonfinite(big, "test.flat")
    maybe_detect_nonfinite(big[: 2**31].view(2**20, 2**11)[:, 5:], "test.columns")
    maybe_detect_nonfinite(big[1:], "test.misaligned")
    assert [(each.signature, each.index, each.count) for each in async_probe.drain()] == [
        ("nan@test.flat", 2**31 + 4098, 1),
        ("inf@test.flat", 5, 1),
        ("inf@test.columns", 0, 1),
        ("nan@test.misaligned", 2**31 + 4097, 1),
        ("inf@test.misaligned", 4, 1),
    ]


def test_the_first_probe_of_a_device_inside_a_capture_is_refused() -> None:
    async_probe.configure("record")
    ids = torch.ones(4, dtype=torch.int64, device="cuda")
    with pytest.raises(RuntimeError, match="prepare"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        maybe_detect_oob(ids, 0, 10, "test.ids")


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        (
            "maybe_detect_oob(torch.tensor([3, 10], device='cuda'), 0, 10, 'test.ids')",
            ProbeFinding("test.ids", "oob", bound="not below 10"),
        ),
        (
            "maybe_detect_nonfinite(torch.tensor([1, float('inf')], device='cuda').bfloat16(), 'test.logits')",
            ProbeFinding("test.logits", "inf"),
        ),
    ],
)
def test_an_assertion_names_its_site_on_the_way_out(probe: str, expected: ProbeFinding) -> None:
    code = (
        "import torch\n"
        "from specdebug.async_probe import maybe_detect_nonfinite, maybe_detect_oob\n"
        "maybe_detect_oob(torch.tensor([3, 9], device='cuda'), 0, 10, 'test.fine')\n"
        "torch.cuda.synchronize()\n"
        f"{probe}\n"
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
    assert parse_message(done.stderr) == expected
