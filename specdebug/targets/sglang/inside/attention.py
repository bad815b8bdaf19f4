"""SGLang's attention kernels in torch, with the names and arguments of those that they replace on a CPU.

Interpreted, Triton's take 0.2 to 1.3 seconds a call, and FlashAttention 3 runs on a GPU only. A kernel is given
pointers: where SGLang passes a slice as long as it was at a capture, it reads beyond it, and so do these
(:func:`from_pointer`). What none of the engines here asks of a kernel is refused, and never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.sglang.inside.attend import attend, attend_slots, padded
from specdebug.targets.sglang.inside.kernel_reads import Read as KernelRead
from specdebug.targets.sglang.inside.kernel_reads import reads_like_a_kernel, rows_of

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


def _decode_reads(given: Mapping[str, Any]) -> Iterator[KernelRead]:
    kv_indptr = given["kv_indptr"][: given["q"].shape[0] + 1]
    yield "kv_indptr", kv_indptr, 0
    yield "num_kv_splits", given["num_kv_splits"][: given["q"].shape[0]], 0
    yield from rows_of("kv_indices", from_pointer(given["kv_indices"]), kv_indptr.tolist())


@reads_like_a_kernel(_decode_reads)
def decode_attention_fwd(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    attn_logits: Tensor,
    attn_lse: Tensor,
    num_kv_splits: Tensor,
    max_kv_splits: int,
    sm_scale: float,
    k_scale: Any,
    v_scale: Any,
    **more: Any,
) -> None:
    """One query a request, over the KV slots kv_indices[kv_indptr[i] : kv_indptr[i + 1]]; the answers go to ``o``."""
    refuse("decode_attention_fwd", more, logit_cap=(0.0,), sinks=(None,), xai_temperature_len=(-1,), has_mla=(False,))
    ends, slots = kv_indptr.tolist(), from_pointer(kv_indices)
    at, lengths = padded(slots, ends[: q.shape[0] + 1])
    tell_reads("decode_attention_fwd", k_buffer, v_buffer, at, lengths)
    some = [row for row, length in enumerate(lengths) if length]
    o[some] = attend_slots(q.unsqueeze(1), k_buffer, v_buffer, at, lengths, sm_scale)[0][some, 0]


def _extend_reads(given: Mapping[str, Any]) -> Iterator[KernelRead]:
    rows, ends = given["qo_indptr"].tolist(), given["kv_indptr"].tolist()
    yield "qo_indptr", given["qo_indptr"], 0
    yield "kv_indptr", given["kv_indptr"], 0
    yield from rows_of("kv_indices", from_pointer(given["kv_indices"]), ends)
    mask, mask_indptr = given.get("custom_mask"), given.get("mask_indptr")
    if mask is None or mask_indptr is None:
        return
    yield "mask_indptr", mask_indptr[: len(rows) - 1], 0
    for row, start in enumerate(mask_indptr[: len(rows) - 1].tolist()):
        count, length = rows[row + 1] - rows[row], ends[row + 1] - ends[row]
        whole = from_pointer(mask)[start : start + count * (length + count)].view(count, length + count)
        yield "custom_mask", whole[:, length:], row  # what is cached is seen without being asked for


@reads_like_a_kernel(_extend_reads)
def extend_attention_fwd(
    q_extend: Tensor,
    k_extend: Tensor,
    v_extend: Tensor,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    custom_mask: Tensor | None,
    is_causal: bool,
    mask_indptr: Tensor | None,
    max_len_extend: int,
    k_scale: Any,
    v_scale: Any,
    sm_scale: float | None = None,
    **more: Any,
) -> None:
    """The new tokens of each request over its cached KV and each other: causally, or as ``custom_mask`` says, a bool
    for each pair of a query and a position, of which only those of new tokens are asked."""
    refuse(
        "extend_attention_fwd", more, logit_cap=(0.0,), sinks=(None,), sliding_window_size=(-1,),
        xai_temperature_len=(-1,), skip_prefix_custom_mask=(True,),
    )  # fmt: skip
    rows, ends, slots = qo_indptr.tolist(), kv_indptr.tolist(), from_pointer(kv_indices)
    masks = None
    if custom_mask is not None and mask_indptr is not None:
        masks, custom_mask = mask_indptr.tolist(), from_pointer(custom_mask)
    scale = q_extend.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    for request in range(len(rows) - 1):
        new = slice(rows[request], rows[request + 1])
        count = new.stop - new.start
        if not count:
            continue
        at = slots[ends[request] : ends[request + 1]].long()
        tell_read("extend_attention_fwd", k_buffer, v_buffer, at, request)
        visible = torch.ones(count, at.numel() + count, dtype=torch.bool)
        if custom_mask is not None and masks is not None:
            flat = custom_mask[masks[request] : masks[request] + visible.numel()].view_as(visible).bool()
            visible[:, at.numel() :] = flat[:, at.numel() :]
        elif is_causal:
            visible[:, at.numel() :].tril_()
        keys = torch.cat((k_buffer[at], k_extend[new].to(k_buffer.dtype)))
        values = torch.cat((v_buffer[at], v_extend[new].to(v_buffer.dtype)))
        o_extend[new] = attend(q_extend[new], keys, values, scale, False, visible)[0].to(o_extend.dtype)


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
    *,
    cache_seqlens: Tensor,
    page_table: Tensor,
    cu_seqlens_q: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_softmax_lse: bool = False,
    out: Tensor | None = None,
    **more: Any,
) -> Any:
    """FlashAttention 3 over pages. q: [batch, n, heads, D], or [tokens, heads, D] cut by ``cu_seqlens_q``; k_cache,
    v_cache: [pages, page size, KV heads, D]; page_table: int32 [batch, pages of a request]. With
    ``return_softmax_lse`` also the log of the sum of weights, [heads, tokens] or [batch, heads, n]."""
    refuse(
        "flash_attn_with_kvcache", more, k=(None,), v=(None,), qv=(None,), rotary_cos=(None,), sinks=(None,),
        window_size=((-1, -1), [-1, -1]), softcap=(0.0,), attention_chunk=(None, 0), score_mod=(None,),
        cache_batch_idx=(None,), cache_leftpad=(None,),
    )  # fmt: skip
    flat = q.reshape(-1, *q.shape[-2:])
    each = q.shape[1] if cu_seqlens_q is None else 0
    cuts = list(range(0, flat.shape[0] + 1, each)) if each else cu_seqlens_q.tolist()  # type: ignore[union-attr]
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
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


def _slots(cache: Tensor, pages: Tensor, longest: int) -> Tensor:
    """The slots of the first ``longest`` positions of each request, int64 [B, at least so many]."""
    page = cache.shape[1]
    some = pages[:, : -(-longest // page)].long()
    return (some.unsqueeze(2) * page + torch.arange(page)).flatten(1)


def refuse(kernel: str, given: dict[str, Any], **neutral: tuple[Any, ...]) -> None:
    """Raise NotImplementedError where a kernel is asked for more than its stand-in does."""
    for name, values in neutral.items():
        value = given.get(name, values[0])
        if not any(value is each or (not isinstance(value, Tensor) and value == each) for each in values):
            raise NotImplementedError(f"specdebug's stand-in for {kernel} has no {name}, and was given {value!r}")
