"""One table, without torch, says of each probe's site whose the rows of its tensor are, and what its values mean.

The tensor is the one that the probe is called with; where it is called with slots of a pool, they are the rows. A test
holds the table against the probe calls in the source and against runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Rows = Literal["request", "branches", "nodes", "tokens", "written", "even", "sampled", "nobody", "positions"]
"""The owners of rows, which come in the order of the batch:

request: one row each. branches: K each, as the draft loop has them. nodes: T each, as the tree has them. tokens: one
for each token of a prompt chunk. written: one for each token that the forward writes, whichever it is. even: as many
for each, how many differs from call to call. sampled: all of the call are one request's, the next that samples.
nobody: there is no telling. positions: one element for each position that is attended to.
"""


@dataclass(frozen=True)
class SiteRows:
    """The tensor that passes a site; ``rows`` says whose its rows are while a batch decodes or prefills.

    padded: in a graph's batch, rows of padding follow. captured: reached in a graph, so that a replay on a GPU passes
    it without the host. places: says where something is, which depends on what else is served. flat: values number
    rows of the flat batch, as many for each request as the tree has nodes.
    """

    rows: Rows
    padded: bool = False
    captured: bool = False
    places: bool = False
    flat: bool = False


SITES: Mapping[str, SiteRows] = {
    "accept.accept_index": SiteRows("request", flat=True),
    "accept.num_correct_drafts": SiteRows("request"),
    "accept.predict": SiteRows("nodes"),
    "attention.plan.kv_indices": SiteRows("positions", places=True),
    "commit.compact.rows": SiteRows("request", flat=True),
    "draft.bonus": SiteRows("request"),
    "draft.forward.input_ids": SiteRows("branches", padded=True, captured=True),
    "draft.forward.logits": SiteRows("branches", padded=True, captured=True),
    "draft.forward.positions": SiteRows("branches", padded=True, captured=True),
    "draft.organize.draft_tokens": SiteRows("request", padded=True, captured=True),
    "draft.organize.scores": SiteRows("request", padded=True, captured=True),
    "draft.organize.top_scores_index": SiteRows("request", padded=True, captured=True),
    "draft.out_cache_loc": SiteRows("branches", places=True),
    "draft.plan.kv_indptr": SiteRows("nobody", places=True),
    "draft.prefix_tail": SiteRows("request", places=True),
    "draft.select.choice": SiteRows("request", padded=True, captured=True),
    "draft_extend.features": SiteRows("nodes"),
    "draft_extend.input_ids": SiteRows("nodes"),
    "draft_extend.logits": SiteRows("request", padded=True),
    "draft_extend.topk_index": SiteRows("request"),
    "draft_extend.topk_p": SiteRows("request"),
    "draft_extend_graph.replay.accept_lengths": SiteRows("request", padded=True, captured=True),
    "draft_extend_graph.replay.input_ids": SiteRows("nodes", padded=True, captured=True),
    "draft_graph.replay.hidden_states": SiteRows("request", padded=True),
    "draft_graph.replay.req_pool_indices": SiteRows("request", padded=True, places=True),
    "draft_graph.replay.topk_index": SiteRows("request", padded=True),
    "draft_graph.replay.topk_p": SiteRows("request", padded=True),
    "draft_prefill.hidden_states": SiteRows("tokens"),
    "draft_prefill.input_ids": SiteRows("tokens"),
    "kv_pool.write.k": SiteRows("written", padded=True),
    "kv_pool.write.loc": SiteRows("written", padded=True, places=True),
    "kv_pool.write.v": SiteRows("written", padded=True),
    "move_kv_cache.src_loc": SiteRows("even", places=True),
    "move_kv_cache.tgt_loc": SiteRows("even", places=True),
    "prefix_cache.release.first_free": SiteRows("nobody", places=True),
    "sampler.next_token_ids": SiteRows("request"),
    "sampler.softmax.probs": SiteRows("sampled"),
    "sampler.top_k.probs": SiteRows("sampled"),
    "sampler.top_p.probs": SiteRows("sampled"),
    "target_decode.input_ids": SiteRows("request"),
    "target_decode.logits": SiteRows("request"),
    "target_prefill.hidden_states": SiteRows("tokens"),
    "target_prefill.input_ids": SiteRows("tokens"),
    "target_prefill.logits": SiteRows("request"),
    "tree.parents": SiteRows("request"),
    "tree.retrieve_next_sibling": SiteRows("request"),
    "tree.retrieve_next_token": SiteRows("request"),
    "verify.hidden_states": SiteRows("nodes"),
    "verify.input_ids": SiteRows("nodes"),
    "verify.logits": SiteRows("nodes"),
}

UNKNOWN = SiteRows("even")
"""Stands for a site that is not the engine's own, such as one that a toggle brings."""


def held_at(name: str) -> SiteRows:
    """The row of the table for that site."""
    return SITES.get(name, UNKNOWN)


def rows_per_request(name: str, *, branches: int, nodes: int) -> int | None:
    """The number of rows that each request of a decoding batch has, None where that is not fixed. branches: K, of the
    draft loop. nodes: T, of the tree; both 1 without speculation."""
    return {"request": 1, "branches": branches, "nodes": nodes}.get(held_at(name).rows)
