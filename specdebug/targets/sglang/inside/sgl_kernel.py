"""sgl-kernel without a GPU: of what SGLang imports from it, what EAGLE's CPU path uses."""

from __future__ import annotations

from specdebug.targets.sglang.inside.attention import merge_state_v2
from specdebug.targets.sglang.inside.trees import (
    build_tree_kernel_efficient,
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
)

__version__ = "0.4.3"
__all__ = [
    "build_tree_kernel_efficient",
    "merge_state_v2",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
]
