"""sgl-kernel on a CPU: the tree kernels that EAGLE's path uses, by our engine's torch kernels, with the arguments of
those that they replace, each of which is read; everything else is refused by name once it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdebug.engine.kernels.accept import walk_greedy, walk_sampling
from specdebug.engine.kernels.trees import build_tree
from specdebug.targets.sglang.inside.attention import merge_state_v2
from specdebug.targets.sglang.inside.launches import refusal, refusing

FULL_MASK, QLEN_ONLY = 0, 1


def build_tree_kernel_efficient(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Link the chosen candidates of each request; all tensors but the first three are written. ``tree_mask``: bool, a
    row of context and tree for each node, request after request, or of the tree alone. Raises NotImplementedError for a
    mask of packed bits."""
    mode, nodes = int(tree_mask_mode), draft_token_num
    if mode not in (FULL_MASK, QLEN_ONLY):
        raise refusal("build_tree_kernel_efficient", f"mask of mode {mode}")
    lengths = verified_seq_len.tolist()
    batch = len(lengths)
    links = build_tree(parent_list.reshape(batch, -1), selected_index.reshape(batch, nodes - 1), topk)
    retrive_index.copy_(torch.arange(batch * nodes).view(batch, nodes))
    retrive_next_token.copy_(links.next_token)
    retrive_next_sibling.copy_(links.next_sibling)
    positions[: batch * nodes] = (links.depth + verified_seq_len.unsqueeze(1)).flatten()
    start = 0
    for request, length in enumerate(lengths):
        context = length if mode == FULL_MASK else 0
        rows = tree_mask[start : start + nodes * (context + nodes)].view(nodes, context + nodes)
        rows[:, context:] = links.mask[request]
        start += nodes * (context + nodes)


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Links of trees of which only the masks are known, [batch_size, nodes, nodes] in some form: a node's row has its
    ancestors, of which the last is its parent. The four tensors after the lengths are written."""
    nodes = draft_token_num
    above = tree_mask.reshape(batch_size, nodes, nodes).bool().tril(-1)
    places = torch.arange(nodes)
    positions[: batch_size * nodes] = (above.sum(-1) + verified_seq_len.unsqueeze(1)).flatten()
    retrive_index.copy_(torch.arange(batch_size * nodes).view(batch_size, nodes))
    parent = torch.where(above, places, -1).amax(-1)
    later = places > places.unsqueeze(1)  # [node, later node]

    def first(wanted: Tensor) -> Tensor:
        least = torch.where(wanted, places, nodes).amin(-1)
        return torch.where(least < nodes, least, -1)

    siblings = (parent.unsqueeze(1) == parent.unsqueeze(2)) & later & (parent >= 0).unsqueeze(2)
    retrive_next_token.copy_(first(parent.unsqueeze(1) == places.unsqueeze(1)))
    retrive_next_sibling.copy_(first(siblings))


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Accept the path that the target wants; the first three are written, of ``predicts`` only what is emitted.
    ``target_predict``: a token for each place."""
    steps = accept_index.shape[1] - 1
    wanted = target_predict.reshape(-1)[retrive_index.reshape(-1).long()].view(candidates.shape)
    walked = walk_greedy(candidates, retrive_next_token, retrive_next_sibling, wanted, steps)
    _write(walked, retrive_index, predicts, accept_index, accept_token_num)


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accept drafts by the target's probabilities [batch, nodes, vocabulary]; the first three are written. A request's
    coins are one a node; a step's is that of the node it stands at. Our walk takes one a step, so each step is given
    the coin of its number, which has the same odds. Raises NotImplementedError for drafts that have probabilities of
    their own."""
    if bool(draft_probs.any()):
        raise refusal("tree_speculative_sampling_target_only", "draft_probs that are not 0")
    steps = accept_index.shape[1] - 1
    coins = torch.cat((uniform_samples[:, : steps + 1], uniform_samples_for_final_sampling.unsqueeze(1)), 1)
    short = steps + 2 - coins.shape[1]
    if short > 0:  # fewer nodes than steps: what is missing is never asked for
        coins = torch.cat((coins[:, :-1], coins.new_zeros(coins.shape[0], short), coins[:, -1:]), 1)
    walked = walk_sampling(
        candidates, retrive_next_token, retrive_next_sibling, target_probs, coins, steps,
        min(threshold_single, 1.0), max(threshold_acc, 1e-9),
    )  # fmt: skip
    _write(walked, retrive_index, predicts, accept_index, accept_token_num)


def top_k_renorm_prob(probs: Tensor, top_ks: Any) -> Tensor:
    """Probabilities [n, vocabulary] with those below the k-th gone, ties kept, and the rest summing to 1 again."""
    ks = torch.as_tensor(top_ks).reshape(-1, 1).expand(probs.shape[0], 1).long().clamp(1, probs.shape[-1])
    least = probs.sort(-1, descending=True).values.gather(-1, ks - 1)
    kept = probs.masked_fill(probs < least, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_renorm_prob(probs: Tensor, top_ps: Any) -> Tensor:
    """Probabilities [n, vocabulary] of the fewest tokens that hold so much, summing to 1 again."""
    ps = torch.as_tensor(top_ps).reshape(-1, 1).expand(probs.shape[0], 1)
    ordered, order = probs.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(probs).scatter(-1, order, ordered.masked_fill(before >= ps, 0.0))
    return kept / kept.sum(-1, keepdim=True)


def murmur_hash32(seed: Tensor, positions: Tensor, col_indices: Tensor) -> Tensor:
    """uint32 [n, m]: MurmurHash3 of seeds [n] of 64 bits, positions [n] and columns [m] of 32, the low word first."""
    word, wide = 0xFFFFFFFF, np.uint64
    seeds = seed.to(torch.int64).numpy().astype(wide)[:, None]
    columns = col_indices.to(torch.int64).numpy().astype(wide)[None, :]
    places = positions.to(torch.int64).numpy().astype(wide)[:, None]

    def turned(value: Any, by: int) -> Any:
        return ((value << wide(by)) | (value >> wide(32 - by))) & wide(word)

    mixed = np.zeros((len(seeds), columns.shape[1]), dtype=wide)
    for block in (seeds & wide(word), seeds >> wide(32), places & wide(word), columns & wide(word)):
        scrambled = turned((block * wide(0xCC9E2D51)) & wide(word), 15) * wide(0x1B873593) & wide(word)
        mixed = (turned(mixed ^ scrambled, 13) * wide(5) + wide(0xE6546B64)) & wide(word)
    mixed ^= wide(16)  # bytes that were hashed
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = ((mixed ^ (mixed >> wide(shift))) * wide(factor)) & wide(word)
    return torch.from_numpy((mixed ^ (mixed >> wide(16))).astype(np.uint32))


def _write(
    walked: tuple[Tensor, Tensor, Tensor], retrive_index: Tensor, predicts: Tensor, accept_index: Tensor, count: Tensor
) -> None:
    predict, path, correct = walked
    nodes, places = path[path >= 0].long(), retrive_index.reshape(-1).long()
    predicts.view(-1)[places[nodes]] = predict[nodes].to(predicts.dtype)
    accept_index.copy_(torch.where(path >= 0, places[path.clamp(min=0).long()], -1))
    count.copy_(correct)


__version__ = "0.4.3"
__all__ = [
    "build_tree_kernel_efficient",
    "merge_state_v2",
    "reconstruct_indices_from_tree_mask",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
]


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)
    return refusing(name)
