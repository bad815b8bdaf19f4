"""The plainest damage, at any probe's site: an index that is out of range, a number that is none.

In the detection matrix each site is a row of its own, which shows the worth of that site's probe.
"""

from __future__ import annotations

import math

from specdebug.faults.shot import NotHere, Shot, fault_class

FAMILY = "anywhere"

INDEX_SITES = (
    "verify.input_ids",
    "verify.out_cache_loc",
    "accept.accept_index",
    "accept.num_correct_drafts",
    "accept.predict",
    "attention.plan.kv_indices",
    "commit.compact.rows",
    "draft.bonus",
    "draft.forward.input_ids",
    "draft.organize.draft_tokens",
    "draft.organize.top_scores_index",
    "draft.out_cache_loc",
    "draft.plan.kv_indptr",
    "draft.select.choice",
    "draft_extend.input_ids",
    "draft_extend.topk_index",
    "draft_extend_graph.replay.accept_lengths",
    "draft_extend_graph.replay.input_ids",
    "draft_graph.replay.input_ids",
    "draft_graph.replay.req_pool_indices",
    "draft_graph.replay.topk_index",
    "draft_prefill.input_ids",
    "kv_pool.write.loc",
    "mtp_draft.draft_tokens",
    "mtp_extend.input_ids",
    "mtp_graph.replay.accept_lengths",
    "mtp_graph.replay.input_ids",
    "mtp_graph.replay.req_pool_indices",
    "move_kv_cache.src_loc",
    "move_kv_cache.tgt_loc",
    "sampler.next_token_ids",
    "target_decode.input_ids",
    "target_prefill.input_ids",
    "tree.parents",
    "tree.retrieve_next_sibling",
    "tree.retrieve_next_token",
)
NUMBER_SITES = (
    "verify.logits",
    "verify.hidden_states",
    "draft.forward.logits",
    "draft.hidden_states",
    "draft.organize.scores",
    "draft_extend.features",
    "draft_extend.logits",
    "draft_extend.topk_p",
    "draft_graph.replay.hidden_states",
    "draft_graph.replay.topk_p",
    "draft_prefill.hidden_states",
    "mtp_extend.hidden_states",
    "mtp_graph.replay.hidden_states",
    "sampler.softmax.probs",
    "sampler.top_k.probs",
    "sampler.top_p.probs",
    "target_decode.logits",
    "target_prefill.hidden_states",
    "target_prefill.logits",
)


@fault_class(FAMILY, "site", "corrupts", sites=INDEX_SITES, addressed_by=())
def index_out_of_range(shot: Shot) -> None:
    """One index that passes a site is too large by at least one."""
    shot.edit(shot.site.tensor, _somewhere(shot), math.ceil(shot.site.high) + shot.rng.randrange(8), shot.site.site)


@fault_class(FAMILY, "site", "corrupts", sites=NUMBER_SITES, addressed_by=())
def not_a_number(shot: Shot) -> None:
    """One number that passes a site becomes NaN."""
    shot.edit(shot.site.tensor, _somewhere(shot), math.nan, shot.site.site)


def _somewhere(shot: Shot) -> tuple[int, ...]:
    if not shot.site.tensor.numel():
        raise NotHere(f"nothing passed {shot.site.site}")
    return tuple(shot.rng.randrange(size) for size in shot.site.tensor.shape)
