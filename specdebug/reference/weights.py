"""Checkpoint folders as plain mappings, and drafts joined to the target tensors they borrow."""

from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specdebug.base.errors import CheckpointError, one_line
from specdebug.base.files import kind_of
from specdebug.reference.config import ModelConfig, read_config
from specdebug.reference.draft import AssistantHead, DraftHead, MTPHead
from specdebug.reference.layers import Weights

Draft = DraftHead | MTPHead | AssistantHead
"""A head that drafts from its own outputs, one with a layer for each draft, or one that reads the target's KV."""

Way = Literal["recurrent", "layers", "frozen"]
"""How a checkpoint is used, in the same order."""


def load_weights(
    path: Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], ModelConfig]:
    """Read all tensors of a folder's safetensors files, floating ones cast, and its config.

    Raises CheckpointError when the folder holds no weights, or some that cannot be read.
    """
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{path} holds no .safetensors file")
    weights: dict[str, Tensor] = {}
    for file in files:
        if kind := kind_of(file):
            raise CheckpointError(f"{file} cannot be read: is {kind}, not a file")
        try:
            with safe_open(str(file), framework="pt", device=str(device)) as reader:
                for name in reader.keys():  # noqa: SIM118 - a safetensors reader is no mapping
                    tensor = reader.get_tensor(name)
                    weights[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        except (SafetensorError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            reason = one_line(str(error).strip().split("\n")[0], 200)
            raise CheckpointError(f"{file} is truncated or not safetensors ({reason}); fetch it again") from None
    return weights, read_config(path)


def load_draft(
    path: Path,
    target_weights: Weights,
    target_config: ModelConfig,
    *,
    way: Way | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Draft:
    """Load the head in ``path``, which borrows embedding and lm_head from a loaded target. Without ``way`` the config
    decides: an assistant names the target's layers that it reads, and more than one next-n layer drafts one after
    another. Raises CheckpointError for a checkpoint that cannot be used in this way."""
    weights, config = load_weights(path, dtype=dtype, device=device)
    embed = target_weights["model.embed_tokens.weight"]
    lm_head = embed if target_config.tie_word_embeddings else target_weights["lm_head.weight"]
    draft = join_draft(weights, config, embed, lm_head, way)
    found: Way = "recurrent" if isinstance(draft, DraftHead) else "layers" if isinstance(draft, MTPHead) else "frozen"
    if way not in (None, found):
        raise CheckpointError(f"{path} holds no draft of the kind that this algorithm needs ({_NEEDED[way]})")
    return draft


_NEEDED: dict[Way, str] = {
    "recurrent": "an EAGLE head or a next-n layer",
    "layers": "next-n layers",
    "frozen": "an assistant, whose config names target_kv_layers",
}


def join_draft(weights: Weights, config: ModelConfig, embed: Tensor, lm_head: Tensor, way: Way | None = None) -> Draft:
    """Join a head's tensors to the target's embedding and lm_head, where it brings none of its own; ``way`` as of
    :func:`load_draft`."""
    if config.target_kv_layers:
        own = weights.get("embed_tokens.weight", embed), weights.get("lm_head.weight", lm_head)
        return AssistantHead(weights, config, *own)
    if not config.nextn_layers:
        return DraftHead(weights, config, embed, lm_head)
    layers = tuple(_nextn_layer(weights, config, embed, lm_head, index) for index in range(config.nextn_layers))
    alone = way == "recurrent" or (way is None and len(layers) == 1)
    return layers[0] if alone else MTPHead(layers, config.chain_hidden_states)


def _nextn_layer(weights: Weights, config: ModelConfig, embed: Tensor, lm_head: Tensor, index: int) -> DraftHead:
    prefix = f"model.layers.{config.num_layers + index}."
    own_embed = weights.get(f"{prefix}embed_tokens.weight", embed)
    return DraftHead(weights, config, own_embed, weights.get(f"{prefix}shared_head.head.weight", lm_head), index)
