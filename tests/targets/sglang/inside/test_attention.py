"""The stand-ins of attention kernels against attention written out in float64, and what they say a kernel reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.targets.inside import guard
from specdebug.targets.sglang.inside import attention, launches
from specdebug.targets.sglang.inside.attention import (
    STAGE1,
    attend,
    attend_slots,
    flash_attn_with_kvcache,
    from_pointer,
    merge_state_v2,
    padded,
)
from specdebug.targets.sglang.inside.flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
)
from specdebug.targets.sglang.inside.launches import LaunchedStandIn, Read, on_kernel, reads_like_a_kernel
from specdebug.targets.sglang.inside.seats import NoSeat
from tests.targets.sglang.inside.launching import SPLITS, decode, extend, kernel

HEADS, KV_HEADS, DIM, SLOTS, QUERIES = 4, 2, 8, 40, 3
SCALE = 0.3
LENGTHS = [5, 0, 9, 3]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape)))


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def written_out(q: Tensor, keys: Tensor, values: Tensor, visible: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Attention of each query over the positions that it sees, [n, heads, D], and the logs of the sums of weights."""
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.full((q.shape[1], q.shape[0]), float("-inf"))
    for row, seen in enumerate(visible):
        for head in range(q.shape[1] if seen else 0):
            kv = head // (q.shape[1] // keys.shape[1])
            scores = [float(q[row, head].double() @ keys[at, kv].double()) * SCALE for at in seen]
            weights = torch.tensor(scores, dtype=torch.float64)
            lse[head, row] = weights.logsumexp(0)
            out[row, head] = weights.softmax(0) @ values[seen, kv].double()
    return out, lse


def close(ours: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(ours.double(), right.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("at_once", [1, 20, 1 << 16])
def test_a_batch_is_its_requests_one_by_one(causal: bool, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "AT_ONCE", at_once)
    q, k, v = random(len(LENGTHS), QUERIES, HEADS, DIM), random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM) + 1
    slots = torch.randint(1, SLOTS, (len(LENGTHS), 12), generator=torch.Generator().manual_seed(0))
    k[0] = v[0] = float("nan")  # what padding reads
    out, lse = attend_slots(q, k, v, slots, LENGTHS, SCALE, causal)
    for row, length in enumerate(LENGTHS):
        at, right = slots[row, :length], (torch.zeros_like(q[row]), torch.full((HEADS, QUERIES), float("-inf")))
        if length:
            right = attend(q[row], k[at], v[at], SCALE, causal)
            ends = [length - QUERIES + n + 1 if causal else length for n in range(QUERIES)]
            close(right[0], written_out(q[row], k[at], v[at], [list(range(end)) for end in ends])[0])
        close(out[row], right[0])
        close(lse[row], right[1])


@pytest.mark.parametrize("where", ["k", "v"])
def test_a_nan_that_is_read_comes_through(where: str) -> None:
    cache = {"k": random(SLOTS, KV_HEADS, DIM), "v": random(SLOTS, KV_HEADS, DIM)}
    cache[where][7, 1] = float("nan")
    q, slots = random(2, 1, HEADS, DIM), torch.tensor([[3, 7], [3, 4]])
    out, _ = attend_slots(q, cache["k"], cache["v"], slots, [2, 2], SCALE)
    assert out[0, 0].isnan().any(-1).tolist() == [False, False, True, True]  # the heads of that KV head
    assert not out[1].isnan().any()


def test_rows_are_laid_beside_each_other_and_a_slice_is_a_pointer() -> None:
    rows, lengths = padded(torch.tensor([4, 5, 6, 7, 8]), [0, 2, 2, 5])
    assert lengths == [2, 0, 3]
    assert [rows[number, :length].tolist() for number, length in enumerate(lengths)] == [[4, 5], [], [6, 7, 8]]
    assert padded(ints(), [0, 0])[1] == [0]
    assert padded(torch.tensor([1]), [0])[1] == []
    assert from_pointer(torch.arange(10)[3:5]).tolist() == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("splits", [1, 2, SPLITS])
def test_decode_reads_the_slots_that_the_indices_name(splits: int) -> None:
    k, v, q = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM), random(3, HEADS, DIM)
    slots = torch.tensor([3, 1, 7, 7, 20, 39, 5])
    out = torch.full_like(q, 9.0)
    decode(q, k, v, out, torch.tensor([0, 2, 2, 7]), slots, SCALE, splits=torch.full((3,), splits))
    right, _ = written_out(q, k, v, [[3, 1], [], [7, 7, 20, 39, 5]])
    close(out[[0, 2]], right[[0, 2]])
    assert torch.equal(out[1], torch.full_like(out[1], 9.0))


def test_a_kernel_reads_by_the_strides_that_it_is_launched_with() -> None:
    """So a launch with strides of other dimensions, or of another buffer, shows."""
    k, v = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM)
    q = random(3, HEADS, DIM).transpose(0, 1).contiguous().transpose(0, 1)
    out = torch.zeros(3, HEADS, DIM)
    decode(q, k, v, out, torch.tensor([0, 1, 2, 3]), torch.tensor([3, 4, 5]), SCALE)
    close(out, written_out(q, k, v, [[3], [4], [5]])[0])
    with pytest.raises(RuntimeError, match="out of bounds"):
        decode(q, k, v, out, torch.tensor([0, 1, 2, 3]), torch.tensor([3, 4, 5]), SCALE, stride_qbs=1 << 20)


def test_pages_are_read_where_their_slots_lie_and_others_refused() -> None:
    k, v, q = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM), random(1, HEADS, DIM)
    slot = k.stride(0)
    pages = {f"stride_buf_{side}{of}": by for side in "kv" for of, by in (("page", 4 * slot), ("tok", slot))}
    out, at = torch.zeros(1, HEADS, DIM), (torch.tensor([0, 2]), torch.tensor([9, 4]))
    decode(q, k, v, out, *at, SCALE, PAGE_SIZE=4, **pages)
    close(out, written_out(q, k, v, [[9, 4]])[0])
    with pytest.raises(NotImplementedError, match="paged attention has no pages of 4 that lie"):
        decode(q, k, v, out, *at, SCALE, PAGE_SIZE=4, **(pages | {"stride_buf_vpage": 5 * slot}))


@pytest.mark.parametrize("masked", [True, False])
def test_extend_sees_the_cache_and_of_new_tokens_what_is_allowed(masked: bool) -> None:
    k, v = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM)
    q, new_k, new_v = random(5, HEADS, DIM), random(5, KV_HEADS, DIM), random(5, KV_HEADS, DIM)
    mask = torch.tensor([0, 0, 1, 0, 1, 1, 1, 1, *(1, 0, 0), *(1, 1, 0), *(1, 0, 1)]).bool()
    out = torch.zeros_like(q)
    of_mask = {"mask": mask, "mask_rows": torch.tensor([0, 8])} if masked else {}
    rows, ends, slots = torch.tensor([0, 2, 5]), torch.tensor([0, 2, 2]), torch.tensor([9, 4])
    extend((q, new_k, new_v), out, (k, v), rows, ends, slots, SCALE, **of_mask)
    keys, values, at = torch.cat((k, new_k)), torch.cat((v, new_v)), SLOTS
    last = [at + 2, at + 4] if masked else [at + 2, at + 3, at + 4]
    seen = [[9, 4, at], [9, 4, at, at + 1], [at + 2], [at + 2, at + 3], last]
    close(out, written_out(q, keys, values, seen)[0])


@pytest.mark.parametrize("masked", [True, False])
def test_a_window_takes_away_what_lies_far_behind_in_the_cache_and_among_new_tokens(masked: bool) -> None:
    k, v = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM)
    q, new_k, new_v = random(4, HEADS, DIM), random(4, KV_HEADS, DIM), random(4, KV_HEADS, DIM)
    tree = torch.ones(4, 4, dtype=torch.bool).tril()
    tree[3, 1] = False
    mask = torch.cat((torch.zeros(4, 5, dtype=torch.bool), tree), 1).flatten()  # a row: 3 before the window, 2 cached
    of_mask = {"mask": mask, "mask_rows": torch.tensor([0]), "before": torch.tensor([3])} if masked else {}
    out, at = torch.zeros_like(q), SLOTS
    where = torch.tensor([0, 4]), torch.tensor([0, 2]), torch.tensor([9, 4])
    extend((q, new_k, new_v), out, (k, v), *where, SCALE, window=2, **of_mask)
    last = [at + 2, at + 3] if masked else [at + 1, at + 2, at + 3]
    seen = [[9, 4, at], [4, at, at + 1], [at, at + 1, at + 2], last]
    close(out, written_out(q, torch.cat((k, new_k)), torch.cat((v, new_v)), seen)[0])
    if not masked:  # nor what lies far ahead, where a query sees what comes after it
        extend((q, new_k, new_v), out, (k, v), *where, SCALE, window=2, IS_CAUSAL=False)
        both = [[9, 4, at, at + 1, at + 2], [4, *range(at, at + 4)], [*range(at, at + 4)], [at + 1, at + 2, at + 3]]
        close(out, written_out(q, torch.cat((k, new_k)), torch.cat((v, new_v)), both)[0])


def test_a_sink_has_its_part_of_the_weight_and_adds_nothing() -> None:
    k, v, q = random(SLOTS, KV_HEADS, DIM), random(SLOTS, KV_HEADS, DIM), random(1, HEADS, DIM)
    sinks, out = torch.tensor([-1.0, 0.0, 1.0, 30.0]), torch.zeros(1, HEADS, DIM)
    right, lse = written_out(q, k, v, [[3, 7, 20]])
    right *= (lse.T.exp() / (lse.T.exp() + sinks.exp())).unsqueeze(-1)
    decode(q, k, v, out, torch.tensor([0, 3]), torch.tensor([3, 7, 20]), SCALE, sinks=sinks)
    close(out, right)
    new = (q, k[20:21], v[20:21])
    extend(new, out, (k, v), torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([3, 7]), SCALE, sinks=sinks)
    close(out, right)


@pytest.mark.parametrize("kind", [torch.float8_e5m2, torch.float8_e4m3fn])
def test_of_quantised_keys_those_of_new_tokens_are_read_as_they_were_computed(kind: torch.dtype) -> None:
    k, v = random(SLOTS, KV_HEADS, DIM).to(kind), random(SLOTS, KV_HEADS, DIM).to(kind)
    q, new_k, new_v, out = (random(2, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    decode(q[:1], k, v, out[:1], torch.tensor([0, 3]), torch.tensor([3, 7, 20]), SCALE)
    close(out[:1], written_out(q[:1].to(kind), k.float(), v.float(), [[3, 7, 20]])[0])
    extend((q, new_k, new_v), out, (k, v), torch.tensor([0, 2]), torch.tensor([0, 2]), torch.tensor([3, 7]), SCALE)
    old, log_old = written_out(q.to(kind), k.float(), v.float(), [[3, 7]] * 2)
    new, log_new = written_out(q, new_k, new_v, [[0], [0, 1]])
    part = (log_old.exp() / (log_old.exp() + log_new.exp())).T.unsqueeze(-1)
    close(out, part * old + (1 - part) * new)


def test_flash_attention_answers_queries_of_8_bits_in_bfloat16() -> None:
    kind = torch.float8_e4m3fn
    k, v, q = (random(10, 1, heads, DIM).to(kind) for heads in (KV_HEADS, KV_HEADS, HEADS))
    told = flash_attn_with_kvcache(
        q[:1], k, v, cache_seqlens=ints(2), page_table=ints(4, 6).view(1, 2), softmax_scale=SCALE
    )
    assert told.dtype == torch.bfloat16
    right = written_out(q[0], k[:, 0].float(), v[:, 0].float(), [[4, 6]])[0]
    torch.testing.assert_close(told[0].double(), right, rtol=1e-2, atol=1e-2)


def test_queries_that_the_grid_has_no_block_for_are_not_computed() -> None:
    new, cache = (random(3, HEADS, DIM), *[random(3, KV_HEADS, DIM)] * 2), [random(SLOTS, KV_HEADS, DIM)] * 2
    out = torch.full((3, HEADS, DIM), 9.0)
    ends = torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64)
    extend(new, out, (cache[0], cache[1]), torch.tensor([0, 3]), *ends, SCALE, blocks=1, block=2)
    assert [bool((row == 9.0).all()) for row in out] == [False, False, True]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cut", [True, False])
def test_flash_attention_over_pages(causal: bool, cut: bool) -> None:
    page, lengths = 4, [6, 3]
    k, v, q = random(10, page, KV_HEADS, DIM), random(10, page, KV_HEADS, DIM), random(4, HEADS, DIM)
    table = torch.tensor([[7, 2, 99], [5, 99, 99]], dtype=torch.int32)
    told = flash_attn_with_kvcache(
        q if cut else q.view(2, 2, HEADS, DIM), k, v, *[None] * 5, torch.tensor(lengths), None, None, table,
        torch.tensor([0, 2, 4]) if cut else None, *[None] * 6, SCALE, causal,  # by place, as SGLang's own kernels do
        return_softmax_lse=True, window_size=(-1, -1), softcap=0.0, num_splits=3,
    )  # fmt: skip
    slots = [[7 * page + n for n in range(4)] + [2 * page, 2 * page + 1], [5 * page + n for n in range(3)]]
    seen = [at[: len(at) - 1 + row] if causal else at for at in slots for row in range(2)]
    right, lse = written_out(q, k.view(-1, KV_HEADS, DIM), v.view(-1, KV_HEADS, DIM), seen)
    close(told[0].reshape(q.shape), right)
    close(told[1] if cut else told[1].transpose(0, 1).reshape(HEADS, 4), lse)


def test_two_parts_merge_to_the_whole() -> None:
    q, k, v = random(3, HEADS, DIM), random(12, KV_HEADS, DIM), random(12, KV_HEADS, DIM)
    first, second = [[0, 1], [], [2]], [[3], [4, 5], []]
    (a, log_a), (b, log_b) = (written_out(q, k, v, seen) for seen in (first, second))
    merged, log = merge_state_v2(a.float(), log_a.T.float(), b.float(), log_b.T.float())
    right, lse = written_out(q, k, v, [x + y for x, y in zip(first, second, strict=True)])
    close(merged, right)
    close(log, lse.T)


def test_what_is_not_done_is_refused_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LOST", [])
    q, ends, slots = random(1, HEADS, DIM), torch.tensor([0, 1]), torch.tensor([0])
    for more, lacks in (({"logit_cap": 30.0}, "logit_cap"), ({"NEW_MODE": True}, "argument NEW_MODE")):
        with pytest.raises(NotImplementedError, match=f"decode_attention_fwd has no {lacks}"):
            decode(q, q, q, q, ends, slots, SCALE, **more)
    for more, lacks in (({"window_size": (64, 0)}, "window_size"), ({"new_option": 3}, "new_option")):
        with pytest.raises(NotImplementedError, match=f"has no {lacks}"):
            flash_attn_with_kvcache(q, q, q, cache_seqlens=ends, page_table=ends, **more)
    assert [each.stand_in for each in guard.LOST] == [True] * 4
    decode(q, q, q, q, ends, slots, SCALE, NEW_MODE=False)  # asks for nothing
    with pytest.raises(NoSeat, match="SGLang's kernel _stage1 has no argument Att_Lse, Att_Out, K_Buffer"):
        LaunchedStandIn(kernel("Q kv_indptr kv_indices", "_stage1"), STAGE1)


Told = dict[str, list[tuple[int, list[Any]]]]
KV = torch.zeros(8, 1, 2)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """By ``kernel.argument``, the rows and what was read for each, in order."""
    read: Told = {}
    monkeypatch.setattr(launches, "_listeners", [])

    def listen(kernel: str, reads: Iterator[Read], run: Callable[[], Any]) -> Any:
        for argument, tensor, row in reads:
            read.setdefault(f"{kernel}.{argument}", []).append((row, tensor.tolist()))
        return run()

    on_kernel(listen)
    return read


def test_a_stand_in_without_a_listener_is_only_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_listeners", [])
    never: Any = None
    assert reads_like_a_kernel(never)(lambda value: value + 1)(2) == 3


def test_triton_s_kernels_read_the_parts_of_rows_and_of_a_mask_the_columns_of_new_tokens(told: Told) -> None:
    q, o = torch.zeros(2, 1, 2), torch.zeros(2, 1, 2)
    decode(q, KV, KV, o, ints(0, 2, 3, 7), ints(4, 5, 6, 7, 7, 7, 7), 1.0, splits=ints(1, 1, 9))
    new, mask = torch.zeros(3, 1, 2), torch.arange(1, 9, dtype=torch.uint8)
    of_mask = {"mask": mask, "mask_rows": ints(0, 3, 9)}
    extend((new, new, new), torch.zeros(3, 1, 2), (KV, KV), ints(0, 1, 3), ints(0, 2, 2), ints(4, 5), 1.0, **of_mask)
    assert told == {
        "decode_attention_fwd.kv_indptr": [(0, [0, 2, 3])] * 2,  # by both of its kernels
        "decode_attention_fwd.num_kv_splits": [(0, [1, 1])] * 2,
        "decode_attention_fwd.kv_indices": [(0, [4, 5]), (1, [6])],
        "extend_attention_fwd.qo_indptr": [(0, [0, 1, 3])],
        "extend_attention_fwd.kv_indptr": [(0, [0, 2, 2])],
        "extend_attention_fwd.kv_indices": [(0, [4, 5])],
        "extend_attention_fwd.mask_indptr": [(0, [0, 3])],
        "extend_attention_fwd.custom_mask": [(0, [[3]]), (1, [[4, 5], [6, 7]])],
    }


def test_libraries_read_the_pages_of_lengths_and_what_was_planned_into_buffers(told: Told) -> None:
    cache, table = torch.zeros(4, 2, 1, 2), torch.tensor([[1, 2, 3], [2, 3, 3]], dtype=torch.int32)
    flash_attn_with_kvcache(torch.zeros(2, 1, 1, 2), cache, cache, cache_seqlens=ints(3, 2), page_table=table)
    decode = BatchDecodeWithPagedKVCacheWrapper(torch.zeros(1))
    decode.plan(ints(0, 1, 3), ints(4, 5, 6), ints(1, 1), 1, 1, 2, 1)
    decode.forward(torch.zeros(2, 1, 2), (KV, KV), sm_scale=1.0)
    prefill, mask = BatchPrefillWithPagedKVCacheWrapper(torch.zeros(1)), [True, True, True, False]
    prefill.plan(ints(0, 2), ints(0, 2), ints(4, 5), ints(1), 1, 1, 2, 1, custom_mask=torch.tensor(mask))
    prefill.forward(torch.zeros(2, 1, 2), (KV, KV), sm_scale=1.0)
    assert told == {
        "flash_attn_with_kvcache.cache_seqlens": [(0, [3, 2])],
        "flash_attn_with_kvcache.page_table": [(0, [1, 2]), (1, [2])],
        "BatchDecodeWithPagedKVCacheWrapper.kv_indptr": [(0, [0, 1, 3])],
        "BatchDecodeWithPagedKVCacheWrapper.kv_indices": [(0, [4]), (1, [5, 6])],
        "BatchPrefillWithPagedKVCacheWrapper.qo_indptr": [(0, [0, 2])],
        "BatchPrefillWithPagedKVCacheWrapper.kv_indptr": [(0, [0, 2])],
        "BatchPrefillWithPagedKVCacheWrapper.kv_indices": [(0, [4, 5])],
        "BatchPrefillWithPagedKVCacheWrapper.custom_mask": [(0, mask)],
    }
