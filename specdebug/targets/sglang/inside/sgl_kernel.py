"""sgl-kernel without a GPU: of what SGLang imports from it, what EAGLE's path uses, and by name what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specdebug.targets.sglang.inside.attention import merge_state_v2
from specdebug.targets.sglang.inside.trees import (
    build_tree_kernel_efficient,
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
)

__version__ = "0.4.3"
ONLY_IMPORTED = (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
)
"""Kernels that modules of SGLang's import on a CPU and, with its branches for GPUs taken, never call."""
__all__ = [
    "build_tree_kernel_efficient",
    "merge_state_v2",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
]
__all__ += ONLY_IMPORTED


def _refusing(name: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError(f"specdebug's stand-in for sgl_kernel has no {name}")

    return refuse


globals().update({name: _refusing(name) for name in ONLY_IMPORTED})
