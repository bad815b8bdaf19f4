"""SGLang's attention kernels in torch, with the names and arguments of those that they replace on a CPU: interpreted,
Triton's take 0.2 to 1.3 s a call, and FlashAttention 3 runs on a GPU only. Grid, strides and splits that SGLang's
functions launch Triton's with are what is computed by."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.sglang.inside.launches import Given, TorchKernel, reads_like_a_kernel, refusal, refuse, rows_of
from specdebug.targets.sglang.inside.launches import Read as KernelRead

AT_ONCE = 1 << 16
"""Positions, padding included, whose keys and values are gathered at once."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, visible: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One request: attention [n, heads, D] and the logs of the sums of weights [heads, n]. k, v: [m, KV heads, D];
    causal: aligned to the last key; visible: bool [n, m]."""
    if causal:
        seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril(k.shape[0] - q.shape[0])
        visible = seen if visible is None else seen & visible
    out, lse = _attend(q[None], k[None], v[None], scale, None if visible is None else visible[None])
    return out[0], lse[0]


def attend_slots(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, lengths: Sequence[int], scale: float, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """As many queries of each request, q: [B, n, heads, D], over the first ``lengths[b]`` of its ``slots[b]``, int64
    [B, at least the longest], of k, v: [slots, KV heads, D]. Returns [B, n, heads, D] and [B, heads, n]; zeros and -inf
    for a request of no length."""
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"))
    longest = max(lengths, default=0)
    if not longest:
        return out, lse
    each = max(1, AT_ONCE // longest)
    for start in range(0, q.shape[0], each):
        some = slice(start, start + each)
        ends = torch.tensor(lengths[some]).unsqueeze(1)
        inside = torch.arange(longest) < ends
        at = slots[some, :longest].masked_fill(~inside, 0)
        # padding reads slot 0, of which nothing may come through, not even a NaN times no weight
        keys, values = (widened(cache[at]).masked_fill(~inside[..., None, None], 0) for cache in (k, v))
        last = ends - q.shape[1] + torch.arange(q.shape[1]) if causal else (ends - 1).expand(-1, q.shape[1])
        seen = torch.arange(longest) <= last.unsqueeze(2)
        out[some], lse[some] = _attend(q[some], keys, values, scale, seen)
    return out, lse


def padded(flat: Tensor, ends: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Rows ``flat[ends[b] : ends[b + 1]]`` beside each other, int64 [B, the longest], and their lengths. What is beyond
    a row's length is another's."""
    starts, lengths = list(ends[:-1]), [stop - start for start, stop in pairwise(ends)]
    places = torch.tensor(starts, dtype=torch.int64).unsqueeze(1) + torch.arange(max([*lengths, 0]))
    return flat[places.clamp(max=max(flat.numel() - 1, 0))].long(), lengths


def is_quantised(cache: Tensor) -> bool:
    """True of keys or values that are stored in 8 bits."""
    return cache.dtype.is_floating_point and cache.dtype.itemsize == 1


def widened(part: Tensor) -> Tensor:
    """Keys or values as they are computed with."""
    return part.float() if is_quantised(part) else part


def rounded(q: Tensor, keys: Tensor) -> Tensor:
    """Queries as Triton's kernels multiply them with stored keys: in the type of these."""
    return q.to(keys.dtype).to(q.dtype) if is_quantised(keys) else q


def sunk(out: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor:
    """Attention of which each head's sink, float32 [heads], has its part of the weight. out: [..., heads, D]; lse:
    [..., heads]."""
    return out if sinks is None else out * torch.sigmoid(lse - sinks.float()).unsqueeze(-1)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """q: [B, n, heads, D]; k: [B, m, KV heads, D]; v: [B, m, KV heads, Dv]; visible: bool [B, n, m]. Returns
    [B, n, heads, Dv] and logs [B, heads, n]. A query that sees nothing gets zeros."""
    batch, count, heads, width = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    queries = q.float().view(batch, count, kv_heads, group, width).permute(0, 2, 3, 1, 4)
    queries = queries.reshape(batch, kv_heads, group * count, width)
    scores = (queries @ k.float().permute(0, 2, 3, 1)).view(batch, kv_heads, group, count, -1) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp()
    weights = weights.masked_fill(torch.isneginf(lse).unsqueeze(-1), 0)
    out = weights.view(batch, kv_heads, group * count, -1) @ v.float().permute(0, 2, 1, 3)
    out = out.view(batch, kv_heads, group, count, -1).permute(0, 3, 1, 2, 4).reshape(batch, count, heads, -1)
    return out.to(q.dtype), lse.reshape(batch, heads, count)


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


def _split_reads(given: Given) -> Iterator[KernelRead]:
    kv_indptr, num_kv_splits = _of_batch(given)
    yield "kv_indptr", kv_indptr, 0
    yield "num_kv_splits", num_kv_splits, 0
    if "kv_indices" in given:
        yield from rows_of("kv_indices", from_pointer(given["kv_indices"]), kv_indptr.tolist())


def _of_batch(given: Given) -> tuple[Tensor, Tensor]:
    batch = given["grid"][0]
    return given["kv_indptr"][: batch + 1], given["num_kv_splits"][:batch]


def _splits(given: Given, most: int) -> list[tuple[int, int, int, int]]:
    """The splits of each request's keys that have any: request, split, and where it begins and ends among them."""
    kv_indptr, num_kv_splits = _of_batch(given)
    lengths, block, found = kv_indptr.diff().tolist(), given["MIN_BLOCK_KV"], []
    for request, (length, wanted) in enumerate(zip(lengths, num_kv_splits.tolist(), strict=True)):
        each = math.ceil(math.ceil(length / wanted) / block) * block
        begins = range(0, min(most * each, length), each or 1)
        found += [(request, n, at, min(at + each, length)) for n, at in enumerate(begins)]
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
    splits = _splits(given, most)
    if not splits:
        return
    requests, numbers, starts, stops = map(list, zip(*splits, strict=True))
    counts = [stop - start for start, stop in zip(starts, stops, strict=True)]
    places = torch.tensor(starts).unsqueeze(1) + torch.arange(max(counts))
    slots = at[torch.tensor(requests).unsqueeze(1), places.clamp(max=at.shape[1] - 1)]
    q = rounded(q[requests].unsqueeze(1), keys)
    out, lse = attend_slots(q, keys, values, slots, counts, given["sm_scale_withk"])
    mid, mid_lse = _partial(given, given["Att_Out"], given["Att_Lse"], (batch, heads, most))
    mid[requests, :, numbers] = out[:, 0].to(mid.dtype)
    mid_lse[requests, :, numbers] = lse[..., 0].to(mid_lse.dtype)


def decode_stage2(given: Given) -> None:
    """Put the splits of each request together, into ``O``. A request of no keys is left as it is."""
    batch, heads = given["grid"]
    most = given["MAX_KV_SPLITS"]
    mid, mid_lse = _partial(given, given["Mid_O"], given["Mid_O_1"], (batch, heads, most))
    there = torch.zeros(batch, most, dtype=torch.bool)
    for request, split, _, _ in _splits(given, most):
        there[request, split] = True
    some = there.any(1).nonzero().flatten()
    there = there[some, None]
    logs = mid_lse[some].float().masked_fill(~there, float("-inf"))
    whole = (logs.softmax(-1).unsqueeze(-1) * mid[some].float().masked_fill(~there.unsqueeze(-1), 0)).sum(2)
    whole = sunk(whole, logs.logsumexp(-1), given.get("sink_ptr")) * given["v_scale"]
    out = _strided(given["O"], (batch, heads, given["Lv"]), given["stride_obs"], given["stride_oh"])
    out[some] = whole.to(out.dtype)


def _partial(given: Given, mid: Tensor, lse: Tensor, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """The buffers of the splits' answers, [*shape, D], and logs, ``shape``, found by one set of strides."""
    strides, width = [given[f"stride_mid_o{part}"] for part in "bhs"], given["Lv"]
    of_lse = [stride // width for stride in strides]
    return _strided(mid, (*shape, width), *strides), lse.as_strided(shape, of_lse, int(lse.storage_offset()))


def _kv_buffers(given: Given, heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Keys and values [slots, KV heads, D] where a kernel finds them by its strides; those of pages, if it is given
    any, must be what so many slots come to."""
    page = given.get("PAGE_SIZE", 1)
    for which in "kv" if page > 1 else "":
        slot, by_page, in_page = (given[f"stride_buf_{which}{of}"] for of in ("bs", "page", "tok"))
        if (by_page, in_page) != (page * slot, slot):
            raise refusal("paged attention", f"pages of {page} that lie {by_page} apart, slots of {slot}")
    kv_heads = heads // given["kv_group_num"]
    keys, values = given["K_Buffer"], given["V_Buffer"]
    return (
        _strided(keys, (keys.shape[0], kv_heads, width), given["stride_buf_kbs"], given["stride_buf_kh"]),
        _strided(values, (values.shape[0], kv_heads, given["Lv"]), given["stride_buf_vbs"], given["stride_buf_vh"]),
    )


def _strided(tensor: Tensor, shape: tuple[int, ...], *strides: int) -> Tensor:
    """A kernel's view of a tensor; the last stride is 1. Raises RuntimeError where it leaves the memory."""
    return tensor.as_strided(shape, (*strides, 1), int(tensor.storage_offset()))


def _extend_reads(given: Given) -> Iterator[KernelRead]:
    rows, ends = given["qo_indptr"].tolist(), given["kv_indptr"].tolist()
    yield "qo_indptr", given["qo_indptr"], 0
    yield "kv_indptr", given["kv_indptr"], 0
    yield from rows_of("kv_indices", from_pointer(given["kv_indices"]), ends)
    if not given["USE_CUSTOM_MASK"]:
        return
    yield "mask_indptr", given["mask_indptr"][: len(rows) - 1], 0
    for row in range(len(rows) - 1):
        yield "custom_mask", _asked_mask(given, row, ends[row + 1] - ends[row], rows[row + 1] - rows[row]), row


def _asked_mask(given: Given, request: int, cached: int, count: int) -> Tensor:
    """The columns of a request's mask that are of its new tokens, [count, count]: what is cached is seen without being
    asked for. A row begins with what lies before a window."""
    before = int(given["window_kv_offset_ptr"][request]) if given.get("SLIDING_WINDOW_SIZE", -1) > 0 else 0
    start, width = int(given["mask_indptr"][request]), before + cached + count
    return from_pointer(given["mask_ptr"])[start : start + count * width].view(count, width)[:, -count:]


def extend(given: Given) -> None:
    """The new tokens of each request over its cached KV and each other: causally, or as a mask says, a bool for each
    pair of a query and a position, of which only those of new tokens are asked. A request has as many queries computed
    as the grid has blocks for."""
    batch, heads, blocks = given["grid"]
    rows, ends = given["qo_indptr"][: batch + 1].tolist(), given["kv_indptr"][: batch + 1].tolist()
    tokens, kv_heads = given["Q_Extend"].shape[0], heads // given["kv_group_num"]

    def part(name: str, heads: int, width: str) -> Tensor:
        strides = (given[f"stride_{name.lower()}{which}"] for which in ("bs", "h"))
        return _strided(given[f"{name}_Extend"], (tokens, heads, given[width]), *strides)

    q, new_k, new_v, out = (
        part("Q", heads, "Lq"),
        part("K", kv_heads, "Lq"),
        part("V", kv_heads, "Lv"),
        part("O", heads, "Lv"),
    )
    # Latents are expanded only where nothing is cached, which would not be of the new tokens' form.
    latent = given["K_Buffer"].shape[1] != kv_heads and not ends[-1]
    keys, values = (new_k, new_v) if latent else _kv_buffers(given, heads, given["Lq"])
    slots = from_pointer(given["kv_indices"])
    for request in range(batch):
        count = rows[request + 1] - rows[request]
        if not count:
            continue
        at = slots[ends[request] : ends[request + 1]].long()
        tell_read(EXTEND, given["K_Buffer"], given["V_Buffer"], at, request)
        new = slice(rows[request], rows[request + 1])
        done = min(count, blocks * given["BLOCK_M"])
        visible = _visible(given, request, at.numel(), count)[:done]
        parts = (keys[at], values[at]), (new_k[new], new_v[new])
        answer, lse = _over_both(q[new][:done], *parts, given["sm_scale"], visible)
        answer = sunk(answer, lse.T, given.get("sink_ptr"))
        out[new.start : new.start + done] = answer.to(out.dtype)


def _over_both(
    q: Tensor, cached: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], scale: float, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """As :func:`attend`, over keys and values that are stored and those of new tokens, which the kernel reads as they
    were computed, whatever the type of those that are stored."""
    if not is_quantised(cached[0]):
        keys, values = (torch.cat((old, part.to(old.dtype))) for old, part in zip(cached, new, strict=True))
        return attend(q, keys, values, scale, False, visible)
    count, (keys, values) = cached[0].shape[0], map(widened, cached)
    one = attend(rounded(q, cached[0]), keys, values, scale, False, visible[:, :count])
    other = attend(q, *new, scale, False, visible[:, count:])
    answer, lse = merge_state_v2(one[0], one[1].T, other[0], other[1].T)
    return answer, lse.T


def _visible(given: Given, request: int, cached: int, count: int) -> Tensor:
    """The positions that each new token of a request sees, bool [count, cached + count]."""
    visible = torch.ones(count, cached + count, dtype=torch.bool)
    if given["USE_CUSTOM_MASK"]:
        visible[:, cached:] = _asked_mask(given, request, cached, count).bool()
    elif given["IS_CAUSAL"]:
        visible[:, cached:].tril_()
    window = given.get("SLIDING_WINDOW_SIZE", -1)
    if window > 0:
        behind = torch.arange(cached, cached + count).unsqueeze(1) - torch.arange(cached + count)
        visible &= behind <= window
        if not given["IS_CAUSAL"]:
            visible[:, cached:] &= behind[:, cached:] >= -window
    return visible


_MID = {f"stride_mid_o{part}" for part in "bhs"}
_BUFFERS = {"K_Buffer", "V_Buffer", *(f"stride_buf_{which}" for which in ("kbs", "kh", "vbs", "vh")), "kv_group_num"}
_CACHED = {"kv_indptr", "kv_indices"}
_UNCAPPED: dict[str, tuple[Any, ...]] = {
    "logit_cap": (0.0,), "xai_temperature_len": (-1, 0), "SCORE_MOD": (None,),
}  # fmt: skip
STAGE1 = TorchKernel(
    DECODE,
    decode_stage1,
    _split_reads,
    frozenset({"Q", "sm_scale_withk", "Att_Out", "Att_Lse", "num_kv_splits", "stride_qbs", "stride_qh", "Lk", "Lv",
               "MIN_BLOCK_KV", *_MID, *_BUFFERS, *_CACHED}),
    frozenset({"q_head_num", "PAGE_SIZE"}),
    {**_UNCAPPED, "HAS_MLA": (False, True), "ROTATE_BATCH": (False,), "USE_FORCED": (False,)},
)  # fmt: skip
STAGE2 = TorchKernel(
    DECODE,
    decode_stage2,
    _split_reads,
    frozenset({"Mid_O", "Mid_O_1", "O", "v_scale", "kv_indptr", "num_kv_splits", "stride_obs", "stride_oh",
               "MAX_KV_SPLITS", "MIN_BLOCK_KV", "Lv", *_MID}),
    frozenset({"HAS_SINK", "sink_ptr"}),
    {"FORCED_KV_SPLITS": (0,)},
)  # fmt: skip
EXTENDING = TorchKernel(
    EXTEND,
    extend,
    _extend_reads,
    frozenset({"Q_Extend", "K_Extend", "V_Extend", "O_Extend", "qo_indptr", "mask_ptr", "mask_indptr", "sm_scale", "Lq",
               "Lv", "BLOCK_M", "USE_CUSTOM_MASK", "IS_CAUSAL", *_BUFFERS, *_CACHED,
               *(f"stride_{which}" for which in ("qbs", "qh", "kbs", "kh", "vbs", "vh", "obs", "oh"))}),
    frozenset({"PAGE_SIZE", "HAS_SINK", "sink_ptr", "SLIDING_WINDOW_SIZE", "window_kv_offset_ptr"}),
    {**_UNCAPPED, "SKIP_PREFIX_CUSTOM_MASK": (True,), "k_scale": (1.0, None), "v_scale": (1.0, None)},
)  # fmt: skip


def _flash_reads(given: Mapping[str, Any]) -> Iterator[KernelRead]:
    page = given["k_cache"].shape[1]
    if (cuts := given.get("cu_seqlens_q")) is not None:
        yield "cu_seqlens_q", cuts, 0
    count = given["q"].shape[0] if cuts is None else cuts.numel() - 1
    yield "cache_seqlens", given["cache_seqlens"][:count], 0
    for row, length in enumerate(given["cache_seqlens"][:count].tolist()):
        yield "page_table", given["page_table"][row, : -(-length // page)], row


_FLASH_PLACES = (
    *("k", "v", "qv", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx", "cache_leftpad", "page_table"),
    *("cu_seqlens_q", "cu_seqlens_k_new", "max_seqlen_q", "rotary_seqlens", "q_descale", "k_descale", "v_descale"),
    *("softmax_scale", "causal", "window_size", "attention_chunk", "softcap", "rotary_interleaved"),
    *("scheduler_metadata", "num_splits", "pack_gqa", "sm_margin", "return_softmax_lse", "sinks", "out"),
)
"""FlashAttention's arguments behind the cache, in its order."""
_FLASH_HOW = re.compile(
    "rotary_(sin|seqlens|interleaved)|cu_seqlens_k_new|max_seqlen_q|num_splits|scheduler_metadata|pack_gqa|sm_margin"
)
"""Those that say how it computes, or mean nothing without one that is refused."""


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, *by_place: Any, **named: Any) -> Any:
    """FlashAttention 3, as SGLang calls it: by name, and in its own wrappers by place."""
    return flash_attention(q, k_cache, v_cache, **dict(zip(_FLASH_PLACES, by_place, strict=False)), **named)


@reads_like_a_kernel(_flash_reads, "flash_attn_with_kvcache")
def flash_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    page_table: Tensor,
    cu_seqlens_q: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    return_softmax_lse: bool = False,
    out: Tensor | None = None,
    **more: Any,
) -> Any:
    """FlashAttention 3 over pages. q: [batch, n, heads, D], or [tokens, heads, D] cut by ``cu_seqlens_q``; k_cache,
    v_cache: [pages, page size, KV heads, D]; page_table: int32 [batch, pages of a request]. With
    ``return_softmax_lse`` also the log of the sum of weights, [heads, tokens] or [batch, heads, n]."""
    given = {"window_size": tuple(window_size), "softcap": softcap, **more}
    others = dict.fromkeys((name for name in more if not _FLASH_HOW.fullmatch(name)), (None, 0, False))
    refuse("flash_attn_with_kvcache", given, window_size=((-1, -1),), softcap=(0.0,), **others)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    q = q.bfloat16() if is_quantised(q) else q  # in which it answers, too
    flat = q.reshape(-1, *q.shape[-2:])
    each = q.shape[1] if cu_seqlens_q is None else 0
    cuts = list(range(0, flat.shape[0] + 1, each)) if cu_seqlens_q is None else cu_seqlens_q.tolist()
    lengths = cache_seqlens.tolist()[: len(cuts) - 1]
    page = k_cache.shape[1]
    pages = page_table[: len(lengths), : -(-max(lengths, default=0) // page)].long()
    slots = (pages.unsqueeze(2) * page + torch.arange(page)).flatten(1)
    tell_reads("flash_attn_with_kvcache", k_cache, v_cache, slots, lengths)
    keys, values = (cache.flatten(0, 1) for cache in (k_cache, v_cache))
    answer = torch.zeros_like(flat)
    lse = torch.full((flat.shape[1], flat.shape[0]), float("-inf"))
    if len({stop - start for start, stop in pairwise(cuts[: len(lengths) + 1])}) == 1:
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
    if out is not None:
        out.copy_(answer)
    if not return_softmax_lse:
        return answer
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
