"""What vLLM's kernels ask of Triton's interpreter and it does wrong, it does right once mended."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.interpreter import InterpreterBuilder

from specdebug.targets.vllm.inside.interpreter import compute_log1p, cut_in_torch, take_masks_of_integers
from tests.interpreter import device

__all__ = ["device"]
SIZE = 4


@pytest.fixture(autouse=True)
def _triton_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back, after a test, all that is replaced."""
    for owner, name in (
        (InterpreterBuilder, "create_masked_load"),
        (InterpreterBuilder, "create_masked_store"),
        (libdevice, "log1p"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name, None), raising=False)


@triton.jit
def _first(of: Any, into: Any, count: Any, SIZE: tl.constexpr) -> None:
    at = tl.arange(0, SIZE)
    held = (tl.load(count) > 0) & (at < tl.load(count))
    tl.store(into + at, tl.load(of + at, mask=held.to(tl.int32) & 1, other=-1))


def test_a_mask_may_be_of_integers(device: str) -> None:
    values, into = torch.tensor([5, 6, 7, 8], device=device), torch.zeros(SIZE, dtype=torch.int64, device=device)
    take_masks_of_integers()
    _first[(1,)](values, into, torch.tensor([3], device=device), SIZE)
    assert into.tolist() == [5, 6, 7, -1]


@triton.jit
def _logs(of: Any, into: Any, SIZE: tl.constexpr) -> None:
    at = tl.arange(0, SIZE)
    tl.store(into + at, libdevice.log1p(tl.load(of + at)))


def test_log1p_is_numpy_s(device: str) -> None:
    values, into = torch.tensor([0.0, 1e-6, 0.5, 3.0], device=device), torch.zeros(SIZE, device=device)
    compute_log1p()
    _logs[(1,)](values, into, SIZE)
    assert torch.allclose(into, torch.log1p(values))


def test_top_k_and_top_p_are_cut_by_vllm_s_own_way_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler: Any = ModuleType("vllm.v1.sample.ops.topk_topp_sampler")
    sampler.HAS_TRITON = True
    ops: Any = ModuleType("vllm.v1.sample.ops")
    ops.topk_topp_sampler = sampler
    for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, ops.__name__, ops)
    monkeypatch.setitem(sys.modules, sampler.__name__, sampler)
    cut_in_torch()
    assert sampler.HAS_TRITON is False
