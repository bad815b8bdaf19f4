"""SGLang's attention kernels in torch, with the names and arguments of those that they replace on a CPU.

Interpreted, Triton's take 0.2 to 1.3 seconds a call, and FlashAttention 3 runs on a GPU only. Of Triton's nothing but
the kernels is replaced: what SGLang's functions launch them with, grid, strides and splits, is what is computed by. A
kernel is given pointers: where SGLang passes a slice as long as it was at a capture, it reads beyond it, and so do
these (:func:`from_pointer`). What none of the engines here asks of a kernel is refused, and never left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.sglang.inside.attend import attend, attend_slots, padded
from specdebug.targets.sglang.inside.kernel_reads import Read as KernelRead
from specdebug.targets.sglang.inside.kernel_reads import reads_like_a_kernel, rows_of
from specdebug.targets.sglang.inside.launches import Given, TorchKernel
from specdebug.targets.sglang.inside.refusals import refuse

DECODE, EXTEND = "decode_attention_fwd", "extend_attention_fwd"
"""The functions of SGLang's whose Triton kernels are stood in for, as they are told of."""
Read = Callable[[str, str, Tensor, Tensor, int], None]
_read: list[Read] = []


def on_read(read: Read) -> None:
    """Tell ``read`` of the slots that attention reads: kernel, argument, buffer, int64 slots, and row of the batch."""
    _read.append(read)


def tell_read(kernel: str, k: Tensor, v: Tensor, slots: Tensor, row: int) -> None:
    """Keys and values of some slots are about to be read."""
    for read in _read:
        read(kernel, "k", k, slots, row)
        read(kernel, "v", v, slots, row)


def tell_reads(kernel: str, k: Tensor, v: Tensor, slots: Tensor, lengths: Sequence[int]) -> None:
    """The same of each row of a batch: the first of its slots, as many as it is long."""
    if _read:
        for row, length in enumerate(lengths):
            tell_read(kernel, k, v, slots[row, :length], row)


def from_pointer(tensor: Tensor) -> Tensor:
    """All that a kernel could reach from where a flat tensor begins: to the end of its storage."""
    storage = tensor.untyped_storage().size() // tensor.element_size()
    return tensor.as_strided((storage - int(tensor.storage_offset()),), (1,))


def _read_by_splits(given: Given) -> Iterator[KernelRead]:
    batch = given["grid"][0]
    kv_indptr = given["kv_indptr"][: batch + 1]
    yield "kv_indptr", kv_indptr, 0
    yield "num_kv_splits", given["num_kv_splits"][:batch], 0
    if "kv_indices" in given:
        yield from rows_of("kv_indices", from_pointer(given["kv_indices"]), kv_indptr.tolist())


def _splits(given: Given, batch: int, most: int) -> list[tuple[int, int, int, int]]:
    """The split of each request's keys: request, split, and where it begins and ends among the request's. Splits
    of no keys are left out."""
    block, ends = given["MIN_BLOCK_KV"], given["kv_indptr"][: batch + 1].tolist()
    found = []
    for request, wanted in enumerate(given["num_kv_splits"][:batch].tolist()):
        length = ends[request + 1] - ends[request]
        each = math.ceil(math.ceil(length / wanted) / block) * block
        found += [
            (request, split, split * each, min((split + 1) * each, length))
            for split in range(most)
            if split * each < length
        ]
    return found


def decode_stage1(given: Given) -> None:
    """One query a request: attention over each split of the KV slots kv_indices[kv_indptr[i] : kv_indptr[i + 1]] into
    ``Att_Out`` [batch, heads, splits, D], and the logs of the sums of weights into ``Att_Lse``."""
    batch, tiles, most = given["grid"]
    heads, width = given.get("q_head_num", tiles), given["Lk"]
    q = _strided(given["Q"], (batch, heads, width), given["stride_qbs"], given["stride_qh"])
    keys, values = _kv_buffers(given, heads, width)
    ends = given["kv_indptr"][: batch + 1].tolist()
    at, lengths = padded(from_pointer(given["kv_indices"]), ends)
    tell_reads(DECODE, given["K_Buffer"], given["V_Buffer"], at, lengths)
    splits = _splits(given, batch, most)
    if not splits:
        return
    requests, numbers, starts, stops = map(list, zip(*splits, strict=True))
    counts = [stop - start for start, stop in zip(starts, stops, strict=True)]
    places = torch.tensor(starts).unsqueeze(1) + torch.arange(max(counts))
    slots = at[torch.tensor(requests).unsqueeze(1), places.clamp(max=at.shape[1] - 1)]
    out, lse = attend_slots(q[requests].unsqueeze(1), keys, values, slots, counts, given["sm_scale_withk"])
    mid, mid_lse = _partial(given, given["Att_Out"], given["Att_Lse"], (batch, heads, most))
    mid[requests, :, numbers] = out[:, 0].to(mid.dtype)
    mid_lse[requests, :, numbers] = lse[..., 0].to(mid_lse.dtype)


def decode_stage2(given: Given) -> None:
    """Put the splits of each request together, into ``O``. A request of no keys is left as it is."""
    batch, heads = given["grid"]
    most = given["MAX_KV_SPLITS"]
    mid, mid_lse = _partial(given, given["Mid_O"], given["Mid_O_1"], (batch, heads, most))
    there = torch.zeros(batch, most, dtype=torch.bool)
    for request, split, _, _ in _splits(given, batch, most):
        there[request, split] = True
    some = there.any(1).nonzero().flatten()
    there = there[some, None]
    weights = mid_lse[some].float().masked_fill(~there, float("-inf")).softmax(-1).unsqueeze(-1)
    whole = (weights * mid[some].float().masked_fill(~there.unsqueeze(-1), 0)).sum(2) * given["v_scale"]
    out = _strided(given["O"], (batch, heads, given["Lv"]), given["stride_obs"], given["stride_oh"])
    out[some] = whole.to(out.dtype)


def _partial(given: Given, mid: Tensor, lse: Tensor, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """The buffers of what the splits come to, [batch, heads, splits, D] and [batch, heads, splits], which a kernel
    finds by one set of strides."""
    strides, width = [given[f"stride_mid_o{part}"] for part in "bhs"], given["Lv"]
    of_lse = [stride // width for stride in strides]
    return _strided(mid, (*shape, width), *strides), lse.as_strided(shape, of_lse, int(lse.storage_offset()))


def _kv_buffers(given: Given, heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Keys and values [slots, KV heads, D] where a kernel finds them by its strides."""
    kv_heads = heads // given["kv_group_num"]
    keys, values = given["K_Buffer"], given["V_Buffer"]
    return (
        _strided(keys, (keys.shape[0], kv_heads, width), given["stride_buf_kbs"], given["stride_buf_kh"]),
        _strided(values, (values.shape[0], kv_heads, given["Lv"]), given["stride_buf_vbs"], given["stride_buf_vh"]),
    )


def _strided(tensor: Tensor, shape: tuple[int, ...], *strides: int) -> Tensor:
    """The view that a kernel has of a tensor with strides; along the last dimension they are 1. Raises
    RuntimeError where that leaves the memory that there is."""
    return tensor.as_strided(shape, (*strides, 1), int(tensor.storage_offset()))


def _extend_reads(given: Given) -> Iterator[KernelRead]:
    rows, ends = given["qo_indptr"].tolist(), given["kv_indptr"].tolist()
    yield "qo_indptr", given["qo_indptr"], 0
    yield "kv_indptr", given["kv_indptr"], 0
    yield from rows_of("kv_indices", from_pointer(given["kv_indices"]), ends)
    if not given["USE_CUSTOM_MASK"]:
        return
    mask, mask_indptr = given["mask_ptr"], given["mask_indptr"]
    yield "mask_indptr", mask_indptr[: len(rows) - 1], 0
    for row, start in enumerate(mask_indptr[: len(rows) - 1].tolist()):
        count, length = rows[row + 1] - rows[row], ends[row + 1] - ends[row]
        whole = from_pointer(mask)[start : start + count * (length + count)].view(count, length + count)
        yield "custom_mask", whole[:, length:], row  # what is cached is seen without being asked for


def extend(given: Given) -> None:
    """The new tokens of each request over its cached KV and each other: causally, or as a mask says, a bool for each
    pair of a query and a position, of which only those of new tokens are asked. A request has as many queries computed
    as the grid has blocks for."""
    batch, heads, blocks = given["grid"]
    rows, ends = given["qo_indptr"][: batch + 1].tolist(), given["kv_indptr"][: batch + 1].tolist()
    slots = from_pointer(given["kv_indices"])
    q, new_k, new_v, out = _extended(given, heads)
    keys, values = _kv_buffers(given, heads, given["Lq"])
    for request in range(batch):
        count = rows[request + 1] - rows[request]
        at = slots[ends[request] : ends[request + 1]].long()
        if not count:
            continue
        tell_read(EXTEND, given["K_Buffer"], given["V_Buffer"], at, request)
        new = slice(rows[request], rows[request + 1])
        done = min(count, blocks * given["BLOCK_M"])
        visible = _visible(given, request, at.numel(), count)[:done]
        every = torch.cat((keys[at], new_k[new].to(keys.dtype))), torch.cat((values[at], new_v[new].to(values.dtype)))
        answer = attend(q[new][:done], *every, given["sm_scale"], False, visible)[0]
        out[new.start : new.start + done] = answer.to(out.dtype)


def _extended(given: Given, heads: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values of the new tokens, and where the answers go, [tokens, heads, D]."""
    tokens, kv_heads = given["Q_Extend"].shape[0], heads // given["kv_group_num"]
    return (
        _strided(given["Q_Extend"], (tokens, heads, given["Lq"]), given["stride_qbs"], given["stride_qh"]),
        _strided(given["K_Extend"], (tokens, kv_heads, given["Lq"]), given["stride_kbs"], given["stride_kh"]),
        _strided(given["V_Extend"], (tokens, kv_heads, given["Lv"]), given["stride_vbs"], given["stride_vh"]),
        _strided(given["O_Extend"], (tokens, heads, given["Lv"]), given["stride_obs"], given["stride_oh"]),
    )


def _visible(given: Given, request: int, cached: int, count: int) -> Tensor:
    """The positions that each new token of a request sees, bool [count, cached + count]."""
    visible = torch.ones(count, cached + count, dtype=torch.bool)
    if given["USE_CUSTOM_MASK"]:
        start = int(given["mask_indptr"][request])
        flat = from_pointer(given["mask_ptr"])[start : start + visible.numel()].view_as(visible).bool()
        visible[:, cached:] = flat[:, cached:]
    elif given["IS_CAUSAL"]:
        visible[:, cached:].tril_()
    return visible


_MID = {f"stride_mid_o{part}" for part in "bhs"}
_BUFFERS = {"K_Buffer", "V_Buffer", *(f"stride_buf_{which}" for which in ("kbs", "kh", "vbs", "vh")), "kv_group_num"}
_CACHED = {"kv_indptr", "kv_indices"}
_UNCAPPED: dict[str, tuple[Any, ...]] = {
    "logit_cap": (0.0,), "xai_temperature_len": (-1, 0), "PAGE_SIZE": (1,), "SCORE_MOD": (None,),
}  # fmt: skip
STAGE1 = TorchKernel(
    DECODE,
    decode_stage1,
    _read_by_splits,
    frozenset({"Q", "sm_scale_withk", "Att_Out", "Att_Lse", "num_kv_splits", "stride_qbs", "stride_qh", "Lk", "Lv",
               "MIN_BLOCK_KV", *_MID, *_BUFFERS, *_CACHED}),
    frozenset({"q_head_num"}),
    {**_UNCAPPED, "HAS_MLA": (False,), "ROTATE_BATCH": (False,), "USE_FORCED": (False,)},
)  # fmt: skip
STAGE2 = TorchKernel(
    DECODE,
    decode_stage2,
    _read_by_splits,
    frozenset({"Mid_O", "Mid_O_1", "O", "v_scale", "kv_indptr", "num_kv_splits", "stride_obs", "stride_oh",
               "MAX_KV_SPLITS", "MIN_BLOCK_KV", "Lv", *_MID}),
    frozenset(),
    {"HAS_SINK": (False,), "FORCED_KV_SPLITS": (0,)},
)  # fmt: skip
EXTENDING = TorchKernel(
    EXTEND,
    extend,
    _extend_reads,
    frozenset({"Q_Extend", "K_Extend", "V_Extend", "O_Extend", "qo_indptr", "mask_ptr", "mask_indptr", "sm_scale", "Lq",
               "Lv", "BLOCK_M", "USE_CUSTOM_MASK", "IS_CAUSAL", *_BUFFERS, *_CACHED,
               *(f"stride_{which}" for which in ("qbs", "qh", "kbs", "kh", "vbs", "vh", "obs", "oh"))}),
    frozenset(),
    {**_UNCAPPED, "SLIDING_WINDOW_SIZE": (-1,), "SKIP_PREFIX_CUSTOM_MASK": (True,), "k_scale": (1.0, None),
     "v_scale": (1.0, None)},
)  # fmt: skip


def _flash_reads(given: Mapping[str, Any]) -> Iterator[KernelRead]:
    page = given["k_cache"].shape[1]
    if (cuts := given.get("cu_seqlens_q")) is not None:
        yield "cu_seqlens_q", cuts, 0
    count = given["q"].shape[0] if cuts is None else cuts.numel() - 1
    yield "cache_seqlens", given["cache_seqlens"][:count], 0
    for row, length in enumerate(given["cache_seqlens"][:count].tolist()):
        yield "page_table", given["page_table"][row, : -(-length // page)], row


@reads_like_a_kernel(_flash_reads)
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Any = None,
    v: Any = None,
    qv: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int | None = None,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: Any = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    out: Tensor | None = None,
    **more: Any,
) -> Any:
    """FlashAttention 3 over pages. q: [batch, n, heads, D], or [tokens, heads, D] cut by ``cu_seqlens_q``; k_cache,
    v_cache: [pages, page size, KV heads, D]; page_table: int32 [batch, pages of a request]. With
    ``return_softmax_lse`` also the log of the sum of weights, [heads, tokens] or [batch, heads, n]."""
    given = {
        "k": k, "v": v, "qv": qv, "rotary_cos": rotary_cos, "cache_batch_idx": cache_batch_idx,
        "cache_leftpad": cache_leftpad, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale,
        "window_size": tuple(window_size), "attention_chunk": attention_chunk, "softcap": softcap, **more,
    }  # fmt: skip
    others = dict.fromkeys((name for name in given if name not in ("window_size", "softcap")), (None, 0, False))
    refuse("flash_attn_with_kvcache", given, window_size=((-1, -1),), softcap=(0.0,), **others)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    answer, lse = _attend_pages(q, k_cache, v_cache, cache_seqlens, page_table, cu_seqlens_q, scale, causal)
    if out is not None:
        out.copy_(answer)
    return (answer, lse) if return_softmax_lse else answer


def _attend_pages(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, cache_seqlens: Tensor, page_table: Tensor, cuts_q: Tensor | None,
    scale: float, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same, with the logs of the sums of weights."""
    flat = q.reshape(-1, *q.shape[-2:])
    each = q.shape[1] if cuts_q is None else 0
    cuts = list(range(0, flat.shape[0] + 1, each)) if each else cuts_q.tolist()  # type: ignore[union-attr]
    lengths = cache_seqlens.tolist()[: len(cuts) - 1]
    slots = _slots(k_cache, page_table[: len(lengths)], max(lengths, default=0))
    counts = {stop - start for start, stop in pairwise(cuts[: len(lengths) + 1])}
    tell_reads("flash_attn_with_kvcache", k_cache, v_cache, slots, lengths)
    keys, values = (cache.flatten(0, 1) for cache in (k_cache, v_cache))
    answer = torch.zeros_like(flat)
    lse = torch.full((flat.shape[1], flat.shape[0]), float("-inf"))
    if len(counts) == 1:
        some = slice(cuts[0], cuts[len(lengths)])
        many = flat[some].view(len(lengths), -1, *flat.shape[1:])
        answers, logs = attend_slots(many, keys, values, slots, lengths, scale, causal)
        answer[some], lse[:, some] = answers.flatten(0, 1), logs.transpose(0, 1).flatten(1)
    else:
        for request, length in enumerate(lengths):
            new, at = slice(cuts[request], cuts[request + 1]), slots[request, :length]
            if new.stop > new.start and length > 0:
                answer[new], lse[:, new] = attend(flat[new], keys[at], values[at], scale, causal)
    answer = answer.view(q.shape)
    return answer, lse.view(lse.shape[0], -1, each).transpose(0, 1).contiguous() if each else lse


def merge_state_v2(
    v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor | None = None, s_merged: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys as if they were one. v: [n, heads, D]; s: the logs of the sums of weights."""
    top = torch.maximum(s_a, s_b)
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    weight_a, weight_b = (s_a - top).exp(), (s_b - top).exp()
    total = weight_a + weight_b
    parts = [value.float().nan_to_num() * weight.unsqueeze(-1) for value, weight in ((v_a, weight_a), (v_b, weight_b))]
    merged, log = ((parts[0] + parts[1]) / total.unsqueeze(-1)).to(v_a.dtype), total.log() + top
    if v_merged is not None and s_merged is not None:
        v_merged.copy_(merged)
        s_merged.copy_(log)
    return merged, log


def _slots(cache: Tensor, pages: Tensor, longest: int) -> Tensor:
    """The slots of the first ``longest`` positions of each request, int64 [B, at least so many]."""
    page = cache.shape[1]
    some = pages[:, : -(-longest // page)].long()
    return (some.unsqueeze(2) * page + torch.arange(page)).flatten(1)
