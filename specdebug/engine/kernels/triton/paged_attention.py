"""Paged attention: one kernel for decode, verify and prefill over any list of slots.

Keys and values are rows of two caches, or, for latent attention, of one: then values are the first columns of keys, and
each tile of keys is read once for both.

It takes the online softmax over blocks of keys from FlashAttention-2 (Dao, 2023, arXiv 2307.08691), and shares out a
sequence's keys among programs as Flash-Decoding does (Dao et al., 2023). The query heads of one kv head are rows of one
tile. Grids follow from shapes and host integers: a captured launch serves any batch of its shape. Addresses in metadata
are read unchecked; what lies past a sequence's end is never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.triton.merging import merge_if_last

_LOG2_E = 1.4426950408889634
_MAX_SPLITS = 64
# More parts than these are better merged by a kernel of its own: one program reads them all through one processor.
MAX_MERGED_IN_PLACE = 4
_PROGRAMS_PER_PROCESSOR = 2


@dataclass(frozen=True)
class Sequences:
    """B sequences: the slots that each attends, and its rows of q.

    Packed lists, ``page_size`` 0: sequence b attends ``slots[extents[b] : extents[b + 1]]``, extents int [B + 1].
    Page tables: ``slots`` [B, W] holds pages of ``page_size`` slots, ``extents`` int [B] how many slots count.
    Rows: ``q_len`` each, or ``qo_indptr`` (int [B + 1]) where ``q_len`` is None.
    causal: query i of n sees the first kv_len - n + i + 1 keys.
    mask: uint8, flat; sequence b has q_len × kv_len bytes starting at ``mask_indptr[b]``; replaces ``causal``.
    num_splits: int32 [B], the most programs that share out a sequence's keys.
    """

    slots: Tensor
    extents: Tensor
    page_size: int
    q_len: int | None
    qo_indptr: Tensor | None = None
    causal: bool = True
    mask: Tensor | None = None
    mask_indptr: Tensor | None = None
    num_splits: Tensor | None = None

    @property
    def count(self) -> int:
        return self.extents.numel() - (self.page_size == 0)


@dataclass(frozen=True)
class Merge:
    """The merged result, contiguous [n, Hq, D], and each tile's counter of finished programs, int32
    [>= :func:`count_tiles`], zero before and after a launch."""

    out: Tensor
    tickets: Tensor


@dataclass(frozen=True)
class AttentionTile:
    """The rows of queries and the keys that one program multiplies at a time, and how it is run."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def choose_tile(rows: int, dim: int, dtype: torch.dtype, *, masked: bool) -> AttentionTile:
    """The tile that Hopper's registers hold, for up to ``rows`` queries × heads that share keys.

    float32 is multiplied exactly, without tensor cores, and its operands live in registers. Few rows wait for keys, so
    they prefetch deeper; one stage in two fetches slots.
    """
    fitting = max(16, triton.next_power_of_2(rows))
    if dtype == torch.float32:
        small = dim <= 64
        return AttentionTile(min(fitting, 32 if small else 16), 32, num_warps=4 if small else 8, num_stages=2)
    block = min(fitting, 64 if masked or dim > 128 else 128)
    if dim > 256:  # a latent: few rows are held by each warp in whole, more are cut among warps
        few, many = AttentionTile(16, 32, num_warps=4, num_stages=3), AttentionTile(64, 32, num_warps=8, num_stages=3)
        return few if fitting == 16 else many
    if dim > 128:
        return AttentionTile(block, 64, num_warps=8 if block == 64 else 4, num_stages=2)
    return AttentionTile(block, 64, num_warps=8 if block == 128 else 4, num_stages=5 if block <= 32 else 3)


def choose_splits(batch: Sequences, q: Tensor, k: Tensor) -> int:
    """Programs among which :func:`attend` should share out each sequence's keys: 1, 2, 4, ... 64; 1 for prefills.

    They occupy the device twice, since at batch 1 short shares have less latency; but no more of them than blocks of
    keys in the longest sequence that the pool or a page table's width allows. q [n, Hq, D], k [N, Hkv, D] as for it.
    """
    if batch.q_len is None:
        return 1
    rows = batch.q_len * (q.shape[1] // k.shape[1])
    tile = choose_tile(rows, q.shape[2], k.dtype, masked=batch.mask is not None)
    wanted = triton.cdiv(_PROGRAMS_PER_PROCESSOR * _num_processors(q.device), max(count_tiles(batch, q, k), 1))
    longest = min(k.shape[0], batch.slots.shape[1] * batch.page_size) if batch.page_size else k.shape[0]
    most: int = min(wanted, triton.cdiv(longest, tile.keys), _MAX_SPLITS)
    return 1 << (max(most, 1).bit_length() - 1)


def count_tiles(batch: Sequences, q: Tensor, k: Tensor) -> int:
    """Programs of :func:`attend` that share nothing: one for each sequence, block of rows and kv head, where ``q_len``
    is given."""
    assert batch.q_len is not None
    rows = batch.q_len * (q.shape[1] // k.shape[1])
    tile = choose_tile(rows, q.shape[2], k.dtype, masked=batch.mask is not None)
    return int(batch.count * triton.cdiv(rows, tile.rows) * k.shape[1])


@lru_cache(maxsize=16)
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 8  # interpreted: enough that small batches are split as well
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: Sequences,
    out: Tensor,
    lse: Tensor | None = None,
    *,
    splits: int = 1,
    first_split: int = 0,
    merge: Merge | None = None,
    scale: float | None = None,
) -> None:
    """Attention of q [n, Hq, D] over one layer of a pool, k [N, Hkv, D] and v [N, Hkv, Dv]; ``scale``: of the scores,
    by default D ** -0.5. Dv is D, or v is the view of k's first Dv columns, a power of two as those after them are.

    Without ``lse``: one program attends all of a sequence's keys, ``out`` [n, Hq, Dv] receives the result.
    With it: ``splits`` programs share them out; number i leaves its result in ``out[:, :, first_split + i]`` and the
    natural log of its summed weights in ``lse[:, :, first_split + i]``: float32 [n, Hq, S, Dv] and [n, Hq, S]. One
    that had no keys leaves -inf and writes nothing to ``out``.
    With ``merge`` besides: these parts and the ``first_split`` ones of earlier launches are merged to ``merge.out``;
    a single part is not written elsewhere.

    A query without keys gets zeros. NaN among the keys a query sees is NaN in its result. out and lse are contiguous.
    """
    num_rows, num_heads, key_dim = q.shape
    num_kv_heads, dim = v.shape[1:]
    part = key_dim - dim
    assert part == 0 or (k.data_ptr() == v.data_ptr() and part & (part - 1) == dim & (dim - 1) == 0)
    group = num_heads // num_kv_heads
    assert q.stride(2) == k.stride(2) == 1
    assert k.stride() == v.stride()
    assert all(tensor.is_contiguous() for tensor in (out, lse) if tensor is not None)
    assert merge is None or (lse is not None and batch.q_len is not None and merge.out.is_contiguous())
    if num_rows == 0:
        return
    rows = (num_rows if batch.q_len is None else batch.q_len) * group
    tile = choose_tile(rows, key_dim, k.dtype, masked=batch.q_len is not None and batch.mask is not None)
    row_blocks = triton.cdiv(rows, tile.rows)
    if batch.q_len is None:
        grid = (row_blocks, num_kv_heads, batch.count)
    else:
        grid = (batch.count * row_blocks, num_kv_heads, splits)
    block_dim = max(16, triton.next_power_of_2(dim))
    places = (batch.slots, batch.extents, batch.qo_indptr if batch.q_len is None else None, batch.mask)
    merged = (None, None) if merge is None else (merge.out, merge.tickets)
    factor = _LOG2_E * (1 / sqrt(key_dim) if scale is None else scale)
    strides = (*q.stride()[:2], *k.stride()[:2], batch.slots.stride(0))
    all_splits = 1 if lse is None else lse.shape[2]
    sizes = (batch.page_size, batch.q_len or 0, row_blocks, int(batch.causal), all_splits, first_split)
    block_splits = 1 if merge is None else triton.next_power_of_2(all_splits)
    at_once = max(1, min(4, 8192 // (tile.rows * block_dim)))
    tiles = (group, dim, part, block_dim, tile.rows, tile.keys, block_splits, at_once, batch.page_size > 0)
    tensors = (q, k, v, out, lse, *places, batch.mask_indptr, batch.num_splits, *merged)
    warps = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    _paged_attention[grid](*tensors, factor, *strides, *sizes, *tiles, **warps)


_NEVER_ALIGNED = ["slots", "extents", "queries", "mask", "mask_starts", "split_counts"]  # slices of static buffers
_NEVER_SPECIAL = ["slots_stride", "page_size", "q_len", "row_blocks", "causal", "all_splits", "first_split"]


@triton.jit(do_not_specialize=_NEVER_SPECIAL, do_not_specialize_on_alignment=_NEVER_ALIGNED)
def _paged_attention(
    q,
    k,
    v,
    out,
    lse,
    slots,
    extents,
    queries,
    mask,
    mask_starts,
    split_counts,
    merged,
    tickets,
    scale,  # includes log2(e): the softmax is in powers of two
    q_stride,
    q_head_stride,
    slot_stride,
    kv_head_stride,
    slots_stride,
    page_size,
    q_len,
    row_blocks,
    causal,
    all_splits,
    first_split,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    PAGED: tl.constexpr,
):
    """Grid: (B × row blocks, kv heads, splits); for a prefill (``queries`` given) (row blocks, kv heads, B).

    PART: how many columns of keys come after those that are values, too; 0 where values are in a cache of their own.
    """
    kv_head = tl.program_id(1)
    num_heads = tl.num_programs(1) * GROUP
    if queries is not None:
        sequence = tl.program_id(2)
        block = tl.num_programs(0) - 1 - tl.program_id(0)  # the last rows see the most keys: they start first
        split = 0
        used_splits = 1
        first_row = tl.load(queries + sequence).to(tl.int32)
        q_len = tl.load(queries + sequence + 1).to(tl.int32) - first_row
    else:
        sequence = tl.program_id(0) // row_blocks
        block = tl.program_id(0) % row_blocks
        split = tl.program_id(2)
        used_splits = tl.num_programs(2)
        if split_counts is not None:
            used_splits = tl.minimum(tl.maximum(tl.load(split_counts + sequence), 1), used_splits)
        first_row = sequence * q_len
    num_rows = q_len * GROUP
    if block * BLOCK_ROWS >= num_rows:
        return

    if PAGED:
        start = sequence.to(tl.int64) * slots_stride
        length = tl.load(extents + sequence).to(tl.int32)
    else:
        start = tl.load(extents + sequence).to(tl.int64)
        length = (tl.load(extents + sequence + 1).to(tl.int64) - start).to(tl.int32)
    length = tl.maximum(length, 0)
    share = (length + used_splits - 1) // used_splits
    share = tl.maximum((share + BLOCK_KEYS - 1) // BLOCK_KEYS, 1) * BLOCK_KEYS
    used_splits = tl.maximum((length + share - 1) // share, 1)  # those with keys, and always one
    if merged is not None and split >= used_splits:
        return

    row = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    query = row // GROUP
    head = kv_head * GROUP + row % GROUP
    real = row < num_rows
    dim = tl.arange(0, BLOCK_DIM)
    q_at = (first_row + query).to(tl.int64) * q_stride + head * q_head_stride
    q_mask = real[:, None] & (dim < DIM)[None, :]
    q_tile = tl.load(q + q_at[:, None] + dim[None, :], mask=q_mask, other=0.0).to(k.dtype.element_ty)

    if PART > 0:
        part = DIM + tl.arange(0, PART)
        q_part = tl.load(q + q_at[:, None] + part[None, :], mask=real[:, None], other=0.0).to(k.dtype.element_ty)

    visible = length - (q_len - 1 - query) * causal  # how many of the first keys each row sees
    low = split * share
    high = tl.minimum(low + share, length)
    if mask is None:
        last_query = (tl.minimum((block + 1) * BLOCK_ROWS, num_rows) - 1) // GROUP
        high = tl.minimum(high, length - (q_len - 1 - last_query) * causal)
    else:
        mask_at = tl.load(mask_starts + sequence).to(tl.int64) + query.to(tl.int64) * length

    largest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    result = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    k_head = k + kv_head * kv_head_stride
    v_head = v + kv_head * kv_head_stride
    for begin in range(low, high, BLOCK_KEYS):
        position = begin + tl.arange(0, BLOCK_KEYS)
        inside = position < high
        if PAGED:
            page = tl.load(slots + start + position // page_size, mask=inside, other=0).to(tl.int64)
            slot = page * page_size + position % page_size
        else:
            slot = tl.load(slots + start + position, mask=inside, other=0).to(tl.int64)
        at = slot * slot_stride
        if mask is None:
            seen = position[None, :] < tl.minimum(visible, high)[:, None]
        else:
            seen = inside[None, :] & real[:, None]
            seen = tl.load(mask + mask_at[:, None] + position[None, :], mask=seen, other=0) != 0
        # what is not inside is neither read nor weighed: 0 × NaN would be NaN
        if PART > 0:  # a tile that lies as values do is fetched ahead for both products; one that lies as keys is not
            values = tl.load(k_head + at[:, None] + dim[None, :], mask=inside[:, None], other=0.0)
            key_part = tl.load(k_head + at[:, None] + part[None, :], mask=inside[:, None], other=0.0)
            scores = tl.dot(q_tile, tl.trans(values), input_precision="ieee")
            scores = tl.dot(q_part, tl.trans(key_part), scores, input_precision="ieee")
        else:
            keys = tl.load(k_head + at[None, :] + dim[:, None], mask=inside[None, :] & (dim < DIM)[:, None], other=0.0)
            scores = tl.dot(q_tile, keys, input_precision="ieee")
        scores = scores * scale
        scores = tl.where(seen, scores, float("-inf"))
        # a row that has seen nothing yet subtracts 0: -inf - -inf would be NaN. NaN scores stay NaN.
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        offset = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - offset[:, None])
        shrink = tl.exp2(largest - offset)
        total = total * shrink + tl.sum(weights, 1)
        result = result * shrink[:, None]
        if PART == 0:
            v_mask = inside[:, None] & (dim < DIM)[None, :]
            values = tl.load(v_head + at[:, None] + dim[None, :], mask=v_mask, other=0.0)
        result = tl.dot(weights.to(values.dtype), values, result, input_precision="ieee")
        largest = new_largest

    divisor = tl.where(total == 0.0, 1.0, total)
    out_row = (first_row + query).to(tl.int64) * num_heads + head
    if merged is not None and first_split + used_splits == 1:
        alone = (result / divisor[:, None]).to(merged.dtype.element_ty)
        tl.store(merged + out_row[:, None] * DIM + dim[None, :], alone, mask=q_mask)
        return
    cell = out_row * all_splits + first_split + split
    if lse is not None:
        # largest is in powers of two; 0.693... is ln 2
        tl.store(lse + cell, (largest + tl.log2(divisor)) * 0.6931471805599453, mask=real)
        q_mask = q_mask & (total != 0.0)[:, None]
    result = (result / divisor[:, None]).to(out.dtype.element_ty)
    tl.store(out + cell[:, None] * DIM + dim[None, :], result, mask=q_mask)
    if merged is not None:
        merge_if_last(
            out,
            lse,
            merged,
            tickets + tl.program_id(0) * tl.num_programs(1) + kv_head,
            used_splits,
            out_row,
            real,
            first_split + used_splits,
            all_splits,
            DIM,
            BLOCK_ROWS,
            BLOCK_DIM,
            BLOCK_SPLITS,
            AT_ONCE,
        )
