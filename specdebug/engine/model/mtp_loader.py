"""From a checkpoint folder to next-n layers; every mismatch is reported in one line.

Tensors have the names under which DeepSeek-V3 publishes such layers, behind those of the target: layer i of them is
``model.layers.{num_hidden_layers + i}``. The folder may be the target's own.
"""

from __future__ import annotations

import re
from pathlib import Path

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.checkpoint import Checkpoint
from specdebug.engine.model.config import LlamaConfig, MTPOptions
from specdebug.engine.model.draft import NormedPair
from specdebug.engine.model.draft_kind import NEXTN_LAYERS, require_kind
from specdebug.engine.model.linear import as_weight
from specdebug.engine.model.llama import TargetModel
from specdebug.engine.model.mtp import MTPDraft, NextNLayer
from specdebug.engine.model.rope import Rotary
from specdebug.engine.model.weights import Weights


def load_mtp(path: str | Path, *, algorithm: str, target: TargetModel, max_positions: int | None = None) -> MTPDraft:
    """Load the next-n layers at ``path`` for ``target``, in its dtype and on its device.

    ``max_positions`` is the length of the RoPE table, by default the target's ``max_position_embeddings``. Raises
    CheckpointError if the folder, its config or a tensor is not what such layers need, or not for this target;
    InvalidOption if the folder holds a draft for another algorithm.
    """
    checkpoint = Checkpoint(Path(path))
    where = str(checkpoint.config_file)
    require_kind(checkpoint, algorithm, NEXTN_LAYERS)
    options = MTPOptions.from_dict(checkpoint.config, where)
    config = LlamaConfig.from_dict(checkpoint.config, where)
    _require_fit(config, target, where)
    weights = Weights(checkpoint, config, target.embedding.dtype, target.embedding.device)
    draft = build_mtp(weights, target, options, max_positions)
    own = re.compile(r"(?:model\.)?layers\.(\d+)\.")
    numbers = {name: own.match(name) for name in checkpoint.names}
    first = config.num_layers
    checkpoint.refuse_leftovers(ignored=[name for name, at in numbers.items() if at is None or int(at[1]) < first])
    return draft


def build_mtp(weights: Weights, target: TargetModel, options: MTPOptions, max_positions: int | None = None) -> MTPDraft:
    """The next-n layers behind those of ``weights.config``, for ``target``; ``max_positions`` and errors as for
    ``load_mtp``."""
    config = weights.config
    rotary = Rotary(config, max_positions or target.config.max_position_embeddings, weights.device)
    return MTPDraft(
        config=config,
        num_layers=options.num_layers,
        vocab_size=config.vocab_size,
        target_feature_size=config.hidden_size,
        lookahead=options.num_layers,
        rotary=rotary,
        layers=tuple(_layer(weights, target, rotary, index) for index in range(options.num_layers)),
        chain_hidden_states=options.chain_hidden_states,
    )


def _require_fit(config: LlamaConfig, target: TargetModel, where: str) -> None:
    """Refuse layers that were made for another target."""
    sizes = {
        "vocab_size": (config.vocab_size, target.config.vocab_size),
        "hidden_size": (config.hidden_size, target.config.hidden_size),
        "num_hidden_layers": (config.num_layers, target.config.num_layers),
    }
    for name, (found, wanted) in sizes.items():
        if found != wanted:
            raise CheckpointError(f"{where}: {name} {found} is not the target's {wanted}; it drafts for another model")


def _layer(weights: Weights, target: TargetModel, rotary: Rotary, index: int) -> NextNLayer:
    config, size = weights.config, weights.config.hidden_size
    prefix = f"model.layers.{config.num_layers + index}"
    embedding, lm_head = target.embedding, target.lm_head
    if weights.has(f"{prefix}.embed_tokens.weight"):
        embedding = weights.plain(f"{prefix}.embed_tokens.weight", config.vocab_size, size)
    if weights.has(f"{prefix}.shared_head.head.weight"):
        lm_head = as_weight(weights.plain(f"{prefix}.shared_head.head.weight", config.vocab_size, size))
    token_norm, hidden_norm = weights.norm(f"{prefix}.enorm.weight"), weights.norm(f"{prefix}.hnorm.weight")
    input_norm = weights.norm(f"{prefix}.input_layernorm.weight")
    fused = weights.linear(2 * size, (f"{prefix}.eh_proj.weight", size))
    return NextNLayer(
        fused=NormedPair(embedding, token_norm, hidden_norm, fused),
        input_norm=input_norm,
        layer=weights.layer(prefix, index, rotary, input_norm, size),
        head_norm=weights.norm(f"{prefix}.shared_head.norm.weight"),
        lm_head=lm_head,
    )
