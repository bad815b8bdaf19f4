"""Routed experts: which a token goes to, and its products with them, limited by reading those experts' weights once.

A program of a product takes some outputs of one expert for up to 64 of its tokens. Of few tokens it finds those that
chose it by itself, so nothing is sorted; more are sorted by their experts first. Either way grids follow from shapes
alone, and programs that are not needed end at once. Each pair of a token and a place in its choice has a row of its own
between the products, and a last launch adds these up in the order of places.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.model.deepseek_config import ExpertsConfig

MAX_ROWS = 64
"""Tokens that one program takes, and the most that are not sorted."""

_EXPERTS_AT_ONCE = 4
_DEPTH = 2048
_COLUMNS = 64
_SUM_BLOCK = 256


@triton.jit
def _router_logits(x, router, out, count, depth, x_stride, router_stride, EXPERTS: tl.constexpr, DEPTH: tl.constexpr):
    """Grid: (n, blocks of experts)."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.program_id(1) * EXPERTS + tl.arange(0, EXPERTS)
    total = tl.zeros((EXPERTS,), dtype=tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        tokens = tl.load(x + token * x_stride + k, mask=k < depth, other=0.0).to(tl.float32)
        inside = (expert < count)[:, None] & (k < depth)[None, :]
        weights = tl.load(router + expert[:, None] * router_stride + k[None, :], mask=inside, other=0.0)
        total += tl.sum(weights * tokens[None, :], 1)
    tl.store(out + token * count + expert, total, mask=expert < count)


@triton.jit
def _choose(
    logits,
    bias,
    chosen,
    factors,
    count,
    scaling,
    GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    OPEN_GROUPS: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    SHARED: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
):
    """Grid: (n,). A tile has a row for each group."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, BLOCK_GROUPS)
    member = tl.arange(0, BLOCK_SIZE)
    expert = group[:, None] * GROUP_SIZE + member[None, :]
    inside = (group < GROUPS)[:, None] & (member < GROUP_SIZE)[None, :]
    scores = tl.sigmoid(tl.load(logits + token * count + expert, mask=inside, other=0.0))
    ranked = scores + tl.load(bias + expert, mask=inside, other=0.0)
    ranked = tl.where(inside, ranked, float("-inf"))

    best = tl.max(ranked, 1)
    others = tl.where(member[None, :] == tl.argmax(ranked, 1)[:, None], float("-inf"), ranked)
    left = tl.where(group < GROUPS, best + tl.max(others, 1), float("-inf"))
    opened = tl.zeros((BLOCK_GROUPS,), dtype=tl.int32)
    for _ in tl.static_range(OPEN_GROUPS):
        taken = group == tl.argmax(left, 0)
        opened = tl.where(taken, 1, opened)
        left = tl.where(taken, float("-inf"), left)

    flat = tl.reshape(tl.where((opened != 0)[:, None], ranked, float("-inf")), (BLOCK_GROUPS * BLOCK_SIZE,))
    weights = tl.reshape(scores, (BLOCK_GROUPS * BLOCK_SIZE,))
    cell = tl.arange(0, BLOCK_GROUPS * BLOCK_SIZE)
    place = tl.arange(0, BLOCK_PLACES)
    # the experts that every token has follow the routed ones, in number and in place
    choice = place - PER_TOKEN + count
    factor = tl.zeros((BLOCK_PLACES,), dtype=tl.float32)
    for number in tl.static_range(PER_TOKEN):
        at = tl.argmax(flat, 0)
        found = (at // BLOCK_SIZE) * GROUP_SIZE + at % BLOCK_SIZE
        # scores of NaN have no order: whatever is found is an expert
        choice = tl.where(place == number, tl.minimum(found, count - 1), choice)
        factor = tl.where(place == number, tl.sum(tl.where(cell == at, weights, 0.0), 0), factor)
        flat = tl.where(cell == at, float("-inf"), flat)
    if NORM:
        factor = factor / (tl.sum(factor, 0) + 1e-20)
    factor = tl.where(place < PER_TOKEN, factor * scaling, 1.0)
    target = token * (PER_TOKEN + SHARED) + place
    live = place < PER_TOKEN + SHARED
    tl.store(chosen + target, choice.to(tl.int64), mask=live)
    tl.store(factors + target, factor, mask=live)


def route(normed: Tensor, router: Tensor, bias: Tensor, config: ExpertsConfig) -> tuple[Tensor, Tensor]:
    """Choose experts for normed [n, H] as ``RoutedExperts.route`` does, in float32: int64 [n, k + S], and the factors
    of their results, float32 [n, k + S].

    router [H, E], inputs adjacent, and bias [E] in float32. The last S columns are the experts E .. E+S-1 that every
    token has, with factor 1. Raises ValueError for another layout.
    """
    if normed.stride(1) != 1 or router.stride(0) != 1 or not bias.is_contiguous():
        raise ValueError("route: elements of a row and the router's inputs must be adjacent, the bias contiguous")
    rows, places = normed.shape[0], config.per_token + config.shared
    chosen = torch.empty((rows, places), dtype=torch.int64, device=normed.device)
    factors = torch.empty((rows, places), dtype=torch.float32, device=normed.device)
    if rows == 0:
        return chosen, factors
    logits = torch.empty((rows, config.count), dtype=torch.float32, device=normed.device)
    shape = (config.count, normed.shape[1], normed.stride(0), router.stride(1))
    tile = {"EXPERTS": _EXPERTS_AT_ONCE, "DEPTH": min(_DEPTH, triton.next_power_of_2(normed.shape[1])), "num_warps": 8}
    _router_logits[(rows, triton.cdiv(config.count, _EXPERTS_AT_ONCE))](normed, router, logits, *shape, **tile)
    size = config.count // config.groups
    groups = (config.groups, size, config.groups_per_token, config.per_token, config.shared, config.norm_weights)
    blocks = [triton.next_power_of_2(each) for each in (config.groups, size, places)]
    tensors = (logits, bias, chosen, factors)
    _choose[(rows,)](*tensors, config.count, config.scaling_factor, *groups, *blocks, num_warps=1)
    return chosen, factors


@triton.jit(do_not_specialize=["tokens"])
def _multiply(
    x,
    weights,
    chosen,
    order,
    starts,
    out,
    tokens,
    width,
    depth,
    x_stride,
    expert_stride,
    weight_stride,
    GATED: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BY_PAIR: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Write the product of each pair's row with its expert's weights; GATED: the row is its token's, and SiLU of
    outputs [0, width) is multiplied by outputs [width, 2 * width). Grid: (blocks of columns, pairs or experts, blocks
    of tokens)."""
    number = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    # the program's expert and its pairs, int64 [ROWS], -1 where there is none
    if order is not None:
        expert = number
        first = tl.load(starts + expert)
        live = row < tl.load(starts + expert + 1) - first
        pairs = tl.load(order + first + row, mask=live, other=-1)
    else:
        expert = tl.load(chosen + number).to(tl.int32) if BY_PAIR else number
        place = tl.arange(0, BLOCK_PLACES)
        pair = row[:, None] * PER_TOKEN + place[None, :]
        choice = tl.load(chosen + pair, mask=(row < tokens)[:, None] & (place < PER_TOKEN)[None, :], other=-1)
        found = tl.max(tl.where(choice == expert, pair, -1), 1)
        pairs = found.to(tl.int64)
        if BY_PAIR:  # of the pairs with one expert the first does the work
            first_pair = tl.min(tl.where(found < 0, tokens * PER_TOKEN, found), 0)
            pairs = tl.where(first_pair == number, pairs, -1)
    if tl.max(pairs, 0) < 0:
        return
    live_row = (pairs >= 0)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    live_column = (column < width)[:, None]
    k = tl.arange(0, DEPTH)
    source = pairs // PER_TOKEN if GATED else pairs
    x_cells = x + source[:, None] * x_stride + k[None, :]
    begins = expert.to(tl.int64) * expert_stride + column.to(tl.int64) * weight_stride
    cells = weights + begins[:, None] + k[None, :]
    total = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    if GATED:
        up_cells = cells + width.to(tl.int64) * weight_stride
        up = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for start in range(0, depth, DEPTH):
        inside = (start + k < depth)[None, :]
        rows = tl.trans(tl.load(x_cells, mask=live_row & inside, other=0.0))
        weight = tl.load(cells, mask=live_column & inside, other=0.0, eviction_policy="evict_first")
        if GATED:
            ups = tl.load(up_cells, mask=live_column & inside, other=0.0, eviction_policy="evict_first")
            up = tl.dot(ups, rows, up, input_precision="ieee")
            up_cells += DEPTH
        total = tl.dot(weight, rows, total, input_precision="ieee")
        x_cells += DEPTH
        cells += DEPTH
    if GATED:  # rounded where separate operations round, as in ``layers.silu_mul``
        dtype = out.dtype.element_ty
        gate = total.to(dtype).to(tl.float32)
        total = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32) * up.to(dtype).to(tl.float32)
    target = out + pairs[None, :] * width + column[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=live_column & (pairs >= 0)[None, :])


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
    experts, order, starts, by_pair = gate_up.shape[0], None, None, False
    if tokens <= MAX_ROWS:
        rows = max(16, triton.next_power_of_2(tokens))
        by_pair = chosen.numel() < experts  # a program for each pair, of which the first of an expert works for all
    else:
        rows = MAX_ROWS
        by_expert, order = chosen.flatten().sort(stable=True)
        starts = torch.searchsorted(by_expert, torch.arange(experts + 1, device=chosen.device))
    depth = 128 if rows == 16 and x.element_size() == 2 else 64
    sizes = (per_token, triton.next_power_of_2(per_token), by_pair, rows, _COLUMNS, depth)
    shares = (chosen.numel() if by_pair else experts, triton.cdiv(tokens, rows))
    for gated, source, weights, out in ((True, normed, gate_up, between), (False, between, down, parts)):
        tensors = (source, weights, chosen, order, starts, out)
        shape = (tokens, out.shape[1], source.shape[1], source.stride(0), weights.stride(0), weights.stride(2))
        grid = (triton.cdiv(out.shape[1], _COLUMNS), *shares)
        _multiply[grid](*tensors, *shape, gated, *sizes, num_warps=4, num_stages=3)
    blocks = (tokens, triton.cdiv(width, _SUM_BLOCK))
    _add_weighted[blocks](x, parts, factors, width, x.stride(0), PER_TOKEN=per_token, BLOCK=_SUM_BLOCK, num_warps=2)
    return x
