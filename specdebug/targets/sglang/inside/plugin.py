"""The entry point: SGLang calls :func:`register` in each of its processes, before it imports its models.

``targets.inside.VARIABLE`` says what is wanted. Without it nothing is done. Should something fail, the process
ends: an engine that runs without what was asked for would be judged for what it is not.
"""

from __future__ import annotations

import importlib
import json
import os
import traceback
from collections.abc import Callable
from typing import Any

from specdebug.targets.inside import VARIABLE
from specdebug.targets.inside.reverts import revert
from specdebug.targets.inside.words import say
from specdebug.targets.sglang.inside.probes import probe
from specdebug.targets.sglang.inside.tape import record

FAILED = 86
"""Exit status of a process in which this failed."""


def register() -> None:
    """Do what the environment asks for."""
    wanted = json.loads(os.environ.get(VARIABLE, "null"))
    if wanted is None:
        return
    try:
        if wanted.get("reverts") or wanted.get("sites"):
            # first: what is replaced below imports what is to be patched
            told_when_asked(revert(wanted["reverts"], wanted["sites"]))
        if wanted.get("probes"):
            told_when_asked(probe(wanted["probes"]))
        if wanted.get("device") == "cpu":
            say(f"replaced on this CPU: {', '.join(replace_for_cpu())}")
        if wanted.get("tape"):
            record(wanted["tape"])
    except BaseException:
        traceback.print_exc()
        say("failed; this process ends")
        os._exit(FAILED)


def told_when_asked(tell: Callable[[], None]) -> None:
    """Have something told whenever the engine is asked how it does (``/server_info``)."""
    from sglang.srt.managers.scheduler import Scheduler

    answer = Scheduler.get_internal_state

    def get_internal_state(self: Any, *asked: Any) -> Any:
        tell()
        return answer(self, *asked)

    Scheduler.get_internal_state = get_internal_state


def replace_for_cpu() -> list[str]:
    """Put the stand-ins in the place of what needs a GPU; returns the names of what was replaced."""
    import torch

    from specdebug.targets.sglang.inside import attention, trees
    from specdebug.targets.sglang.inside.flashinfer import use_flashinfer
    from specdebug.targets.sglang.inside.graphs import use_captured_calls

    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    torch.cuda.synchronize = nothing
    torch.cuda.empty_cache = nothing
    torch.Tensor.record_stream = nothing  # type: ignore[method-assign]
    replaced = ["torch.cuda.synchronize", "torch.cuda.empty_cache", "torch.Tensor.record_stream"]
    kernels = "sglang.srt.layers.attention.triton_ops"
    table: list[tuple[str, str, Any]] = [
        (f"{kernels}.decode_attention", "decode_attention_fwd", attention.decode_attention_fwd),
        (f"{kernels}.extend_attention", "extend_attention_fwd", attention.extend_attention_fwd),
        ("sglang.jit_kernel.flash_attention", "fa3_flash_attn_with_kvcache", attention.flash_attn_with_kvcache),
        ("sglang.srt.layers.attention.attention_registry", "get_device_capability", lambda *_, **__: (9, 0)),
        ("sglang.srt.speculative.eagle_info", "verify_tree_greedy_func", trees.verify_tree_greedy_func),
        ("sglang.srt.speculative.eagle_info_v2", "verify_tree_greedy_func", trees.verify_tree_greedy_func),
        ("sglang.srt.speculative.triton_ops.cache_locs", "_is_cuda", True),
    ]
    for module, name, stand_in in table:
        found = importlib.import_module(module)
        getattr(found, name)  # which an engine that is another now would lack
        setattr(found, name, stand_in)
        replaced.append(f"{module.removeprefix('sglang.srt.')}.{name}")
    return [*replaced, *add_kernels(), *use_flashinfer(), *use_captured_calls()]


def add_kernels() -> list[str]:
    """Give SGLang's modules the kernels of sgl-kernel that they import only where there is a GPU; returns their
    names."""
    from specdebug.targets.sglang.inside import trees

    kernels: dict[str, dict[str, Any]] = {
        "eagle_utils": {"sgl_build_tree_kernel_efficient": trees.build_tree_kernel_efficient},
        **{
            module: {
                "tree_speculative_sampling_target_only": trees.tree_speculative_sampling_target_only,
                "top_k_renorm_prob": trees.top_k_renorm_prob,
                "top_p_renorm_prob": trees.top_p_renorm_prob,
            }
            for module in ("eagle_info", "eagle_info_v2")
        },
    }
    for module, stand_ins in kernels.items():
        found = importlib.import_module(f"sglang.srt.speculative.{module}")
        for name, stand_in in stand_ins.items():
            setattr(found, name, stand_in)
    importlib.import_module("sglang.srt.speculative.eagle_info").TREE_SPEC_KERNEL_AVAILABLE = True  # type: ignore[attr-defined]
    return [f"speculative.{module}.{name}" for module, stand_ins in kernels.items() for name in stand_ins]
