"""What the tensor at each probe's site holds: whose its rows are, and what its values mean. One table, without torch.

A tensor is what a probe is called with; where it is called with slots of a pool, its rows are those slots. A test holds
the table against the probe calls in the source and against what passes in a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Rows = Literal["request", "branches", "nodes", "tokens", "written", "even", "sampled", "nobody", "positions"]
"""Whose the rows are, in the order of the batch:

request: one row each. branches: K each, as the draft loop has them. nodes: T each, as the tree has them. tokens: one
for each token of a prompt chunk. written: one for each token that the forward writes, whichever it is. even: as many
for each, how many differs from call to call. sampled: all of the call are one request's, the next that samples.
nobody: there is no telling. positions: one element for each position that is attended to.
"""


@dataclass(frozen=True)
class Site:
    """What passes at a site.

    Args:
        rows: whose the rows are while a batch decodes or prefills.
        padded: in a graph's batch, rows of padding follow.
        captured: reached in a graph, so that a replay on a GPU passes it without the host.
        places: says where something is, which depends on what else is served.
        flat: values number rows of the flat batch, as many for each request as the tree has nodes.
    """

    rows: Rows
    padded: bool = False
    captured: bool = False
    places: bool = False
    flat: bool = False


SITES: Mapping[str, Site] = {
    "accept.accept_index": Site("request", flat=True),
    "accept.num_correct_drafts": Site("request"),
    "accept.predict": Site("nodes"),
    "attention.plan.kv_indices": Site("positions", places=True),
    "commit.compact.rows": Site("request", flat=True),
    "draft.bonus": Site("request"),
    "draft.forward.input_ids": Site("branches", padded=True, captured=True),
    "draft.forward.logits": Site("branches", padded=True, captured=True),
    "draft.forward.positions": Site("branches", padded=True, captured=True),
    "draft.organize.draft_tokens": Site("request", padded=True, captured=True),
    "draft.organize.scores": Site("request", padded=True, captured=True),
    "draft.organize.top_scores_index": Site("request", padded=True, captured=True),
    "draft.out_cache_loc": Site("branches", places=True),
    "draft.plan.kv_indptr": Site("nobody", places=True),
    "draft.prefix_tail": Site("request", places=True),
    "draft.select.choice": Site("request", padded=True, captured=True),
    "draft_extend.features": Site("nodes"),
    "draft_extend.input_ids": Site("nodes"),
    "draft_extend.logits": Site("request", padded=True),
    "draft_extend.topk_index": Site("request"),
    "draft_extend.topk_p": Site("request"),
    "draft_extend_graph.replay.accept_lengths": Site("request", padded=True, captured=True),
    "draft_extend_graph.replay.input_ids": Site("nodes", padded=True, captured=True),
    "draft_graph.replay.hidden_states": Site("request", padded=True),
    "draft_graph.replay.req_pool_indices": Site("request", padded=True, places=True),
    "draft_graph.replay.topk_index": Site("request", padded=True),
    "draft_graph.replay.topk_p": Site("request", padded=True),
    "draft_prefill.hidden_states": Site("tokens"),
    "draft_prefill.input_ids": Site("tokens"),
    "kv_pool.write.k": Site("written"),
    "kv_pool.write.loc": Site("written", padded=True, places=True),
    "kv_pool.write.v": Site("written"),
    "move_kv_cache.src_loc": Site("even", places=True),
    "move_kv_cache.tgt_loc": Site("even", places=True),
    "prefix_cache.release.first_free": Site("nobody", places=True),
    "sampler.next_token_ids": Site("request"),
    "sampler.softmax.probs": Site("sampled"),
    "sampler.top_k.probs": Site("sampled"),
    "sampler.top_p.probs": Site("sampled"),
    "target_decode.input_ids": Site("request"),
    "target_decode.logits": Site("request"),
    "target_prefill.hidden_states": Site("tokens"),
    "target_prefill.input_ids": Site("tokens"),
    "target_prefill.logits": Site("request"),
    "tree.parents": Site("request"),
    "tree.retrieve_next_sibling": Site("request"),
    "tree.retrieve_next_token": Site("request"),
    "verify.hidden_states": Site("nodes"),
    "verify.input_ids": Site("nodes"),
    "verify.logits": Site("nodes"),
}

UNKNOWN = Site("even")
"""Stands for a site that is not the engine's own, such as one that a toggle brings."""


def site(name: str) -> Site:
    """What passes at the site of that name."""
    return SITES.get(name, UNKNOWN)


def rows_per_request(name: str, *, branches: int, nodes: int) -> int | None:
    """How many rows each request of a decoding batch has, None where that is not fixed.

    branches: K, of the draft loop. nodes: T, of the tree; both 1 without speculation.
    """
    return {"request": 1, "branches": branches, "nodes": nodes}.get(site(name).rows)
