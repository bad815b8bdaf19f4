"""The distribution that a sampled token is drawn from: softmax under a temperature, cut by top-k, then by top-p, then
by min-p, the least part of the likeliest token's probability.

Top-p is of what top-k leaves. Some samplers cut by both at once (``joint``, as FlashInfer's ``filter_apply_order`` has
it): top-p is of the whole distribution then, and leaves more.
"""

import torch
from torch import Tensor


def kept_probs(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float = 0.0, *, joint: bool = False
) -> tuple[Tensor, Tensor]:
    """float64 probabilities of logits [.., V], the likeliest first, and their tokens. Equals of the last kept are
    kept."""
    ordered, tokens = logits.sort(-1, descending=True)
    probs = whole = torch.softmax(ordered.double() / temperature, -1)
    if 0 < top_k < probs.shape[-1]:
        probs = _only(probs, ordered >= ordered[..., top_k - 1 : top_k])
    if top_p < 1:
        of = whole if joint else probs
        fewest = (of.cumsum(-1) - of < top_p).sum(-1, keepdim=True)
        probs = _only(probs, ordered >= ordered.gather(-1, fewest - 1))
    if min_p > 0:
        probs = _only(probs, probs >= min_p * probs[..., :1])
    return probs, tokens


def may_be_kept(
    logits: Tensor,
    tokens: Tensor,
    margins: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float = 0.0,
    *,
    joint: bool = False,
) -> Tensor:
    """True for each of ``tokens`` [N] that top-k, top-p and min-p keep of logits [N, V], or would keep if rounding had
    moved any two logits towards or from each other by no more than ``margins`` [N]."""
    margin = margins[:, None]
    above = logits > logits.gather(-1, tokens[:, None]) + margin
    kept = torch.ones(len(tokens), dtype=torch.bool)
    probs = torch.softmax(logits.double() / temperature, -1)
    if 0 < top_k < logits.shape[-1]:
        kept &= above.sum(-1) < top_k
        if not joint:
            probs = _only(probs, logits >= logits.topk(top_k, -1).values[:, -1:] - margin)
    if top_p < 1:
        before = torch.where(above, probs, 0.0).sum(-1)
        moved = before * torch.exp(-margins.double() / temperature)
        kept &= moved / (moved + 1 - before) < top_p + 1e-5  # float32 sums are off by as much
    if min_p > 0:
        least = torch.log(torch.tensor(min_p)) * temperature
        kept &= logits.gather(-1, tokens[:, None])[:, 0] >= logits.amax(-1) + least - margins
    return kept


def _only(probs: Tensor, kept: Tensor) -> Tensor:
    left = torch.where(kept, probs, 0.0)
    return left / left.sum(-1, keepdim=True)
