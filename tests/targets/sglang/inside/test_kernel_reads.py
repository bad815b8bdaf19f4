"""What the stand-ins say that their kernels read: of kv_indices the parts of rows, of a mask the tree's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.targets.sglang.inside import kernel_reads
from specdebug.targets.sglang.inside.attention import flash_attn_with_kvcache
from specdebug.targets.sglang.inside.flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
)
from specdebug.targets.sglang.inside.kernel_reads import Read, on_kernel
from tests.targets.sglang.inside.launching import decode, extend

Told = dict[str, list[tuple[int, list[Any]]]]
KV = torch.zeros(8, 1, 2)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """By ``kernel.argument``, the rows and what was read for each, in order."""
    read: Told = {}
    monkeypatch.setattr(kernel_reads, "_listeners", [])

    def listen(kernel: str, reads: Iterator[Read], run: Callable[[], Any]) -> Any:
        for argument, tensor, row in reads:
            read.setdefault(f"{kernel}.{argument}", []).append((row, tensor.tolist()))
        return run()

    on_kernel(listen)
    return read


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_decode_reads_the_slots_of_its_rows(told: Told) -> None:
    q, o = torch.zeros(2, 1, 2), torch.zeros(2, 1, 2)
    decode(q, KV, KV, o, ints(0, 2, 3, 7), ints(4, 5, 6, 7, 7, 7, 7), 1.0, splits=ints(1, 1, 9))
    assert told == {  # by both of its kernels
        "decode_attention_fwd.kv_indptr": [(0, [0, 2, 3])] * 2,
        "decode_attention_fwd.num_kv_splits": [(0, [1, 1])] * 2,
        "decode_attention_fwd.kv_indices": [(0, [4, 5]), (1, [6])],
    }


def test_extend_reads_of_its_mask_the_columns_of_new_tokens(told: Told) -> None:
    new = torch.zeros(3, 1, 2)
    mask = torch.arange(1, 9, dtype=torch.uint8)
    extend(
        (new, new, new), torch.zeros(3, 1, 2), (KV, KV), ints(0, 1, 3), ints(0, 2, 2), ints(4, 5), 1.0, mask=mask,
        mask_rows=ints(0, 3, 9),
    )  # fmt: skip
    assert told == {
        "extend_attention_fwd.qo_indptr": [(0, [0, 1, 3])],
        "extend_attention_fwd.kv_indptr": [(0, [0, 2, 2])],
        "extend_attention_fwd.kv_indices": [(0, [4, 5])],
        "extend_attention_fwd.mask_indptr": [(0, [0, 3])],
        "extend_attention_fwd.custom_mask": [(0, [[3]]), (1, [[4, 5], [6, 7]])],
    }


def test_flash_attention_reads_the_pages_of_its_lengths(told: Told) -> None:
    cache = torch.zeros(4, 2, 1, 2)
    table = torch.tensor([[1, 2, 3], [2, 3, 3]], dtype=torch.int32)
    flash_attn_with_kvcache(torch.zeros(2, 1, 1, 2), cache, cache, cache_seqlens=ints(3, 2), page_table=table)
    assert told == {
        "flash_attn_with_kvcache.cache_seqlens": [(0, [3, 2])],
        "flash_attn_with_kvcache.page_table": [(0, [1, 2]), (1, [2])],
    }


def test_flashinfer_reads_what_was_planned_into_its_buffers(told: Told) -> None:
    work = torch.zeros(1)
    decode = BatchDecodeWithPagedKVCacheWrapper(work)
    decode.plan(ints(0, 1, 3), ints(4, 5, 6), ints(1, 1), 1, 1, 2, 1)
    decode.forward(torch.zeros(2, 1, 2), (KV, KV), sm_scale=1.0)
    prefill = BatchPrefillWithPagedKVCacheWrapper(work)
    mask = torch.tensor([True, True, True, False])
    prefill.plan(ints(0, 2), ints(0, 2), ints(4, 5), ints(1), 1, 1, 2, 1, custom_mask=mask)
    prefill.forward(torch.zeros(2, 1, 2), (KV, KV), sm_scale=1.0)
    assert told == {
        "BatchDecodeWithPagedKVCacheWrapper.kv_indptr": [(0, [0, 1, 3])],
        "BatchDecodeWithPagedKVCacheWrapper.kv_indices": [(0, [4]), (1, [5, 6])],
        "BatchPrefillWithPagedKVCacheWrapper.qo_indptr": [(0, [0, 2])],
        "BatchPrefillWithPagedKVCacheWrapper.kv_indptr": [(0, [0, 2])],
        "BatchPrefillWithPagedKVCacheWrapper.kv_indices": [(0, [4, 5])],
        "BatchPrefillWithPagedKVCacheWrapper.custom_mask": [(0, [True, True, True, False])],
    }
