"""The sites that SGLang passes, by our names."""

from __future__ import annotations

import re
from functools import cache

SITES: tuple[tuple[str, str], ...] = (
    (r"draft_forward step .*topk_index", "draft.forward.topk_index"),
    (r"draft_forward step ", "draft.forward.logits"),
    (r"draft_forward: .*topk_p", "draft.topk_p"),
    (r"frozen_kv_mtp_draft: .*topk_index", "draft.forward.topk_index"),
    (r"frozen_kv_mtp_draft", "draft.forward.logits"),
    (r"EagleDraftCudaGraphRunner\.replay: topk_p", "draft_graph.replay.topk_p"),
    (r"EagleDraftCudaGraphRunner\.replay: topk_index", "draft_graph.replay.topk_index"),
    (r"organize_draft_results: top_scores_index", "draft.organize.top_scores_index"),
    (r"draft_extend_for_decode", "draft_extend.logits"),
    (r"draft_extend_for_prefill", "draft_prefill.logits"),
    (r".*prepare_for_(extend_to_fill_draft_kvcache|draft_extend) input_ids", "draft_extend.input_ids"),
    (r".*prepare_for_verify input_ids", "verify.input_ids"),
    (r"verify: target model logits", "verify.logits"),
    (r".*target_probs after softmax", "sampler.softmax.probs"),
    (r".*target_probs after top_k", "sampler.top_k.probs"),
    (r".*target_probs after top_p", "sampler.top_p.probs"),
    (r".*accept_index", "accept.accept_index"),
    (r".*accept_tokens", "accept.predict"),
    (r".*num_correct_drafts", "accept.num_correct_drafts"),
    (r"move_kv_cache tgt_loc", "move_kv_cache.tgt_loc"),
    (r"move_kv_cache src_loc", "move_kv_cache.src_loc"),
    (r"set_(mla_)?kv_buffer", "kv_pool.write.loc"),
    (r"VocabParallelEmbedding input id", "embedding.input_ids"),
)
"""Upstream's words for a place, as patterns, and our name of the site; the first that fits counts."""
ADDED = (
    *("draft.forward.positions", "draft_prefill.input_ids", "draft.expand_page_table", "draft.kv_indices"),
    *("accept.predict", "accept.accept_index", "accept.num_correct_drafts"),
)
"""Sites that ``probes/sites/sglang.yaml`` adds."""
OF_BLOCKS = (
    *("block.input_ids", "block.positions", "draft.out_cache_loc"),
    *("verify.input_ids", "verify.positions", "verify.out_cache_loc"),
    *("accept.num_correct_drafts", "accept.bonus", "accept.new_seq_lens"),
    *("kv_pool.write.loc", "context.commit_lens", "commit.state", "seed.hidden_states"),
)
"""Sites at which drafters of blocks, of n-grams and by frozen keys, and recurrent states, are looked at
(``inside/blocks.py``, ``inside/states.py``)."""


def passed() -> frozenset[str]:
    """Every site that is passed there by a name of ours."""
    return frozenset((*(site for _, site in SITES), *ADDED, *OF_BLOCKS))


@cache
def site_of(words: str) -> str:
    """Our name of the site that upstream's words mean; of words that are not known, these themselves."""
    known = next((site for pattern, site in SITES if re.match(pattern, words)), None)
    return known or "sglang." + (re.sub(r"\W+", "_", re.sub(r"\d+", "N", words)).strip("_").lower() or "unnamed")
