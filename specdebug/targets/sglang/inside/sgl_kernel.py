"""sgl-kernel without a GPU: of what SGLang imports from it, what EAGLE's path uses. Everything else is refused by name
once it is called."""

from __future__ import annotations

from collections.abc import Callable

from specdebug.targets.sglang.inside.attention import merge_state_v2
from specdebug.targets.sglang.inside.refusals import refusing
from specdebug.targets.sglang.inside.trees import (
    build_tree_kernel_efficient,
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
    verify_tree_greedy,
)

__version__ = "0.4.3"
__all__ = [
    "build_tree_kernel_efficient",
    "merge_state_v2",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
]


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)
    return refusing(name)
