"""Fill policies: what unwritten memory holds, the same for the same seed."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.memory.arena import FillMode, FillPolicy, Scratch

CPU = torch.device("cpu")
INTS = [torch.int64, torch.int32, torch.int8, torch.uint8]
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def _painted(mode: FillMode, dtype: torch.dtype, shape: tuple[int, ...] = (7, 9)) -> torch.Tensor:
    tensor = torch.ones(shape, dtype=dtype)
    FillPolicy(mode).paint(tensor)
    return tensor


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS, torch.bool])
def test_zeros(dtype: torch.dtype) -> None:
    assert not bool(_painted("zeros", dtype).any())


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_makes_every_float_nan(dtype: torch.dtype) -> None:
    assert bool(_painted("nan", dtype).isnan().all())


@pytest.mark.parametrize("mode", ["nan", "garbage"])
@pytest.mark.parametrize("dtype", INTS)
def test_integers_hold_garbage(mode: FillMode, dtype: torch.dtype) -> None:
    """Every byte is drawn, so that a 64-bit id is out of any bound almost surely."""
    values = _painted(mode, dtype, shape=(64, 64))
    assert values.unique().numel() > 200
    by_byte = values.view(torch.uint8).view(-1, values.element_size())
    assert all(column.unique().numel() > 200 for column in by_byte.T)


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_garbage_depends_on_the_seed_and_on_what_was_painted_before(dtype: torch.dtype) -> None:
    def run(seed: int) -> list[torch.Tensor]:
        policy, out = FillPolicy("garbage", seed), []
        for _ in range(3):
            out.append(torch.ones(5, 5, dtype=dtype))
            policy.paint(out[-1])
        return [tensor.view(torch.uint8) for tensor in out]

    first, again, other = run(3), run(3), run(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_garbage_booleans_are_true_and_false() -> None:
    values = _painted("garbage", torch.bool)
    assert set(values.view(torch.uint8).unique().tolist()) == {0, 1}


@pytest.mark.parametrize("mode", ["zeros", "nan", "garbage"])
def test_painting_a_view_leaves_its_surroundings(mode: FillMode) -> None:
    whole = torch.full((6, 6), 5.0)
    FillPolicy(mode).paint(whole[1:4, ::2])
    untouched = torch.ones(6, 6, dtype=torch.bool)
    untouched[1:4, ::2] = False
    assert bool((whole[untouched] == 5.0).all())
    assert not bool((whole[~untouched] == 5.0).any())


@pytest.mark.parametrize("mode", ["zeros", "nan", "garbage"])
def test_empty_tensors_are_painted_without_complaint(mode: FillMode) -> None:
    assert _painted(mode, torch.int32, shape=(0, 3)).shape == (0, 3)
    assert _painted(mode, torch.bool, shape=(0,)).shape == (0,)


@pytest.mark.parametrize(("mode", "poisons"), [("zeros", False), ("nan", True), ("garbage", True)])
def test_only_zeros_leaves_released_memory_as_it_was(mode: FillMode, poisons: bool) -> None:
    assert FillPolicy(mode).poisons is poisons


def test_scratch_gives_what_the_policy_says() -> None:
    scratch = Scratch(FillPolicy("nan"), CPU)
    assert bool(scratch.empty((2, 3), torch.float32).isnan().all())
    assert scratch.empty((2, 3), torch.int32).shape == (2, 3)
    assert scratch.empty((64,), torch.int64).ne(0).all()
    zeros = scratch.zeros((4,), torch.int64)
    assert zeros.tolist() == [0, 0, 0, 0]
    assert zeros.dtype == torch.int64
    assert scratch.device == CPU


@pytest.mark.parametrize("mode", ["zeros", "nan", "garbage"])
def test_no_two_rows_hold_the_same_noise(mode: FillMode) -> None:
    """Of a buffer longer than the bank, too, whatever the width of its rows."""
    rows = _painted(mode, torch.int64, shape=(600, 512))
    assert rows.unique(dim=0).shape[0] == (1 if mode == "zeros" else 600)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool])
def test_a_gpu_s_memory_holds_what_a_cpu_s_would_and_nobody_waits(dtype: torch.dtype) -> None:
    policies = {device: FillPolicy("garbage", 3) for device in ("cpu", "cuda")}
    for device, policy in policies.items():
        policy.paint(torch.empty(5, dtype=dtype, device=device))
    shape, painted = (300, 1000), {}
    for device, policy in policies.items():
        painted[device] = torch.empty(shape, dtype=dtype, device=device)
        torch.cuda.set_sync_debug_mode("error")
        try:
            policy.paint(painted[device])
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(painted["cuda"].cpu().view(torch.uint8), painted["cpu"].view(torch.uint8))
