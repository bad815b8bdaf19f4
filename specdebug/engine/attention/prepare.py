"""From metadata to passes, once per forward: lengths and index lists become padded slot tables and masks.

Reads go through raw pointers, as a kernel's would: an index list that is too short is read past its end, and
leaving the allocation is an illegal address.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from specdebug.engine.attention.metadata import PagedMetadata, RaggedMetadata
from specdebug.engine.attention.passes import NEG_INF, AttentionPass
from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.pointer import raw_gather


def prepare(metadata: RaggedMetadata | PagedMetadata) -> AttentionPass:
    """One pass over sequences of equal query counts (``q_len`` is set).

    Raises:
        IllegalAddress: a length or an offset lies outside the metadata's own buffers.
    """
    return _prepare_ragged(metadata) if isinstance(metadata, RaggedMetadata) else _prepare_paged(metadata)


def _prepare_ragged(metadata: RaggedMetadata) -> AttentionPass:
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


def _prepare_single(metadata: RaggedMetadata, q_len: int, first: int, length: int) -> AttentionPass:
    """One sequence, the common case of a debugging session: host integers in place of vectors of one."""
    if length > metadata.kv_indices.numel():
        raise IllegalAddress(
            "attention.kv_indptr", f"a sequence of {length} keys in a buffer of {metadata.kv_indices.numel()}"
        )
    slots = _slice(metadata.kv_indices, first, length).unsqueeze(0)
    mask = None
    if metadata.causal and q_len > 1:
        mask = torch.full((1, 1, q_len, length), NEG_INF, device=slots.device).triu_(length - q_len + 1)
    splits = 1 if metadata.num_kv_splits is None else int(metadata.num_kv_splits[0])
    return AttentionPass(slots, q_len, mask, None, _span(slots), splits)


def _prepare_paged(metadata: PagedMetadata) -> AttentionPass:
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
) -> AttentionPass:
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
    return AttentionPass(slots, q_len, mask, empty, _span(slots), splits)


def _span(slots: Tensor) -> tuple[int, int] | None:
    """(start, stop) when there is one sequence whose slots are consecutive, so its KV is a plain slice."""
    if slots.shape[0] != 1:
        return None
    row = slots[0]
    first = int(row[0])
    stop = first + row.numel()
    if first < 0 or not torch.equal(row, torch.arange(first, stop, device=row.device)):
        return None
    return first, stop


def _additive(keep: Tensor) -> Tensor:
    """bool [B, q, W] -> additive float mask [B, 1, q, W]."""
    zeros = torch.zeros(keep.shape, dtype=torch.float32, device=keep.device)
    return zeros.masked_fill_(~keep, NEG_INF).unsqueeze(1)


def _mask_from_bits(bits: Tensor, indptr: Tensor, lengths: Tensor, q_len: int, width: int) -> Tensor:
    column = torch.arange(width, device=lengths.device)
    valid = column < lengths.unsqueeze(1)
    inside = torch.where(valid, column, 0).unsqueeze(1)
    row = torch.arange(q_len, device=lengths.device).view(1, -1, 1) * lengths.view(-1, 1, 1)
    offsets = indptr.view(-1, 1, 1) + row + inside
    keep = raw_gather(bits, offsets, "attention.custom_mask") & valid.unsqueeze(1)
    return _additive(keep)


def prepare_each(metadata: RaggedMetadata | PagedMetadata) -> list[tuple[int, int, AttentionPass]]:
    """Sequences of different query counts, one pass each: all queries see the prefix, the rest is causal.

    Returns (first row, row after the last, pass) per sequence. Raises as :func:`prepare` does.
    """
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
        prepared.append((start, stop, AttentionPass(slots, q_len, mask, None, _span(slots))))
    return prepared
