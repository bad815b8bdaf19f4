"""FlashInfer's wrappers in torch: the attention of a plain reference, over what a plan left in the buffers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.targets.sglang.inside.attention import merge_state_v2
from specdebug.targets.sglang.inside.flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    TorchHere,
    fast_decode_plan,
)

HEADS, KV_HEADS, DIM, SCALE = 4, 2, 8, 0.3
WORKSPACE = torch.empty(1)
SLOTS = [[3, 9, 1], [], [7, 2, 5, 8, 4]]
INDPTR = torch.tensor([0, 3, 3, 8], dtype=torch.int32)
INDICES = torch.tensor([slot for each in SLOTS for slot in each], dtype=torch.int32)
LAST = torch.ones(3, dtype=torch.int32)
SIZES = (HEADS, KV_HEADS, DIM, 1)


def drawn(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


KV = (drawn(12, KV_HEADS, DIM, seed=1), drawn(12, KV_HEADS, DIM, seed=2))


def reference(q: Tensor, slots: list[int], allowed: Any = None) -> Tensor:
    """One query [heads, D] over slots, in float64, key by key."""
    out = torch.zeros(HEADS, DIM, dtype=torch.float64)
    for head in range(HEADS):
        weights = []
        for number, slot in enumerate(slots):
            seen = allowed is None or allowed[number]
            score = float(q[head].double() @ KV[0][slot, head // 2].double()) * SCALE
            weights.append(math.exp(score) if seen else 0.0)
        for weight, slot in zip(weights, slots, strict=True):
            out[head] += weight / sum(weights) * KV[1][slot, head // 2].double()
    return out.float()


@pytest.mark.parametrize("graphs", [False, True])
def test_a_decode_reads_the_slots_that_are_planned(graphs: bool) -> None:
    buffers = {
        "use_cuda_graph": graphs,
        "paged_kv_indptr_buffer": torch.zeros(4, dtype=torch.int32),
        "paged_kv_indices_buffer": torch.zeros(20, dtype=torch.int32),
    }
    wrapper = BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, "NHD", **buffers)
    assert wrapper.is_cuda_graph_enabled is graphs
    wrapper.begin_forward(INDPTR, INDICES, LAST, *SIZES, data_type=torch.float32)
    q = drawn(3, HEADS, DIM)
    out = wrapper.forward(q, KV, sm_scale=SCALE, logits_soft_cap=0.0, k_scale=None, v_scale=None)
    for row, slots in enumerate(SLOTS):
        wanted = reference(q[row], slots) if slots else torch.zeros(HEADS, DIM)
        torch.testing.assert_close(out[row], wanted, atol=1e-5, rtol=1e-5)


def test_under_graphs_what_is_written_into_the_buffers_counts_and_a_fast_plan_copies_nothing() -> None:
    indptr, indices = INDPTR.clone(), torch.zeros(20, dtype=torch.int32)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        WORKSPACE, use_cuda_graph=True, paged_kv_indptr_buffer=indptr, paged_kv_indices_buffer=indices
    )
    indices[:8] = INDICES.flip(0)
    fast_decode_plan(wrapper, INDPTR, INDICES, LAST, *SIZES, global_override_indptr_cpu=INDPTR)
    q = drawn(3, HEADS, DIM)
    out = wrapper.forward(q, KV, sm_scale=SCALE)
    wanted = reference(q[2], INDICES.flip(0).tolist()[3:])
    torch.testing.assert_close(out[2], wanted, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="30 indices are planned, the buffer holds 20"):
        wrapper.begin_forward(INDPTR, torch.zeros(30, dtype=torch.int32), LAST, *SIZES)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_verify_sees_what_its_mask_lets_it(graphs: bool) -> None:
    slots = [[3, 9, 1, 6], [7, 2, 5]]
    indptr, indices = torch.tensor([0, 4, 7], dtype=torch.int32), torch.tensor([3, 9, 1, 6, 7, 2, 5], dtype=torch.int32)
    rows = torch.tensor([0, 2, 4], dtype=torch.int32)
    mask = torch.tensor([1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1], dtype=torch.bool)
    buffers = {
        "qo_indptr_buf": torch.zeros(3, dtype=torch.int32),
        "paged_kv_indptr_buf": torch.zeros(3, dtype=torch.int32),
        "paged_kv_indices_buf": torch.zeros(9, dtype=torch.int32),
        "paged_kv_last_page_len_buf": torch.zeros(2, dtype=torch.int32),
        "custom_mask_buf": torch.zeros(50, dtype=torch.uint8),
    }
    wrapper = BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, use_cuda_graph=graphs, **(buffers if graphs else {}))
    wrapper.begin_forward(rows, indptr, indices, LAST[:2], *SIZES, custom_mask=mask, prefix_len_ptr=None)
    q = drawn(4, HEADS, DIM)
    out = wrapper.forward(q, KV, causal=True, sm_scale=SCALE, window_left=-1, logits_soft_cap=None)
    allowed = [mask[:4], mask[4:8], mask[8:11], mask[11:]]
    for row in range(4):
        wanted = reference(q[row], slots[row // 2], allowed[row])
        torch.testing.assert_close(out[row], wanted, atol=1e-5, rtol=1e-5)


def test_under_graphs_a_plan_of_sglangs_own_writes_into_the_buffers() -> None:
    names = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_last_page_len_buf")
    wrapper = BatchPrefillWithPagedKVCacheWrapper(
        WORKSPACE, use_cuda_graph=True, paged_kv_indices_buf=torch.zeros(20, dtype=torch.int32),
        **{name: torch.zeros(4, dtype=torch.int32) for name in names},
    )  # fmt: skip
    assert (wrapper._backend, wrapper._cached_module.plan(1, 2)) == ("fa2", None)
    wrapper._qo_indptr_buf.copy_(torch.arange(4))
    wrapper._paged_kv_indptr_buf.copy_(INDPTR)
    wrapper._paged_kv_indices_buf[:8] = INDICES
    q = drawn(3, HEADS, DIM)
    out = wrapper.forward(q, KV, causal=False, sm_scale=SCALE)
    for row in (0, 2):
        torch.testing.assert_close(out[row], reference(q[row], SLOTS[row]), atol=1e-5, rtol=1e-5)


def test_new_tokens_and_the_cached_prefix_are_attended_to_apart_and_merged() -> None:
    prefix, new = [3, 9, 1], [6, 7]
    q = drawn(2, HEADS, DIM)
    ragged = BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, "NHD", backend="auto")
    rows = torch.tensor([0, 2], dtype=torch.int32)
    ragged.begin_forward(rows, rows, HEADS, KV_HEADS, DIM, q_data_type=torch.float32)
    one = ragged.forward_return_lse(q, KV[0][new], KV[1][new], causal=True, sm_scale=SCALE)
    paged = BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, "NHD", backend="fa2")
    paged.begin_forward(rows, torch.tensor([0, 3]), torch.tensor(prefix), LAST[:1], *SIZES)
    two = paged.forward_return_lse(q, KV, causal=False, sm_scale=SCALE)
    merged, _ = merge_state_v2(*one, *two)
    for row in range(2):
        wanted = reference(q[row], [*prefix, *new[: row + 1]])
        torch.testing.assert_close(merged[row], wanted, atol=1e-5, rtol=1e-5)
    nothing = paged.begin_forward(rows, torch.tensor([0, 0]), torch.tensor([]), LAST[:1], *SIZES)
    assert nothing is None
    empty, lse = paged.forward_return_lse(q, KV, causal=False, sm_scale=SCALE)
    assert (bool(empty.any()), bool(lse.isinf().all())) == (False, True)


def test_what_no_plan_of_sglang_asks_for_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="layout HND"):
        BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, "HND")
    wrapper = BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    with pytest.raises(NotImplementedError, match="page_size"):
        wrapper.begin_forward(INDPTR, INDICES, LAST, HEADS, KV_HEADS, DIM, 16)
    wrapper.begin_forward(INDPTR, INDICES, LAST, *SIZES)
    with pytest.raises(NotImplementedError, match="logits_soft_cap"):
        wrapper.forward(drawn(3, HEADS, DIM), KV, sm_scale=SCALE, logits_soft_cap=30.0)


def test_buffers_asked_for_on_cuda_are_here_with_memory_behind_them() -> None:
    here: Any = TorchHere()
    made = here.zeros((2, 3), dtype=torch.int32, device="cuda")
    assert (made.shape, made.device.type, made.dtype) == ((2, 3), "cpu", torch.int32)
    assert made.untyped_storage().size() == 2 * 6 * 4
    assert here.empty(5, dtype=torch.int64, device="cuda").shape == (5,)
    assert here.zeros(4).untyped_storage().size() == 4 * 4
    assert here.float32 is torch.float32
