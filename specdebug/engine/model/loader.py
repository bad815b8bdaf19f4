"""From a checkpoint folder to a model; every mismatch is reported in one line.

Tensors have their published names: Llama's for the target; ``fc``, ``layers.N`` for EAGLE heads; ``fc``, ``midlayer``
(or ``layers.0``, as speculators for vLLM write it), ``norm``, ``lm_head``, ``d2t`` and ``t2d`` for EAGLE-3 heads.
``deepseek.py`` loads models with latent attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.checkpoint import Checkpoint
from specdebug.engine.model.config import LLAMA_ARCHITECTURES, Eagle3Options, LlamaConfig
from specdebug.engine.model.deepseek import load_deepseek, load_nextn
from specdebug.engine.model.deepseek_config import DEEPSEEK_ARCHITECTURE
from specdebug.engine.model.draft import TokenShare
from specdebug.engine.model.draft_kind import EAGLE3_HEAD, EAGLE_HEAD, LATENT_NEXTN_LAYER, require_kind
from specdebug.engine.model.eagle import EagleDraft
from specdebug.engine.model.eagle3 import Eagle3Draft
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.model.keys import architecture_of, shown
from specdebug.engine.model.layers import DecoderLayer, Norm
from specdebug.engine.model.linear import as_weight
from specdebug.engine.model.llama import TargetModel
from specdebug.engine.model.rope import Rotary
from specdebug.engine.model.weights import Weights


def load_target(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    max_positions: int | None = None,
) -> TargetModel:
    """Load the target in a checkpoint folder, of the architecture that its config names.

    ``max_positions`` is the length of the RoPE table, by default the model's ``max_position_embeddings``. Raises
    CheckpointError if the folder, its config or a tensor is not what such a model needs.
    """
    checkpoint = Checkpoint(Path(path))
    where = str(checkpoint.config_file)
    if require_target_architecture(checkpoint.config, where) == DEEPSEEK_ARCHITECTURE:
        return load_deepseek(checkpoint, dtype, torch.device(device), max_positions)
    config = LlamaConfig.from_dict(checkpoint.config, where)
    target = build_target(Weights(checkpoint, config, dtype, torch.device(device)), max_positions)
    checkpoint.refuse_leftovers(ignored=("lm_head.weight",) if config.tie_word_embeddings else ())
    return target


def require_target_architecture(data: Mapping[str, Any], where: str) -> str:
    """The architecture of a ``config.json``, one that the target loader reads.
    Raises CheckpointError if it is absent or another one."""
    known = (*LLAMA_ARCHITECTURES, DEEPSEEK_ARCHITECTURE)
    found = architecture_of(data)
    if found not in known:
        listed = ", ".join(known)
        named = shown(data.get("architectures"))
        raise CheckpointError(f"{where}: architecture {named} is none of {listed}; give one of those")
    return found


def build_target(weights: Weights, max_positions: int | None = None) -> TargetModel:
    """The target of ``weights.config``; ``max_positions`` and errors as for ``load_target``."""
    config = weights.config
    rotary = Rotary(config, max_positions or config.max_position_embeddings, weights.device)
    embedding = weights.plain("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        norm = weights.norm(f"{prefix}.input_layernorm.weight")
        layers.append((norm, weights.layer(prefix, index, rotary, norm, config.hidden_size)))
    final_norm = weights.norm("model.norm.weight")
    tied = config.tie_word_embeddings
    lm_head = embedding if tied else weights.plain("lm_head.weight", config.vocab_size, config.hidden_size)
    return TargetModel(config, rotary, embedding, tuple(layers), final_norm, as_weight(lm_head))


def load_draft(
    path: str | Path, *, algorithm: Literal["EAGLE", "EAGLE3"], target: TargetModel, max_positions: int | None = None
) -> DraftModel:
    """Load the draft head at ``path`` for ``target``, in its dtype and on its device: an EAGLE or EAGLE-3 head, or the
    next-n layer of a DeepSeek model, which drafts as an EAGLE head does.

    ``max_positions`` is the length of the RoPE table, by default the target's ``max_position_embeddings``: published
    heads were trained on short texts and state a limit of their own, which no server minds. Raises CheckpointError if
    the folder, its config or a tensor is not such a head's, or not one for this target; InvalidOption if the folder
    holds a draft for another algorithm.
    """
    checkpoint = Checkpoint(Path(path))
    where = str(checkpoint.config_file)
    wanted = (EAGLE_HEAD, LATENT_NEXTN_LAYER) if algorithm == "EAGLE" else (EAGLE3_HEAD,)
    if require_kind(checkpoint, algorithm, *wanted) == LATENT_NEXTN_LAYER:
        return load_nextn(checkpoint, target, max_positions)
    options = Eagle3Options.from_dict(checkpoint.config, where)
    config = LlamaConfig.from_dict(options.decoder, where)
    if config.vocab_size != target.config.vocab_size:
        problem = f"vocab_size {config.vocab_size} is not the target's {target.config.vocab_size}"
        raise CheckpointError(f"{where}: {problem}; this head drafts for another model")
    weights = Weights(checkpoint, config, target.embedding.dtype, target.embedding.device)
    draft: EagleDraft | Eagle3Draft
    if algorithm == "EAGLE":
        draft = build_eagle(weights, target, max_positions)
        # a head saved together with a copy of the target's lm_head still drafts with the target's own
        checkpoint.refuse_leftovers(ignored=("lm_head.weight",))
    else:
        draft = _build_eagle3(weights, target, options, max_positions)
        checkpoint.refuse_leftovers(ignored=("t2d",))
    return draft


def build_eagle(weights: Weights, target: TargetModel, max_positions: int | None = None) -> EagleDraft:
    """An EAGLE head of ``weights.config`` for ``target``; ``max_positions`` and errors as for ``load_draft``."""
    config, size = weights.config, weights.config.hidden_size
    if size != target.config.hidden_size:
        problem = f"hidden_size {size} is not the target's {target.config.hidden_size}"
        where = weights.checkpoint.config_file
        raise CheckpointError(f"{where}: {problem}; an EAGLE head shares the target's hidden and lm_head")
    rotary = _draft_rotary(weights, target, max_positions)
    layers: list[tuple[Norm | None, DecoderLayer]] = []
    for index in range(config.num_layers):
        norm_name = f"layers.{index}.input_layernorm.weight"
        norm = weights.norm(norm_name) if index or weights.has(norm_name) else None
        layers.append((norm, weights.layer(f"layers.{index}", index, rotary, norm, size)))
    fc = weights.linear(2 * size, ("fc.weight", size))
    return EagleDraft(
        config=config,
        num_layers=config.num_layers,
        vocab_size=target.lm_head.shape[1],
        target_feature_size=size,
        rotary=rotary,
        token=TokenShare(head_embedding(weights, target), None, fc[:size], fc_bias(weights)),
        fc=fc[size:],
        layers=tuple(layers),
        lm_head=target.lm_head,
    )


def _build_eagle3(
    weights: Weights, target: TargetModel, options: Eagle3Options, max_positions: int | None
) -> Eagle3Draft:
    config, size = weights.config, weights.config.hidden_size
    where = str(weights.checkpoint.config_file)
    if config.num_layers != 1:
        raise CheckpointError(f"{where}: num_hidden_layers {config.num_layers}; an EAGLE-3 head has one")
    aux_layers = options.aux_layers_for(target.config.num_layers, where)
    prefix = "layers.0" if weights.has("layers.0.hidden_norm.weight") else "midlayer"
    input_norm = weights.norm(f"{prefix}.input_layernorm.weight")
    hidden_norm = weights.norm(f"{prefix}.hidden_norm.weight")
    layer = weights.layer(prefix, 0, _draft_rotary(weights, target, max_positions), None, 2 * size)
    embedding = head_embedding(weights, target)
    final_norm = weights.norm("norm.weight")
    lm_head = _eagle3_lm_head(weights, target, embedding, options.draft_vocab_size or config.vocab_size)
    feature_size = len(aux_layers) * target.config.hidden_size
    return Eagle3Draft(
        config=config,
        num_layers=1,
        vocab_size=lm_head.shape[0],
        target_feature_size=feature_size,
        aux_layers=aux_layers,
        rotary=layer.rotary,
        fc=weights.linear(feature_size, ("fc.weight", size)),
        fc_bias=fc_bias(weights),
        token=TokenShare(embedding, input_norm, input_norm.fold_into(layer.qkv[:size]), layer.qkv_bias),
        hidden_norm=hidden_norm,
        residual_is_normed=options.norm_before_residual,
        layer=replace(layer, qkv=hidden_norm.fold_into(layer.qkv[size:]), qkv_bias=None),
        final_norm=final_norm,
        # a copy where folding writes, because the matrix may be the target's
        lm_head=final_norm.fold_into(as_weight(lm_head.clone() if final_norm.folds_gain else lm_head)),
        target_ids=_target_ids(weights, lm_head.shape[0]),
    )


def _draft_rotary(weights: Weights, target: TargetModel, max_positions: int | None) -> Rotary:
    return Rotary(weights.config, max_positions or target.config.max_position_embeddings, weights.device)


def fc_bias(weights: Weights) -> Tensor | None:
    """The bias [Hd] of a head's fc, if the checkpoint has one."""
    return weights.plain("fc.bias", weights.config.hidden_size) if weights.has("fc.bias") else None


def head_embedding(weights: Weights, target: TargetModel) -> Tensor:
    """The head's own token embedding [V, Hd], else the target's."""
    size = weights.config.hidden_size
    if weights.has("embed_tokens.weight"):
        return weights.plain("embed_tokens.weight", target.config.vocab_size, size)
    if size != target.config.hidden_size:
        problem = f"is missing, and the target's is {target.config.hidden_size} wide where the head needs {size}"
        raise weights.checkpoint.error("embed_tokens.weight", problem)
    return target.embedding


def _eagle3_lm_head(weights: Weights, target: TargetModel, embedding: Tensor, vocab_size: int) -> Tensor:
    """[Vd, Hd]: the head's own, else its embedding if they are tied, else the target's if that fits."""
    if weights.has("lm_head.weight"):
        return weights.plain("lm_head.weight", vocab_size, weights.config.hidden_size)
    if vocab_size == target.config.vocab_size:
        if weights.config.tie_word_embeddings:
            return embedding
        if weights.config.hidden_size == target.config.hidden_size:
            return target.lm_head.t()
    raise weights.checkpoint.error("lm_head.weight", "is missing, and the target's does not fit this head")


def _target_ids(weights: Weights, vocab_size: int) -> Tensor | None:
    """The target's id of each draft id, [Vd] i64, from the offsets ``d2t``; checked against the target and ``t2d``."""
    checkpoint, target_vocab_size = weights.checkpoint, weights.config.vocab_size
    name = weights.name("d2t")
    if name not in checkpoint:
        if vocab_size == target_vocab_size:
            return None
        problem = f"is missing, yet draft_vocab_size {vocab_size} is not the target's {target_vocab_size}"
        raise checkpoint.error("d2t", problem)
    ids = checkpoint.any(name, vocab_size).long() + torch.arange(vocab_size)
    if bool(((ids < 0) | (ids >= target_vocab_size)).any()):
        problem = f"leads outside {target_vocab_size} target ids; it holds offsets: target id = i + d2t[i]"
        raise checkpoint.error(name, problem)
    if "t2d" in checkpoint and not bool(checkpoint.any("t2d", target_vocab_size).bool()[ids].all()):
        problem = "leads to ids that t2d does not list; it must hold offsets, target id = i + d2t[i]"
        raise checkpoint.error(name, problem)
    return ids.to(weights.device)
