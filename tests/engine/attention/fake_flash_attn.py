"""The part of flash-attn that the executor uses, on CPU tensors: the documented signatures, dense attention.

It refuses what the library's documentation does not promise. Keys are read one sequence at a time by what page tables
and lengths hold when it is called.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

NEG_INF = float("-inf")


def _attend_one(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """q [n, Hq, D], k, v [m, Hkv, D] -> [n, Hq, D], lse [Hq, n]; the mask is aligned to the bottom right."""
    n, m, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k.float().repeat_interleave(group, 1)) * scale
    if causal:
        scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(m - n + 1), NEG_INF)
    lse = torch.logsumexp(scores, -1) if m else torch.full(scores.shape[:2], NEG_INF)
    weights = torch.exp(scores - lse.masked_fill(lse == NEG_INF, 0.0).unsqueeze(-1))
    out = torch.einsum("hnm,mhd->nhd", weights, v.float().repeat_interleave(group, 1))
    return out.to(q.dtype), lse


def _gather(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """The first ``length`` slots of the pages; no page beyond them is looked at."""
    size = cache.shape[1]
    used = pages[: -(-length // size)].long()
    return cache[used].flatten(0, 1)[:length]


def _check(cache: Tensor, table: Tensor, lengths: Tensor, sequences: int) -> None:
    assert cache.dim() == 4
    assert cache.stride(-1) == 1
    assert table.dtype == lengths.dtype == torch.int32
    assert table.stride(-1) == 1
    assert lengths.is_contiguous()
    assert table.shape[0] == lengths.shape[0] == sequences


class Interface3:
    """``flash_attn_interface``."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def flash_attn_with_kvcache(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        cache_seqlens: Tensor,
        page_table: Tensor,
        cu_seqlens_q: Tensor | None = None,
        max_seqlen_q: int | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
    ) -> Any:
        self.calls.append({"shape": tuple(q.shape), "page": k_cache.shape[1], "causal": causal})
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        packed = cu_seqlens_q is not None
        if cu_seqlens_q is not None:
            assert cu_seqlens_q.dtype == torch.int32
            bounds = list(pairwise(cu_seqlens_q.tolist()))
            assert max_seqlen_q is not None
            assert max_seqlen_q >= max(stop - start for start, stop in bounds)
            queries = [q[start:stop] for start, stop in bounds]
        else:
            assert q.dim() == 4
            queries = list(q)
        _check(k_cache, page_table, cache_seqlens, len(queries))
        results = [
            _attend_one(one, _gather(k_cache, pages, length), _gather(v_cache, pages, length), scale, causal)
            for one, pages, length in zip(queries, page_table, cache_seqlens.tolist(), strict=True)
        ]
        outs, lses = [out for out, _ in results], [lse for _, lse in results]
        out = torch.cat(outs) if packed else torch.stack(outs)
        lse = torch.cat(lses, dim=1) if packed else torch.stack(lses)
        return (out, lse, None, None) if return_softmax_lse else out


class Package2:
    """``flash_attn``."""

    def __init__(self) -> None:
        self._newer = Interface3()

    def flash_attn_with_kvcache(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        cache_seqlens: Tensor,
        block_table: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
    ) -> Any:
        assert k_cache.shape[1] % 256 == 0
        found = self._newer.flash_attn_with_kvcache(
            q,
            k_cache,
            v_cache,
            cache_seqlens=cache_seqlens,
            page_table=block_table,
            softmax_scale=softmax_scale,
            causal=causal,
            return_softmax_lse=return_softmax_lse,
        )
        return found[:2] if return_softmax_lse else found

    def flash_attn_varlen_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None = None,
        causal: bool = False,
        block_table: Tensor,
    ) -> Tensor:
        assert k.shape[1] % 256 == 0
        lengths = cu_seqlens_k.diff()
        assert cu_seqlens_k.dtype == torch.int32
        assert int(cu_seqlens_k[0]) == 0
        assert max_seqlen_k >= int(lengths.max())
        out: Tensor = self._newer.flash_attn_with_kvcache(
            q,
            k,
            v,
            cache_seqlens=lengths,
            page_table=block_table,
            cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_seqlen_q,
            softmax_scale=softmax_scale,
            causal=causal,
        )
        return out
