"""The torch executor: paged attention computed from metadata alone, so wrong metadata gives wrong attention.

Preparing turns metadata into padded slot tables once per forward; every layer then gathers and attends.
Padding repeats a sequence's own first slot under a mask, because a kernel never loads past a sequence's end:
a NaN that lies there must not leak, one inside the sequence must.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from specdebug.engine.attention.metadata import CascadeMetadata, Metadata, PagedMetadata, RaggedMetadata
from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.pointer import raw_gather
from specdebug.engine.memory.kv_pool import KVPool

_NEG_INF = float("-inf")
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass
class _Pass:
    """Sequences of ``q_len`` queries each. slots: int64 [B, W]. mask: additive float32 [B, 1, q_len, W]."""

    slots: Tensor
    q_len: int
    mask: Tensor | None
    empty: Tensor | None  # bool [B]: sequences without keys
    span: tuple[int, int] | None  # a single sequence whose slots are contiguous: gather-free
    splits: int = 1
    _folded: Tensor | None = None

    def keys_values(self, pool: KVPool, layer: int) -> tuple[Tensor, Tensor]:
        """[B, num_kv_heads, W, head_dim] each."""
        k, v = pool.k[layer], pool.v[layer]
        if self.span is not None:
            start, stop = self.span
            if stop > pool.size:
                raise IllegalAddress("attention.kv_cache", f"slot {stop - 1} of a pool of {pool.size}")
            return k[start:stop].unsqueeze(0).transpose(1, 2), v[start:stop].unsqueeze(0).transpose(1, 2)
        batch, width = self.slots.shape
        flat = self.slots.view(-1)
        shape = (batch, width, *k.shape[1:])
        try:
            keys, values = k.index_select(0, flat), v.index_select(0, flat)
        except (IndexError, RuntimeError) as error:
            detail = f"slots {int(flat.min())}..{int(flat.max())} of a pool of {pool.size}"
            raise IllegalAddress("attention.kv_cache", detail) from error
        return keys.view(shape).transpose(1, 2), values.view(shape).transpose(1, 2)

    def run(self, q: Tensor, pool: KVPool, layer: int, *, lse: bool) -> tuple[Tensor, Tensor | None]:
        """q [B * q_len, Hq, D] -> out [B, Hq, q_len, D] (a view), log-sum-exp [B, Hq, q_len] if asked."""
        k, v = self.keys_values(pool, layer)
        batch, num_kv, _, dim = k.shape
        group = q.shape[1] // num_kv
        # Query heads that share a kv head become extra query rows: no copy of keys per head.
        folded = q.reshape(batch, self.q_len, num_kv, group, dim).permute(0, 2, 3, 1, 4)
        folded = folded.reshape(batch, num_kv, group * self.q_len, dim)
        mask = self._folded_mask(group)
        if self.splits > 1:
            out, logsum = self._split(folded, k, v, mask)
        else:
            out, logsum = _flash(folded, k, v, attn_mask=mask)
        if self.empty is not None:
            out = out.masked_fill(self.empty.view(-1, 1, 1, 1), 0.0)
            logsum = logsum.masked_fill(self.empty.view(-1, 1, 1), _NEG_INF)
        out = out.reshape(batch, num_kv, group, self.q_len, dim)
        out = out.reshape(batch, num_kv * group, self.q_len, dim)
        if not lse:
            return out, None
        return out, logsum.reshape(batch, num_kv * group, self.q_len)

    def _folded_mask(self, group: int) -> Tensor | None:
        """The mask repeated for each query head of a group; the same for every layer, so made once."""
        if self.mask is None or self.q_len == 1 or group == 1:
            return self.mask
        if self._folded is None:
            self._folded = self.mask.repeat(1, 1, group, 1)
        return self._folded

    def _split(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        width = k.shape[2]
        step = -(-width // self.splits)
        parts = []
        for start in range(0, width, step):
            stop = min(start + step, width)
            part_mask = None if mask is None else mask[..., start:stop]
            out, logsum = _flash(q, k[:, :, start:stop], v[:, :, start:stop], attn_mask=part_mask)
            if part_mask is not None:
                dead = (part_mask == _NEG_INF).all(dim=-1).expand(logsum.shape)
                out = out.masked_fill(dead.unsqueeze(-1), 0.0)
                logsum = logsum.masked_fill(dead, _NEG_INF)
            parts.append((out, logsum))
        return merge_partial(parts)


def merge_partial(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge attention over disjoint key sets: outs [..., D], log-sum-exps [...] (-inf for an empty set)."""
    logsums = torch.stack([logsum for _, logsum in parts])
    total = torch.logsumexp(logsums, dim=0)
    weights = torch.exp(logsums - total).masked_fill(total == _NEG_INF, 0.0)
    out = sum(part * weights[i].unsqueeze(-1) for i, (part, _) in enumerate(parts))
    return out, total  # type: ignore[return-value]


class TorchAttention:
    """Attention over one prepared batch of one pool: called by every layer as ``LayerAttention``.

    Args:
        metadata: as planned; read here and never again.
        pool: keys and values by slot.
        out_cache_loc: int64 [n], where this batch's own keys and values go.
    """

    def __init__(self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor) -> None:
        self._pool = pool
        self._loc = out_cache_loc
        self._cascade: tuple[_Pass, _Pass] | None = None
        self._uniform: _Pass | None = None
        self._ragged: list[tuple[int, int, _Pass]] = []
        if isinstance(metadata, CascadeMetadata):
            self._cascade = (_prepare_paged(metadata.prefix), _prepare_paged(metadata.expand))
        elif metadata.q_len is not None:
            self._uniform = _prepare(metadata)
        else:
            self._ragged = _prepare_each(metadata)

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, Hq, D], k and v [n, Hkv, D] -> [n, Hq * D]."""
        pool = self._pool
        pool.write(layer_id, self._loc, k, v)
        if self._uniform is not None:
            out, _ = self._uniform.run(q, pool, layer_id, lse=False)
            return out.transpose(1, 2).reshape(q.shape[0], -1)
        if self._cascade is not None:
            return self._run_cascade(self._cascade, layer_id, q)
        outs = [_attend_sequence(one, q[start:stop], pool, layer_id) for start, stop, one in self._ragged]
        return torch.cat(outs) if len(outs) != 1 else outs[0]

    def _run_cascade(self, passes: tuple[_Pass, _Pass], layer_id: int, q: Tensor) -> Tensor:
        parts = []
        num_heads, dim = q.shape[1], q.shape[2]
        for one in passes:
            out, logsum = one.run(q, self._pool, layer_id, lse=True)
            assert logsum is not None
            rows = out.transpose(1, 2).reshape(-1, num_heads, dim)
            parts.append((rows, logsum.transpose(1, 2).reshape(-1, num_heads)))
        merged, _ = merge_partial(parts)
        return merged.reshape(q.shape[0], -1)


def _attend_sequence(one: _Pass, q: Tensor, pool: KVPool, layer: int) -> Tensor:
    """One sequence of many queries (a prefill): [n, Hq, D] -> [n, Hq * D]."""
    k, v = one.keys_values(pool, layer)
    out = functional.scaled_dot_product_attention(
        q.unsqueeze(0).transpose(1, 2),
        k,
        v,
        attn_mask=one.mask,
        is_causal=one.mask is None and one.q_len > 1,
        enable_gqa=True,
    )
    return out.transpose(1, 2).reshape(q.shape[0], -1)


def _prepare(metadata: RaggedMetadata | PagedMetadata) -> _Pass:
    return _prepare_ragged(metadata) if isinstance(metadata, RaggedMetadata) else _prepare_paged(metadata)


def _prepare_ragged(metadata: RaggedMetadata) -> _Pass:
    assert metadata.q_len is not None
    if metadata.kv_indptr.numel() == 2 and metadata.custom_mask is None:
        first, last = metadata.kv_indptr.tolist()
        if last > first:
            return _prepare_single(metadata, metadata.q_len, first, last - first)
    indptr = metadata.kv_indptr.to(torch.int64)
    starts, lengths = indptr[:-1], indptr[1:] - indptr[:-1]
    width = _checked_width(lengths, metadata.kv_indices.numel(), "attention.kv_indptr")
    column = torch.arange(width, device=indptr.device)
    inside = torch.where(column < lengths.unsqueeze(1), column, 0)
    offsets = starts.unsqueeze(1) + inside
    slots = raw_gather(metadata.kv_indices, offsets, "attention.kv_indices").to(torch.int64)
    mask = None
    if metadata.custom_mask is not None:
        assert metadata.mask_indptr is not None
        mask = _mask_from_bits(metadata.custom_mask, metadata.mask_indptr, lengths, metadata.q_len, width)
    splits = 1 if metadata.num_kv_splits is None else int(metadata.num_kv_splits.max())
    return _finish(slots, lengths, metadata.q_len, width, metadata.causal, mask, splits)


def _prepare_single(metadata: RaggedMetadata, q_len: int, first: int, length: int) -> _Pass:
    """One sequence, the common case of a debugging session: host integers in place of vectors of one."""
    if length > metadata.kv_indices.numel():
        raise IllegalAddress(
            "attention.kv_indptr", f"a sequence of {length} keys in a buffer of {metadata.kv_indices.numel()}"
        )
    slots = _slice(metadata.kv_indices, first, length).unsqueeze(0)
    mask = None
    if metadata.causal and q_len > 1:
        mask = torch.full((1, 1, q_len, length), _NEG_INF, device=slots.device).triu_(length - q_len + 1)
    splits = 1 if metadata.num_kv_splits is None else int(metadata.num_kv_splits[0])
    return _Pass(slots, q_len, mask, None, _span(slots), splits)


def _prepare_paged(metadata: PagedMetadata) -> _Pass:
    assert metadata.q_len is not None
    lengths = metadata.cache_seqlens.to(torch.int64)
    table = metadata.page_table
    page = metadata.page_size
    width = _checked_width(lengths, table.numel() * page, "attention.cache_seqlens")
    column = torch.arange(width, device=lengths.device)
    inside = torch.where(column < lengths.unsqueeze(1), column, 0)
    rows = torch.arange(table.shape[0], device=lengths.device).unsqueeze(1) * table.stride(0)
    pages = raw_gather(table, rows + inside // page, "attention.page_table").to(torch.int64)
    slots = pages * page + inside % page
    return _finish(slots, lengths, metadata.q_len, width, metadata.causal, None, 1)


def _slice(indices: Tensor, start: int, width: int) -> Tensor:
    if start < 0 or start + width > indices.numel():
        return raw_gather(indices, torch.arange(start, start + width), "attention.kv_indices").to(torch.int64)
    return indices[start : start + width].to(torch.int64)


def _checked_width(lengths: Tensor, available: int, site: str) -> int:
    """Longest sequence, at least 1. A length no buffer could hold is where a device would fault."""
    longest = int(lengths.max()) if lengths.numel() else 0
    if longest > max(available, 1):
        raise IllegalAddress(site, f"a sequence of {longest} keys in a buffer of {available}")
    return max(longest, 1)


def _finish(
    slots: Tensor, lengths: Tensor, q_len: int, width: int, causal: bool, mask: Tensor | None, splits: int
) -> _Pass:
    shortest = int(lengths.min())
    if mask is None:
        ragged = shortest != width
        if causal and q_len > 1:
            last = lengths.view(-1, 1, 1) - q_len + torch.arange(q_len, device=slots.device).view(1, -1, 1)
            mask = _additive(torch.arange(width, device=slots.device).view(1, 1, -1) <= last)
        elif ragged:
            mask = _additive(torch.arange(width, device=slots.device).view(1, 1, -1) < lengths.view(-1, 1, 1))
            mask = mask.expand(-1, -1, q_len, -1)
    empty = None
    if shortest <= 0:
        empty = lengths <= 0
        if mask is not None:  # attend anything, the result is discarded: a fully masked row would be NaN
            mask = mask.masked_fill(empty.view(-1, 1, 1, 1), 0.0)
    return _Pass(slots, q_len, mask, empty, _span(slots), splits)


def _span(slots: Tensor) -> tuple[int, int] | None:
    """(start, stop) when there is one sequence whose slots are consecutive, so its KV is a plain slice."""
    if slots.shape[0] != 1:
        return None
    row = slots[0]
    first, last = int(row[0]), int(row[-1])
    if last - first + 1 != row.numel() or first < 0:
        return None
    return (first, last + 1) if torch.equal(row, torch.arange(first, last + 1, device=row.device)) else None


def _additive(keep: Tensor) -> Tensor:
    """bool [B, q, W] -> additive float mask [B, 1, q, W]."""
    zeros = torch.zeros(keep.shape, dtype=torch.float32, device=keep.device)
    return zeros.masked_fill_(~keep, _NEG_INF).unsqueeze(1)


def _mask_from_bits(bits: Tensor, indptr: Tensor, lengths: Tensor, q_len: int, width: int) -> Tensor:
    column = torch.arange(width, device=lengths.device)
    valid = column < lengths.unsqueeze(1)
    inside = torch.where(valid, column, 0).unsqueeze(1)
    row = torch.arange(q_len, device=lengths.device).view(1, -1, 1) * lengths.view(-1, 1, 1)
    offsets = indptr.view(-1, 1, 1) + row + inside
    keep = raw_gather(bits, offsets, "attention.custom_mask") & valid.unsqueeze(1)
    return _additive(keep)


def _prepare_each(metadata: RaggedMetadata | PagedMetadata) -> list[tuple[int, int, _Pass]]:
    """Sequences of different query counts, one pass each: all queries see the prefix, the rest is causal."""
    prepared = []
    qo_indptr = metadata.qo_indptr if isinstance(metadata, RaggedMetadata) else metadata.cu_seqlens_q
    for b, (start, stop) in enumerate(pairwise(qo_indptr.tolist())):
        q_len = stop - start
        if isinstance(metadata, RaggedMetadata):
            kv_start, kv_stop = metadata.kv_indptr[b : b + 2].tolist()
            width = _checked_width(
                torch.tensor([kv_stop - kv_start]), metadata.kv_indices.numel(), "attention.kv_indptr"
            )
            slots = _slice(metadata.kv_indices, kv_start, width).unsqueeze(0)
        else:
            length = metadata.cache_seqlens[b : b + 1]
            one = PagedMetadata(
                metadata.page_table[b : b + 1],
                length,
                metadata.cu_seqlens_q,
                1,
                metadata.page_size,
                causal=False,
            )
            slots = _prepare_paged(one).slots
            width = slots.shape[1]
        mask = None
        if width != q_len:
            column = torch.arange(width, device=slots.device)
            last = width - q_len + torch.arange(q_len, device=slots.device).unsqueeze(1)
            mask = _additive((column <= last).unsqueeze(0))
        prepared.append((start, stop, _Pass(slots, q_len, mask, None, _span(slots))))
    return prepared
