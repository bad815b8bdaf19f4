"""The products of tokens with the experts that they chose, limited by reading those experts' weights once.

A program takes some outputs of one expert for up to 64 of its tokens. Of few tokens it finds those that chose it
by itself, so nothing is sorted; more are sorted by their experts first. Either way grids follow from shapes alone, and
programs that are not needed end at once. Weights are the left operand, as in skinny_gemm.py. Each pair of a token and a
place in its choice has a row of its own between the products, and a third launch adds these up in the order of places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROWS = 64
"""Tokens that one program takes, and the most that are not sorted."""

_COLUMNS = 64
_SUM_BLOCK = 256


@dataclass(frozen=True)
class _Pairs:
    """How pairs (token, place) are shared out: by expert, or ``by_pair``, where the first of an expert works for all.

    order int64 [n * k] and starts int64 [E + 1]: the pairs sorted by expert, and where each expert's begin; None where
    programs search.
    """

    chosen: Tensor
    order: Tensor | None
    starts: Tensor | None
    by_pair: bool
    experts: int
    rows: int

    @property
    def grid(self) -> tuple[int, int]:
        """Pairs or experts, and the blocks of tokens that one expert may have."""
        tokens = self.chosen.shape[0]
        return (self.chosen.numel() if self.by_pair else self.experts), triton.cdiv(tokens, self.rows)


@triton.jit
def _pairs_of(
    chosen,
    order,
    starts,
    tokens,
    PER_TOKEN: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BY_PAIR: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The program's expert and its pairs, int64 [ROWS], -1 where there is none."""
    number = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    if order is not None:
        expert = number
        first = tl.load(starts + expert)
        live = row < tl.load(starts + expert + 1) - first
        pairs = tl.load(order + first + row, mask=live, other=-1)
    else:
        expert = tl.load(chosen + number).to(tl.int32) if BY_PAIR else number
        place = tl.arange(0, BLOCK_PLACES)
        inside = (row < tokens)[:, None] & (place < PER_TOKEN)[None, :]
        choice = tl.load(chosen + row[:, None] * PER_TOKEN + place[None, :], mask=inside, other=-1)
        found = tl.max(tl.where(choice == expert, row[:, None] * PER_TOKEN + place[None, :], -1), 1)
        pairs = found.to(tl.int64)
        if BY_PAIR:  # of the pairs with one expert the first does the work
            first_pair = tl.min(tl.where(found < 0, tokens * PER_TOKEN, found), 0)
            pairs = tl.where(first_pair == number, pairs, -1)
    return expert, pairs


@triton.jit(do_not_specialize=["tokens"])
def _gated(
    x,
    weights,
    chosen,
    order,
    starts,
    out,
    tokens,
    inner,
    depth,
    x_stride,
    expert_stride,
    weight_stride,
    PER_TOKEN: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BY_PAIR: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Grid: (blocks of columns, pairs or experts, blocks of tokens)."""
    expert, pairs = _pairs_of(chosen, order, starts, tokens, PER_TOKEN, BLOCK_PLACES, BY_PAIR, ROWS)
    if tl.max(pairs, 0) < 0:
        return
    live_row = (pairs >= 0)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    live_column = (column < inner)[:, None]
    k = tl.arange(0, DEPTH)
    x_cells = x + (pairs // PER_TOKEN)[:, None] * x_stride + k[None, :]
    begins = expert.to(tl.int64) * expert_stride + column.to(tl.int64) * weight_stride
    gate_cells = weights + begins[:, None] + k[None, :]
    up_cells = gate_cells + inner.to(tl.int64) * weight_stride
    gate = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    up = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for start in range(0, depth, DEPTH):
        inside = (start + k < depth)[None, :]
        rows = tl.trans(tl.load(x_cells, mask=live_row & inside, other=0.0))
        gates = tl.load(gate_cells, mask=live_column & inside, other=0.0, eviction_policy="evict_first")
        ups = tl.load(up_cells, mask=live_column & inside, other=0.0, eviction_policy="evict_first")
        gate = tl.dot(gates, rows, gate, input_precision="ieee")
        up = tl.dot(ups, rows, up, input_precision="ieee")
        x_cells += DEPTH
        gate_cells += DEPTH
        up_cells += DEPTH
    # rounded where separate operations round, as in activation.py
    dtype = out.dtype.element_ty
    gate = gate.to(dtype).to(tl.float32)
    activated = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32) * up.to(dtype).to(tl.float32)
    live = live_column & (pairs >= 0)[None, :]
    tl.store(out + pairs[None, :] * inner + column[:, None], activated.to(dtype), mask=live)


@triton.jit(do_not_specialize=["tokens"])
def _down(
    inner,
    weights,
    chosen,
    order,
    starts,
    out,
    tokens,
    width,
    depth,
    expert_stride,
    weight_stride,
    PER_TOKEN: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BY_PAIR: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Grid: as that of ``_gated``."""
    expert, pairs = _pairs_of(chosen, order, starts, tokens, PER_TOKEN, BLOCK_PLACES, BY_PAIR, ROWS)
    if tl.max(pairs, 0) < 0:
        return
    live_row = (pairs >= 0)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    live_column = (column < width)[:, None]
    k = tl.arange(0, DEPTH)
    inner_cells = inner + pairs[:, None] * depth + k[None, :]
    begins = expert.to(tl.int64) * expert_stride + column.to(tl.int64) * weight_stride
    weight_cells = weights + begins[:, None] + k[None, :]
    total = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for start in range(0, depth, DEPTH):
        inside = (start + k < depth)[None, :]
        rows = tl.trans(tl.load(inner_cells, mask=live_row & inside, other=0.0))
        weight = tl.load(weight_cells, mask=live_column & inside, other=0.0, eviction_policy="evict_first")
        total = tl.dot(weight, rows, total, input_precision="ieee")
        inner_cells += DEPTH
        weight_cells += DEPTH
    tl.store(out + pairs[None, :] * width + column[:, None], total, mask=live_column & (pairs >= 0)[None, :])


@triton.jit
def _add_weighted(x, parts, factors, width, x_stride, PER_TOKEN: tl.constexpr, BLOCK: tl.constexpr):
    """Grid: (n, blocks of columns)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    cells = x + token * x_stride + column
    total = tl.load(cells, mask=live, other=0.0).to(tl.float32)
    for place in tl.static_range(PER_TOKEN):
        pair = token * PER_TOKEN + place
        total += tl.load(parts + pair * width + column, mask=live, other=0.0) * tl.load(factors + pair)
    tl.store(cells, total.to(x.dtype.element_ty), mask=live)


def add_experts(x: Tensor, normed: Tensor, gate_up: Tensor, down: Tensor, chosen: Tensor, factors: Tensor) -> Tensor:
    """Add to x [n, H], in place, the experts' results for normed [n, H], times ``factors`` float32 [n, k].

    gate_up [E, H, 2*I] and down [E, I, H], inputs adjacent (storage [E, out, in]), of x's dtype: bf16, fp16 or fp32.
    chosen int64 [n, k], different ones for a token, unchecked. Sums are in float32, in the order of the places. Raises
    ValueError for another layout.
    """
    if not all(tensor.stride(1) == 1 for tensor in (x, normed, gate_up, down)):
        raise ValueError("add_experts: elements of a row, and the inputs of a weight, must be adjacent")
    if not (chosen.is_contiguous() and factors.is_contiguous()):
        raise ValueError("add_experts: chosen and factors must be contiguous")
    tokens, per_token = chosen.shape
    if tokens == 0:
        return x
    width, inner = x.shape[1], down.shape[1]
    between = torch.empty((tokens * per_token, inner), dtype=x.dtype, device=x.device)
    parts = torch.empty((tokens * per_token, width), dtype=torch.float32, device=x.device)
    pairs = _share_out(chosen, gate_up.shape[0])
    shapes = {
        "PER_TOKEN": per_token,
        "BLOCK_PLACES": triton.next_power_of_2(per_token),
        "BY_PAIR": pairs.by_pair,
        "ROWS": pairs.rows,
        "COLUMNS": _COLUMNS,
        "DEPTH": 128 if pairs.rows == 16 and x.element_size() == 2 else 64,
        "num_warps": 4,
        "num_stages": 3,
    }
    _gated[(triton.cdiv(inner, _COLUMNS), *pairs.grid)](
        normed,
        gate_up,
        chosen,
        pairs.order,
        pairs.starts,
        between,
        tokens,
        inner,
        width,
        normed.stride(0),
        gate_up.stride(0),
        gate_up.stride(2),
        **shapes,
    )
    _down[(triton.cdiv(width, _COLUMNS), *pairs.grid)](
        between,
        down,
        chosen,
        pairs.order,
        pairs.starts,
        parts,
        tokens,
        width,
        inner,
        down.stride(0),
        down.stride(2),
        **shapes,
    )
    grid = (tokens, triton.cdiv(width, _SUM_BLOCK))
    _add_weighted[grid](x, parts, factors, width, x.stride(0), PER_TOKEN=per_token, BLOCK=_SUM_BLOCK, num_warps=2)
    return x


def _share_out(chosen: Tensor, experts: int) -> _Pairs:
    tokens = chosen.shape[0]
    if tokens <= MAX_ROWS:
        rows = max(16, triton.next_power_of_2(tokens))
        return _Pairs(chosen, None, None, chosen.numel() < experts, experts, rows)
    by_expert, order = chosen.flatten().sort(stable=True)
    starts = torch.searchsorted(by_expert, torch.arange(experts + 1, device=chosen.device))
    return _Pairs(chosen, order, starts, False, experts, MAX_ROWS)
