"""An independent dense implementation of the target and of both draft heads.

It has no pages and no graphs, and shares nothing with ``specdebug.engine``: it is simple enough to be believed by
reading, and training tools and oracles agree on what a draft head is. Functions take a mapping of published tensor
names to tensors; autograd flows through.

Read in order: ``config`` (shapes), ``layers``, ``target``, ``draft``, ``weights`` (files).
"""

from specdebug.reference.config import ModelConfig, read_config
from specdebug.reference.draft import DraftHead, accept_lengths, chain_matches, draft_kv, draft_logits, draft_unroll
from specdebug.reference.target import DenseCache, greedy_generate, target_forward
from specdebug.reference.weights import load_draft, load_weights

__all__ = [
    "DenseCache",
    "DraftHead",
    "ModelConfig",
    "accept_lengths",
    "chain_matches",
    "draft_kv",
    "draft_logits",
    "draft_unroll",
    "greedy_generate",
    "load_draft",
    "load_weights",
    "read_config",
    "target_forward",
]
