"""An independent dense implementation of the targets and of every draft head.

It has no pages and no graphs, and shares nothing with ``specdebug.engine``: it is simple enough to be believed by
reading, and training tools and oracles agree on what a draft head is. Functions take a mapping of published tensor
names to tensors; autograd flows through.

Read in order: ``config`` (shapes), ``layers`` (of either family), ``target``, ``draft`` (ways to draft), ``weights``
(files).
"""

from specdebug.reference.config import LatentAttention, ModelConfig, read_config
from specdebug.reference.draft import (
    AssistantHead,
    DraftHead,
    MTPHead,
    accept_lengths,
    assistant_logits,
    assistant_matches,
    assistant_unroll,
    chain_matches,
    draft_kv,
    draft_logits,
    draft_unroll,
    frozen_kv,
    mtp_draft,
    mtp_kv,
    mtp_matches,
    mtp_unroll,
)
from specdebug.reference.target import DenseCache, greedy_generate, target_forward
from specdebug.reference.weights import Draft, Way, join_draft, load_draft, load_weights

__all__ = [
    "AssistantHead",
    "DenseCache",
    "Draft",
    "DraftHead",
    "LatentAttention",
    "MTPHead",
    "ModelConfig",
    "Way",
    "accept_lengths",
    "assistant_logits",
    "assistant_matches",
    "assistant_unroll",
    "chain_matches",
    "draft_kv",
    "draft_logits",
    "draft_unroll",
    "frozen_kv",
    "greedy_generate",
    "join_draft",
    "load_draft",
    "load_weights",
    "mtp_draft",
    "mtp_kv",
    "mtp_matches",
    "mtp_unroll",
    "read_config",
    "target_forward",
]
