"""From a checkpoint folder to an assistant; whatever does not fit the target is reported in one line.

Tensors: ``fc``, ``layers.N`` without k and v projections, ``norm``; ``embed_tokens`` and ``lm_head`` are the target's
unless the folder has its own. ``target_kv_layers`` of ``config.json`` says whose KV each layer reads.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.assistant import AssistantDraft
from specdebug.engine.model.checkpoint import Checkpoint
from specdebug.engine.model.config import LlamaConfig, target_kv_layers
from specdebug.engine.model.draft import TokenShare
from specdebug.engine.model.draft_kind import ASSISTANT, require_kind
from specdebug.engine.model.linear import as_weight
from specdebug.engine.model.llama import TargetModel
from specdebug.engine.model.loader import fc_bias, head_embedding
from specdebug.engine.model.rope import Rotary
from specdebug.engine.model.weights import Weights


def load_assistant(
    path: str | Path, *, algorithm: str, target: TargetModel, max_positions: int | None = None
) -> AssistantDraft:
    """Load the assistant at ``path`` for ``target``, in its dtype and on its device.

    ``max_positions`` is as for ``loader.load_draft``. Raises CheckpointError if the folder, its config or a tensor is
    not an assistant's, or not one for this target; InvalidOption if the folder holds a draft for another algorithm.
    """
    checkpoint = Checkpoint(Path(path))
    where = str(checkpoint.config_file)
    require_kind(checkpoint, algorithm, ASSISTANT)
    config = LlamaConfig.from_dict(checkpoint.config, where)
    if not isinstance(target.config, LlamaConfig):
        raise CheckpointError(f"{where}: an assistant reads keys and values by head, and this target stores latents")
    _require_fit(config, target.config, where)
    weights = Weights(checkpoint, config, target.embedding.dtype, target.embedding.device)
    layers = target_kv_layers(checkpoint.config, where, config.num_layers, target.config.num_layers)
    assistant = build_assistant(weights, target, layers, max_positions)
    checkpoint.refuse_leftovers()
    return assistant


def build_assistant(
    weights: Weights, target: TargetModel, kv_layers: tuple[int, ...], max_positions: int | None = None
) -> AssistantDraft:
    """An assistant of ``weights.config`` for ``target``, whose layers read the KV of its ``kv_layers``;
    ``max_positions`` and errors as for ``load_assistant``."""
    config, size = weights.config, weights.config.hidden_size
    # a layer has query heads only, and the rotation knows no others
    queries = replace(config, num_kv_heads=0)
    rotary = Rotary(queries, max_positions or target.config.max_position_embeddings, weights.device)
    fc = weights.linear(2 * size, ("fc.weight", size))
    own_head = weights.has("lm_head.weight")
    lm_head = as_weight(weights.plain("lm_head.weight", config.vocab_size, size)) if own_head else target.lm_head
    return AssistantDraft(
        config=config,
        num_layers=0,
        lookahead=0,
        vocab_size=config.vocab_size,
        target_feature_size=size,
        rotary=rotary,
        token=TokenShare(head_embedding(weights, target), None, fc[:size], fc_bias(weights)),
        fc=fc[size:],
        layers=tuple(weights.query_layer(f"layers.{n}", layer, rotary) for n, layer in enumerate(kv_layers)),
        final_norm=weights.norm("norm.weight"),
        lm_head=lm_head,
    )


def _require_fit(config: LlamaConfig, target: LlamaConfig, where: str) -> None:
    """Its queries meet the target's keys, and its hidden state takes the place of the target's."""
    shared = ("vocab_size", "hidden_size", "num_kv_heads", "head_dim", "rope_theta", "rope_scaling")
    for name in shared:
        ours, theirs = getattr(config, name), getattr(target, name)
        if ours != theirs:
            key = {"num_kv_heads": "num_key_value_heads"}.get(name, name)
            raise CheckpointError(f"{where}: {key} {ours} is not the target's {theirs}; it assists another model")
    if config.qkv_bias:
        raise CheckpointError(f"{where}: attention_bias true is not supported; an assistant's queries have no bias")
