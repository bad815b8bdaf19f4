"""One table, without torch, says of each probe's site whose the rows of its tensor are, and what its values mean. Where
the probe is called with slots of a pool, they are the rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Rows = Literal[
    "request", "branches", "nodes", "extended", "tokens", "written", "even", "sampled", "untold", "positions"
]
"""The owners of rows, which come in the order of the batch:

request: one row each. branches: K each, as the draft loop has them. nodes: T each, as the tree has them.
extended: T + N - 1 each, as N next-n layers extend them. tokens: one for each token of a prompt chunk. written: one for
each token that the forward writes, whichever it is. even: as many for each, how many differs from call to call.
sampled: all of the call are one request's, the next that samples. untold: there is no telling. positions: one element
for each position that is attended to.
"""


Drafting = Literal["head", "layers", "assistant"]
"""What drafts: an EAGLE head in a loop, next-n layers in their extend, or an assistant that keeps no KV, in a loop."""


@dataclass(frozen=True)
class SiteRows:
    """The tensor that passes a site; ``rows`` says whose its rows are while a batch decodes or prefills.

    padded: in a graph's batch, rows of padding follow. captured: reached in a graph, so that a replay on a GPU passes
    it without the host. places: says where something is, which depends on what else is served. flat: values number
    rows of the flat batch, as many for each request as the tree has nodes. drafted_by: what drafts where it is passed.
    only_v2: the worker v1 of a head does not pass it. only_by_head: nor does a model that stores latents.
    """

    rows: Rows
    padded: bool = False
    captured: bool = False
    places: bool = False
    flat: bool = False
    drafted_by: tuple[Drafting, ...] = ("head", "layers", "assistant")
    only_v2: bool = False
    only_by_head: bool = False


HEAD: tuple[Drafting, ...] = ("head",)
LAYERS: tuple[Drafting, ...] = ("layers",)
ASSISTANT: tuple[Drafting, ...] = ("assistant",)
LOOPED = HEAD + ASSISTANT
"""Trees are drafted by these alone; layers draft chains."""
KEPT = HEAD + LAYERS
"""The draft keeps KV of its own."""

SITES: Mapping[str, SiteRows] = {
    "accept.accept_index": SiteRows("request", flat=True),
    "accept.num_correct_drafts": SiteRows("request"),
    "accept.predict": SiteRows("nodes"),
    "attention.plan.kv_indices": SiteRows("positions", places=True),
    "commit.compact.rows": SiteRows("request", flat=True, drafted_by=LOOPED),
    "draft.bonus": SiteRows("request"),
    "draft.forward.input_ids": SiteRows("branches", padded=True, captured=True, drafted_by=LOOPED),
    "draft.forward.logits": SiteRows("branches", padded=True, captured=True, drafted_by=LOOPED),
    "draft.forward.positions": SiteRows("branches", padded=True, captured=True, drafted_by=LOOPED),
    "draft.hidden_states": SiteRows("request", drafted_by=ASSISTANT),
    "draft.organize.draft_tokens": SiteRows("request", padded=True, captured=True, drafted_by=LOOPED),
    "draft.organize.scores": SiteRows("request", padded=True, captured=True, drafted_by=LOOPED),
    "draft.organize.top_scores_index": SiteRows("request", padded=True, captured=True, drafted_by=LOOPED),
    "draft.out_cache_loc": SiteRows("branches", places=True, drafted_by=HEAD),
    "draft.plan.kv_indptr": SiteRows("untold", places=True, drafted_by=HEAD),
    "draft.prefix_tail": SiteRows("request", places=True, drafted_by=HEAD),
    "draft.select.choice": SiteRows("request", padded=True, captured=True, drafted_by=LOOPED),
    "draft_extend.features": SiteRows("nodes"),
    "draft_extend.input_ids": SiteRows("nodes", drafted_by=KEPT),
    "draft_extend.logits": SiteRows("request", padded=True, drafted_by=KEPT),
    "draft_extend.topk_index": SiteRows("request", padded=True, drafted_by=KEPT),
    "draft_extend.topk_p": SiteRows("request", drafted_by=HEAD),
    "draft_extend_graph.replay.accept_lengths": SiteRows("request", padded=True, drafted_by=HEAD, only_v2=True),
    "draft_extend_graph.replay.input_ids": SiteRows("nodes", padded=True, drafted_by=HEAD, only_v2=True),
    "draft_graph.replay.hidden_states": SiteRows("request", padded=True, drafted_by=LOOPED),
    "draft_graph.replay.input_ids": SiteRows("request", padded=True, drafted_by=ASSISTANT),
    "draft_graph.replay.positions": SiteRows("branches", padded=True, drafted_by=ASSISTANT),
    "draft_graph.replay.req_pool_indices": SiteRows("request", padded=True, places=True, drafted_by=LOOPED),
    "draft_graph.replay.topk_index": SiteRows("request", padded=True, drafted_by=HEAD),
    "draft_graph.replay.topk_p": SiteRows("request", padded=True, drafted_by=HEAD),
    "draft_prefill.hidden_states": SiteRows("tokens", drafted_by=KEPT),
    "draft_prefill.input_ids": SiteRows("tokens", drafted_by=KEPT),
    "kv_pool.write.k": SiteRows("written", padded=True),
    "kv_pool.write.loc": SiteRows("written", padded=True, places=True),
    "kv_pool.write.v": SiteRows("written", padded=True, only_by_head=True),
    "mtp_draft.draft_tokens": SiteRows("request", drafted_by=LAYERS),
    "mtp_extend.hidden_states": SiteRows("request", padded=True, captured=True, drafted_by=LAYERS),
    "mtp_extend.input_ids": SiteRows("extended", padded=True, captured=True, drafted_by=LAYERS),
    "mtp_graph.replay.accept_lengths": SiteRows("request", padded=True, drafted_by=LAYERS),
    "mtp_graph.replay.hidden_states": SiteRows("nodes", padded=True, drafted_by=LAYERS),
    "mtp_graph.replay.input_ids": SiteRows("nodes", padded=True, drafted_by=LAYERS),
    "mtp_graph.replay.req_pool_indices": SiteRows("request", padded=True, places=True, drafted_by=LAYERS),
    "move_kv_cache.src_loc": SiteRows("even", places=True, drafted_by=LOOPED),
    "move_kv_cache.tgt_loc": SiteRows("even", places=True, drafted_by=LOOPED),
    "prefix_cache.release.first_free": SiteRows("untold", places=True),
    "sampler.next_token_ids": SiteRows("request"),
    "sampler.softmax.probs": SiteRows("sampled"),
    "sampler.top_k.probs": SiteRows("sampled"),
    "sampler.top_p.probs": SiteRows("sampled"),
    "target_decode.input_ids": SiteRows("request"),
    "target_decode.logits": SiteRows("request"),
    "target_prefill.hidden_states": SiteRows("tokens"),
    "target_prefill.input_ids": SiteRows("tokens"),
    "target_prefill.logits": SiteRows("request"),
    "tree.parents": SiteRows("request", drafted_by=LOOPED),
    "tree.retrieve_next_sibling": SiteRows("request", drafted_by=LOOPED),
    "tree.retrieve_next_token": SiteRows("request", drafted_by=LOOPED),
    "verify.hidden_states": SiteRows("nodes"),
    "verify.input_ids": SiteRows("nodes"),
    "verify.logits": SiteRows("nodes"),
    "verify.out_cache_loc": SiteRows("nodes", places=True),
}

UNKNOWN = SiteRows("even")
"""Stands for a site that is not the engine's own, such as one that a toggle brings."""


def held_at(name: str) -> SiteRows:
    """The row of the table for that site."""
    return SITES.get(name, UNKNOWN)


def rows_per_request(name: str, *, branches: int, nodes: int) -> int | None:
    """The number of rows that each request of a decoding batch has, None where that is not fixed. branches: K, of the
    draft loop. nodes: T, of the tree; both 1 without speculation."""
    extended = 2 * (nodes - 1)  # a chain of next-n layers has T = N + 1 nodes
    return {"request": 1, "branches": branches, "nodes": nodes, "extended": extended}.get(held_at(name).rows)
