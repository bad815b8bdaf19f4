"""What is put into SGLang's modules on a CPU, by the first release that has them so.

From 0.5.18 on much of EAGLE has a branch of its own for CPUs. Those branches are switched off: what is to be tested
is what runs on a GPU, whose Triton kernels run in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specdebug.targets.sglang.inside import attention, trees
from specdebug.targets.sglang.inside.releases import StandIn

_REGISTRY = "srt.layers.attention.attention_registry"
_UTILS = "srt.speculative.eagle_utils"
_SAMPLING = (trees.tree_speculative_sampling_target_only, trees.top_k_renorm_prob, trees.top_p_renorm_prob)
_GPU_BRANCHES: dict[str, tuple[str, ...]] = {
    "kernels.ops.kvcache.cache_move": ("_is_cpu",),
    "kernels.ops.speculative.cache_locs": ("_is_cpu", "_is_cuda"),
    "kernels.ops.speculative.eagle": ("_is_cpu",),
    "srt.mem_cache.allocation": ("_is_cpu",),
    "srt.speculative.eagle_utils": ("_is_cpu",),
    "srt.speculative.eagle_worker_common": ("_is_cpu",),
    "srt.speculative.eagle_worker_v2": ("_is_cpu", "_is_cuda"),
}
"""Modules, from 0.5.18 on, in which SGLang is told that this is a GPU, and by which of their names."""


def _hopper(*_: Any, **__: Any) -> tuple[int, int]:
    """The compute capability that FlashAttention 3 wants."""
    return 9, 0


def _leave_overlap(server_args: Any) -> None:
    """In the place of what turns overlap off for drafts on a CPU."""


def _attention(kernels: str, flash: str) -> Iterator[StandIn]:
    yield StandIn(f"{kernels}.decode_attention", "decode_attention_fwd", attention.decode_attention_fwd)
    yield StandIn(f"{kernels}.extend_attention", "extend_attention_fwd", attention.extend_attention_fwd)
    yield StandIn(flash, "fa3_flash_attn_with_kvcache", attention.flash_attn_with_kvcache)
    yield StandIn(_REGISTRY, "get_device_capability", _hopper)


def _of_0_5_13() -> Iterator[StandIn]:
    yield from _attention("srt.layers.attention.triton_ops", "jit_kernel.flash_attention")
    yield StandIn("srt.speculative.triton_ops.cache_locs", "_is_cuda", True)
    yield StandIn(_UTILS, "sgl_build_tree_kernel_efficient", trees.build_tree_kernel_efficient, new=True)
    for module in ("srt.speculative.eagle_info", "srt.speculative.eagle_info_v2"):
        yield StandIn(module, "verify_tree_greedy_func", trees.verify_tree_greedy_func)
        yield from (StandIn(module, kernel.__name__, kernel, new=True) for kernel in _SAMPLING)
    yield StandIn("srt.speculative.eagle_info", "TREE_SPEC_KERNEL_AVAILABLE", True)


def _of_0_5_18() -> Iterator[StandIn]:
    yield from _with_branches_of_a_gpu()
    yield StandIn("srt.speculative.spec_utils", "_is_cpu", False)
    yield StandIn(_UTILS, "sgl_build_tree_kernel_efficient", trees.build_tree_kernel_efficient, new=True)


def _of_0_5_23() -> Iterator[StandIn]:
    yield from _with_branches_of_a_gpu()
    yield StandIn(_UTILS, "build_tree_kernel_efficient_func", trees.build_tree_kernel_efficient)
    yield from (StandIn(_UTILS, kernel.__name__, kernel) for kernel in _SAMPLING)


def _with_branches_of_a_gpu() -> Iterator[StandIn]:
    yield from _attention("kernels.ops.attention", "kernels.ops.attention.flash_attention")
    yield StandIn(_UTILS, "verify_tree_greedy_func", trees.verify_tree_greedy_func)
    yield StandIn("srt.arg_groups.speculative_hook", "_disable_overlap_schedule_for_cpu", _leave_overlap)
    for module, names in _GPU_BRANCHES.items():
        yield from (StandIn(module, name, name == "_is_cuda") for name in names)


STAND_INS: dict[str, tuple[StandIn, ...]] = {
    "0.5.13": tuple(_of_0_5_13()),
    "0.5.18": tuple(_of_0_5_18()),
    "0.5.23": tuple(_of_0_5_23()),
}
