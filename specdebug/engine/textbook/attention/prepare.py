"""From metadata to passes, once per forward: lengths and index lists become padded slot tables and masks.

Reads go through raw pointers as a kernel's do: an index list that is too short is read past its end, and leaving the
allocation is an illegal address.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.pointer import raw_gather
from specdebug.engine.textbook.attention.metadata import PagedMetadata, RaggedMetadata
from specdebug.engine.textbook.attention.passes import NEG_INF, AttentionPass

_MASK_STEP = 512
_KEPT_QUERIES = 64
"""Masks of as many queries are kept, since every decode step asks for its own again. Prompts' masks are made anew: each
length has another, and 64 long ones would take a GB."""


def prepare(metadata: RaggedMetadata | PagedMetadata) -> AttentionPass:
    """One pass over sequences of equal query counts (``q_len`` is set).
    Raises IllegalAddress if a length or an offset lies outside the metadata's own buffers."""
    q_len = metadata.q_len
    assert q_len is not None
    if isinstance(metadata, PagedMetadata):
        slots = _paged_slots(metadata.page_table, metadata.cache_seqlens, metadata.page_size)
        return _finish(slots, metadata.cache_seqlens.to(torch.int64), q_len, metadata.causal, None, 1)
    even = _prepare_even(metadata, q_len)
    if even is not None:
        return even
    slots = _ragged_slots(metadata.kv_indptr, metadata.kv_indices)
    lengths = metadata.kv_indptr.to(torch.int64).diff()
    mask = None
    if metadata.custom_mask is not None:
        assert metadata.mask_indptr is not None
        mask = _mask_from_bits(metadata.custom_mask, metadata.mask_indptr, lengths, q_len, slots.shape[1])
    return _finish(slots, lengths, q_len, metadata.causal, mask, _num_splits(metadata))


def prepare_each(metadata: RaggedMetadata | PagedMetadata) -> list[tuple[int, int, AttentionPass]]:
    """Sequences of different query counts, one pass each: all queries see the prefix, the rest is causal.

    Returns (first row, row after the last, pass) per sequence. Raises as :func:`prepare` does.
    """
    prepared = []
    qo_indptr = metadata.qo_indptr if isinstance(metadata, RaggedMetadata) else metadata.cu_seqlens_q
    for b, (start, stop) in enumerate(pairwise(qo_indptr.tolist())):
        if isinstance(metadata, RaggedMetadata):
            slots = _ragged_slots(metadata.kv_indptr[b : b + 2], metadata.kv_indices)
        else:
            one = slice(b, b + 1)
            slots = _paged_slots(metadata.page_table[one], metadata.cache_seqlens[one], metadata.page_size)
        q_len, width = stop - start, slots.shape[1]
        mask = None
        if width != q_len:
            column = torch.arange(width, device=slots.device)
            last = width - q_len + torch.arange(q_len, device=slots.device).unsqueeze(1)
            mask = _additive((column <= last).unsqueeze(0))
        prepared.append((start, stop, AttentionPass(slots, q_len, mask, None, _span(slots))))
    return prepared


def _prepare_even(metadata: RaggedMetadata, q_len: int) -> AttentionPass | None:
    """Sequences of one length, such as one request and its branches: the common case of a debugging session.

    Their lists and masks are whole blocks of the buffers, so nothing is gathered. None when lengths differ, or when
    a block would not lie inside its buffer.
    """
    indptr: list[int] = metadata.kv_indptr.tolist()
    batch, first, length = len(indptr) - 1, indptr[0], indptr[1] - indptr[0]
    if length < 1 or any(after - before != length for before, after in pairwise(indptr)):
        return None
    if first < 0 or indptr[-1] > metadata.kv_indices.numel():
        return None
    mask = None
    if metadata.custom_mask is not None:
        assert metadata.mask_indptr is not None
        starts: list[int] = metadata.mask_indptr.tolist()
        num_bits = q_len * length
        stop = starts[0] + batch * num_bits
        if starts != list(range(starts[0], stop, num_bits)) or stop > metadata.custom_mask.numel():
            return None
        mask = _additive(metadata.custom_mask[starts[0] : stop].view(batch, q_len, length))
    elif metadata.causal and q_len > 1:
        if q_len > length:
            return None
        make = _kept_mask if q_len <= _KEPT_QUERIES else _causal_mask
        mask = make(q_len, -(-length // _MASK_STEP) * _MASK_STEP, metadata.kv_indptr.device)[..., -length:]
    block = metadata.kv_indices[first : indptr[-1]]
    if batch == 1:
        ids: list[int] = block.tolist()
        if ids[0] >= 0 and ids == list(range(ids[0], ids[0] + length)):
            return AttentionPass(None, q_len, mask, None, (ids[0], ids[0] + length), _num_splits(metadata))
    slots = block.to(torch.int64).view(batch, length)
    return AttentionPass(slots, q_len, mask, None, None, _num_splits(metadata))


def _num_splits(metadata: RaggedMetadata) -> int:
    return 1 if metadata.num_kv_splits is None else int(metadata.num_kv_splits.max())


def _causal_mask(q_len: int, width: int, device: torch.device) -> Tensor:
    """Additive float32 [1, 1, q_len, width] of q_len last queries; its last n columns serve n keys."""
    return torch.full((1, 1, q_len, width), NEG_INF, device=device).triu_(width - q_len + 1)


_kept_mask = lru_cache(maxsize=64)(_causal_mask)


def _ragged_slots(kv_indptr: Tensor, kv_indices: Tensor) -> Tensor:
    """int64 [B, W] of packed lists."""
    indptr = kv_indptr.to(torch.int64)
    inside = _columns(indptr.diff(), kv_indices.numel(), "attention.kv_indptr")
    offsets = indptr[:-1].unsqueeze(1) + inside
    return raw_gather(kv_indices, offsets, "attention.kv_indices").to(torch.int64)


def _paged_slots(table: Tensor, lengths: Tensor, page: int) -> Tensor:
    """int64 [B, W] of page tables."""
    inside = _columns(lengths.to(torch.int64), table.numel() * page, "attention.cache_seqlens")
    rows = torch.arange(table.shape[0], device=table.device).unsqueeze(1) * table.stride(0)
    pages = raw_gather(table, rows + inside // page, "attention.page_table").to(torch.int64)
    return pages * page + inside % page


def _columns(lengths: Tensor, available: int, site: str) -> Tensor:
    """The keys 0 .. W - 1 of each sequence, W the longest's length and at least 1: [B, W], 0 past a sequence's end.

    A length that no buffer can hold is where a device would fault.
    """
    longest = int(lengths.max()) if lengths.numel() else 0
    if longest > max(available, 1):
        raise IllegalAddress(site, f"a sequence of {longest} keys in a buffer of {available}")
    column = torch.arange(max(longest, 1), device=lengths.device)
    return torch.where(column < lengths.unsqueeze(1), column, 0)


def _finish(
    slots: Tensor, lengths: Tensor, q_len: int, causal: bool, mask: Tensor | None, splits: int
) -> AttentionPass:
    width, shortest = slots.shape[1], int(lengths.min())
    column = torch.arange(width, device=slots.device).view(1, 1, -1)
    if mask is None and causal and q_len > 1:
        last = lengths.view(-1, 1, 1) - q_len + torch.arange(q_len, device=slots.device).view(1, -1, 1)
        mask = _additive(column <= last)
    elif mask is None and shortest != width:
        mask = _additive(column < lengths.view(-1, 1, 1)).expand(-1, -1, q_len, -1)
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
    return torch.where(keep, 0.0, NEG_INF).unsqueeze(1)


def _mask_from_bits(bits: Tensor, indptr: Tensor, lengths: Tensor, q_len: int, width: int) -> Tensor:
    column = torch.arange(width, device=lengths.device)
    valid = (column < lengths.unsqueeze(1)).unsqueeze(1)
    row = torch.arange(q_len, device=lengths.device).view(1, -1, 1) * lengths.view(-1, 1, 1)
    offsets = indptr.view(-1, 1, 1) + row + torch.where(valid, column, 0)
    return _additive(raw_gather(bits, offsets, "attention.custom_mask") & valid)
