"""Which experts a token goes to, in two launches: the router's product, and the choice by groups with its weights.

The rule is that of ``RoutedExperts.route``, computed in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.model.deepseek_config import ExpertsConfig

_EXPERTS_AT_ONCE = 4
_DEPTH = 2048


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
    """Choose experts for normed [n, H]: int64 [n, k + S], and the factors of their results, float32 [n, k + S].

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
    depth = min(_DEPTH, triton.next_power_of_2(normed.shape[1]))
    _router_logits[(rows, triton.cdiv(config.count, _EXPERTS_AT_ONCE))](
        normed,
        router,
        logits,
        config.count,
        normed.shape[1],
        normed.stride(0),
        router.stride(1),
        EXPERTS=_EXPERTS_AT_ONCE,
        DEPTH=depth,
        num_warps=8,
    )
    size = config.count // config.groups
    _choose[(rows,)](
        logits,
        bias,
        chosen,
        factors,
        config.count,
        config.scaling_factor,
        GROUPS=config.groups,
        GROUP_SIZE=size,
        OPEN_GROUPS=config.groups_per_token,
        PER_TOKEN=config.per_token,
        SHARED=config.shared,
        NORM=config.norm_weights,
        BLOCK_GROUPS=triton.next_power_of_2(config.groups),
        BLOCK_SIZE=triton.next_power_of_2(size),
        BLOCK_PLACES=triton.next_power_of_2(places),
        num_warps=1,
    )
    return chosen, factors
