"""SGLang's attention kernels in torch, with the names and arguments of those that they replace on a CPU.

Interpreted, Triton's take 0.2 to 1.3 seconds a call, and FlashAttention 3 runs on a GPU only. A kernel is given
pointers: where SGLang passes a slice as long as it was at a capture, it reads beyond it, and so do these
(:func:`from_pointer`). What none of the engines here asks of a kernel is refused, and never left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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


def from_pointer(tensor: Tensor) -> Tensor:
    """All that a kernel could reach from where a flat tensor begins: to the end of its storage."""
    storage = tensor.untyped_storage().size() // tensor.element_size()
    return tensor.as_strided((storage - int(tensor.storage_offset()),), (1,))


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor | None = None) -> Tensor:
    """Attention in float32. q: [n, heads, D]; k, v: [m, KV heads, D]; visible: bool [n, m], all if None."""
    query, key, value = (each.float().transpose(0, 1).unsqueeze(0) for each in (q, k, v))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1).to(q.dtype)


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
    for row in range(q.shape[0]):
        at = slots[ends[row] : ends[row + 1]].long()
        tell_read("decode_attention_fwd", k_buffer, v_buffer, at, row)
        if at.numel():
            o[row] = attend(q[row : row + 1], k_buffer[at], v_buffer[at], sm_scale)[0]


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
        o_extend[new] = attend(q_extend[new], keys, values, scale, visible).to(o_extend.dtype)


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
    answer = torch.zeros_like(flat)
    lse = torch.full((flat.shape[1], flat.shape[0]), float("-inf"))
    for request, length in enumerate(cache_seqlens.tolist()[: len(cuts) - 1]):
        new = slice(cuts[request], cuts[request + 1])
        if new.stop > new.start and length > 0:
            tell_read(
                "flash_attn_with_kvcache", k_cache, v_cache, _slots(k_cache, page_table[request], length), request
            )
            keys, values = (_paged(cache, page_table[request], length) for cache in (k_cache, v_cache))
            answer[new], lse[:, new] = attend_with_lse(flat[new], keys, values, scale, causal)
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


def _slots(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """The slots of the first ``length`` positions of a request, int64."""
    page = cache.shape[1]
    whole = pages[: -(-length // page)].long().unsqueeze(1) * page + torch.arange(page)
    return whole.reshape(-1)[:length]


def _paged(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """The first ``length`` positions of a request, [length, KV heads, D]."""
    page = cache.shape[1]
    return cache[pages[: -(-length // page)].long()].reshape(-1, *cache.shape[2:])[:length]


def attend_with_lse(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, visible: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention [n, heads, D] and the logs of the sums of weights [heads, n]; causal: aligned to the last key; visible:
    bool [n, m]."""
    group = q.shape[1] // k.shape[1]
    keys, values = (each.float().repeat_interleave(group, 1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * scale
    if causal:
        count, length = q.shape[0], k.shape[0]
        last = torch.arange(length - count, length).unsqueeze(1)
        scores = scores.masked_fill(torch.arange(length).unsqueeze(0) > last, float("-inf"))
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.softmax(-1).nan_to_num()
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype), scores.logsumexp(-1)


def refuse(kernel: str, given: dict[str, Any], **neutral: tuple[Any, ...]) -> None:
    """Raise NotImplementedError where a kernel is asked for more than its stand-in does."""
    for name, values in neutral.items():
        value = given.get(name, values[0])
        if not any(value is each or (not isinstance(value, Tensor) and value == each) for each in values):
            raise NotImplementedError(f"specdebug's stand-in for {kernel} has no {name}, and was given {value!r}")
