"""A scenario's engine options as vLLM's engine arguments: one table, which the docs print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdebug.base.errors import InvalidOption
from specdebug.engine.config import EngineConfig, round_up

METHODS = {"EAGLE": "eagle", "EAGLE3": "eagle3"}
"""vLLM's names of the algorithms."""
CPU_BLOCK = 32
"""Blocks of its attention on a CPU hold a multiple of so many slots."""


@dataclass(frozen=True)
class VllmOptions:
    """Engine arguments, but for the seed. ``notes``: what is otherwise there, a line for each option."""

    arguments: dict[str, Any]
    notes: tuple[str, ...]


def mapped(config: EngineConfig, model: str, draft: str | None, *, cpu: bool) -> VllmOptions:
    """The arguments for an engine of these options; checkpoints by their folders. Raises InvalidOption for what vLLM
    cannot do."""
    notes = []
    block = round_up(config.page_size, CPU_BLOCK) if cpu else config.page_size
    if block != config.page_size:
        notes.append(f"page_size: {config.page_size} is {block}, the least that its attention takes on a CPU")
    if cpu:
        notes.append("attention_backend: its own for CPUs")
    if config.cuda_graph.enabled:
        notes.append("cuda_graph: its graphs are not used")
    arguments: dict[str, Any] = {
        "model": model,
        "dtype": config.dtype,
        "max_model_len": config.context_length,
        "max_num_seqs": config.max_running_requests,
        "block_size": block,
        # one of its blocks is never given away
        "num_gpu_blocks_override": -(-config.usable_slots // block) + 1,
        "enable_prefix_caching": config.radix_cache,
        "enforce_eager": True,
        "max_num_batched_tokens": _batched(config),
        "enable_chunked_prefill": config.chunked_prefill_size is not None,
    }
    if config.memory.fill != "zeros" or config.memory.guards:
        notes.append("memory: fill and guards are not there; its memory is torch's")
    if config.speculative is not None and config.speculative.worker != "v2":
        notes.append("speculative.worker: it has its own")
    if config.speculative is not None:
        arguments["speculative_config"] = _drafting(config, draft)
    return VllmOptions(arguments, tuple(notes))


def _batched(config: EngineConfig) -> int:
    """The most tokens of a step: a chunk of a prompt, or a whole one, and beside it a verify of every request."""
    tree = config.speculative.tree_size if config.speculative is not None else 1
    return (config.chunked_prefill_size or config.context_length) + config.max_running_requests * tree


def _drafting(config: EngineConfig, draft: str | None) -> dict[str, Any]:
    spec = config.speculative
    assert spec is not None  # for the type checker: the caller has looked
    if spec.eagle_topk > 1:
        raise InvalidOption(
            f"vLLM drafts chains, not trees, so it is 1, not {spec.eagle_topk}", ("speculative", "eagle_topk")
        )
    for name in ("threshold_single", "threshold_acc"):
        if getattr(spec, name) != 1.0:
            raise InvalidOption("vLLM has no such threshold", ("speculative", name))
    if spec.draft_kv_on_hit != "recompute":
        raise InvalidOption("vLLM keeps the draft's KV with the target's", ("speculative", "draft_kv_on_hit"))
    if spec.algorithm not in METHODS:
        known = ", ".join(METHODS)
        raise InvalidOption(f"of vLLM's methods here are {known}; not {spec.algorithm}", ("speculative", "algorithm"))
    return {"method": METHODS[spec.algorithm], "model": draft, "num_speculative_tokens": spec.num_steps}
