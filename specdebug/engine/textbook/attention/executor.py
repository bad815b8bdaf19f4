"""The torch executor: attention computed from metadata alone, so wrong metadata gives wrong attention.

Reads go through raw pointers as a kernel's do: an index list that is too short is read past its end, and leaving the
allocation is an illegal address. Padding repeats a sequence's own first slot under the mask, because a kernel never
loads past a sequence's end: a NaN there must not leak, one inside the sequence must.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.pointer import raw_gather
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.textbook.attention.planner import CascadeMetadata, Metadata, PagedMetadata, RaggedMetadata

NEG_INF = float("-inf")
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass
class AttentionPass:
    """Sequences of ``q_len`` queries each. mask: additive float32 [B or 1, 1, q_len, W]. Keys come from ``slots``,
    int64 [B, W], or from ``span`` (start, stop) where one sequence's slots are consecutive. empty: bool [B], without
    keys."""

    slots: Tensor | None
    q_len: int
    mask: Tensor | None
    empty: Tensor | None
    span: tuple[int, int] | None
    splits: int = 1
    _folded: Tensor | None = None

    def _keys_values(self, pool: KVPool, layer: int) -> tuple[Tensor, Tensor, int]:
        """[B, num_kv_heads, W, head_dim] each, and how many of the last one's columns are values: where values are the
        first columns of keys, they are not fetched again."""
        k, v = pool.kv_buffer(layer)
        value_dim = v.shape[-1]
        if value_dim != k.shape[-1]:
            assert v.data_ptr() == k.data_ptr(), "values of another width than keys must be their first columns"
            v = k
        if self.span is not None:
            start, stop = self.span
            if stop > pool.size:
                raise IllegalAddress("attention.kv_cache", f"slot {stop - 1} of a pool of {pool.size}")
            k, v = (side[start:stop].unsqueeze(0).transpose(1, 2) for side in (k, v))
            return k, v, value_dim
        assert self.slots is not None
        flat = self.slots.view(-1)
        shape = (*self.slots.shape, *k.shape[1:])
        try:
            keys = k.index_select(0, flat)
            values = keys if v is k else v.index_select(0, flat)
        except (IndexError, RuntimeError) as error:
            detail = f"slots {int(flat.min())}..{int(flat.max())} of a pool of {pool.size}"
            raise IllegalAddress("attention.kv_cache", detail) from error
        return keys.view(shape).transpose(1, 2), values.view(shape).transpose(1, 2), value_dim

    def run_sequence(self, q: Tensor, pool: KVPool, layer: int, scale: float | None = None) -> Tensor:
        """Attend one sequence of many queries (a prefill): [n, Hq, D] -> [n, Hq * Dv]."""
        k, v, value_dim = self._keys_values(pool, layer)
        causal = self.mask is None and self.q_len > 1
        out = functional.scaled_dot_product_attention(
            q.unsqueeze(0).transpose(1, 2), k, v, attn_mask=self.mask, is_causal=causal, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2)[..., :value_dim].reshape(q.shape[0], -1)

    def run(
        self, q: Tensor, pool: KVPool, layer: int, scale: float | None = None, *, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """q [B * q_len, Hq, D] -> out [B, Hq, q_len, Dv] (a view), log-sum-exp [B, Hq, q_len] if asked.

        ``scale``: of the scores, by default D ** -0.5.
        """
        k, v, value_dim = self._keys_values(pool, layer)
        batch, num_kv, _, dim = k.shape
        group = q.shape[1] // num_kv
        # Query heads that share a kv head become extra query rows: no copy of keys per head.
        folded = q.reshape(batch, self.q_len, num_kv, group, dim).permute(0, 2, 3, 1, 4)
        folded = folded.reshape(batch, num_kv, group * self.q_len, dim)
        mask = self._folded_mask(group)
        if self.splits > 1:
            out, logsum = self._split(folded, k, v, mask, scale)
        else:
            out, logsum = _flash(folded, k, v, attn_mask=mask, scale=scale)
        if self.empty is not None:
            out = out.masked_fill(self.empty.view(-1, 1, 1, 1), 0.0)
            logsum = logsum.masked_fill(self.empty.view(-1, 1, 1), NEG_INF)
        shape = (batch, num_kv * group, self.q_len)
        return out.reshape(*shape, dim)[..., :value_dim], logsum.reshape(shape) if lse else None

    def _folded_mask(self, group: int) -> Tensor | None:
        """The mask repeated for each query head of a group; made once for all layers."""
        if self.mask is None or self.q_len == 1 or group == 1:
            return self.mask
        if self._folded is None:
            self._folded = self.mask.repeat(1, 1, group, 1)
        return self._folded

    def _split(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None
    ) -> tuple[Tensor, Tensor]:
        width = k.shape[2]
        step = -(-width // self.splits)
        parts = []
        for start in range(0, width, step):
            stop = min(start + step, width)
            part_mask = None if mask is None else mask[..., start:stop]
            out, logsum = _flash(q, k[:, :, start:stop], v[:, :, start:stop], attn_mask=part_mask, scale=scale)
            if part_mask is not None:
                dead = (part_mask == NEG_INF).all(dim=-1).expand(logsum.shape)
                out = out.masked_fill(dead.unsqueeze(-1), 0.0)
                logsum = logsum.masked_fill(dead, NEG_INF)
            parts.append((out, logsum))
        return merge_partial(parts)


def merge_partial(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge attention over disjoint key sets: outs [..., D], log-sum-exps float32 [...], -inf for an empty set. Weighs
    in float32; the merged out has the dtype of the parts."""
    logsums = torch.stack([logsum for _, logsum in parts])
    total = torch.logsumexp(logsums, dim=0)
    weights = torch.exp(logsums - total).masked_fill(total == NEG_INF, 0.0)
    outs = torch.stack([out for out, _ in parts])
    return (outs * weights.unsqueeze(-1)).sum(dim=0).to(outs.dtype), total


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
    """Sequences of different query counts: (first row, row after the last, pass) of each. All queries see the prefix,
    the rest is causal. Raises as :func:`prepare` does."""
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
    """Sequences of one length, whose lists and masks are whole blocks of the buffers, so that nothing is gathered. None
    when lengths differ, or when a block would not lie inside its buffer."""
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
    """The keys 0 .. W - 1 of each sequence, W the longest's length and at least 1: [B, W], 0 past a sequence's end."""
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


class TorchAttention:
    """Attention over one prepared batch of one pool, a ``BoundAttention``. out_cache_loc: int64 [n], where the batch's
    own KV goes; None: it has none. scale: of the scores, by default D ** -0.5."""

    def __init__(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, scale: float | None = None
    ) -> None:
        self._pool = pool
        self._loc = out_cache_loc
        self._scale = scale
        self.replan(metadata)

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata`` from now on."""
        self._passes: list[AttentionPass] = []
        self._ragged: list[tuple[int, int, AttentionPass]] = []
        if isinstance(metadata, CascadeMetadata):
            self._passes = [prepare(metadata.prefix), prepare(metadata.expand)]
        elif metadata.q_len is not None:
            self._passes = [prepare(metadata)]
        else:
            self._ragged = prepare_each(metadata)

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, Hq, D], k [n, Hkv, D], v [n, Hkv, Dv] -> [n, Hq * Dv]."""
        assert self._loc is not None
        self._pool.write(layer_id, self._loc, k, v)
        return self.attend(layer_id, q)

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        """q [n, Hq, D] -> [n, Hq * Dv], over keys and values that are written."""
        pool = self._pool
        if len(self._passes) == 1:
            out, _ = self._passes[0].run(q, pool, layer_id, self._scale, lse=False)
            return out.transpose(1, 2).reshape(q.shape[0], -1)
        if self._passes:
            return self._run_cascade(layer_id, q)
        outs = [one.run_sequence(q[start:stop], pool, layer_id, self._scale) for start, stop, one in self._ragged]
        return torch.cat(outs) if len(outs) != 1 else outs[0]

    def _run_cascade(self, layer_id: int, q: Tensor) -> Tensor:
        parts = []
        for one in self._passes:
            out, logsum = one.run(q, self._pool, layer_id, self._scale, lse=True)
            assert logsum is not None
            parts.append((out.transpose(1, 2).reshape(*q.shape[:2], -1), logsum.transpose(1, 2).reshape(q.shape[:2])))
        merged, _ = merge_partial(parts)
        return merged.reshape(q.shape[0], -1)
