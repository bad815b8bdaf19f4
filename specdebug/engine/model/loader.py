"""From a checkpoint folder to a model; every mismatch is reported in one line.

Tensors have their published names: Llama's and DeepSeek's for targets; ``fc``, ``layers.N`` for EAGLE heads; ``fc``,
``midlayer`` (or ``layers.0``, as speculators for vLLM write it), ``norm``, ``lm_head``, ``d2t`` and ``t2d`` for EAGLE-3
heads; ``fc``, ``layers.N`` without k and v projections and ``norm`` for assistants. Next-n layer i is, as DeepSeek-V3
publishes it, ``model.layers.{num_hidden_layers + i}``, so that a folder may hold the target, too; of such a folder each
loader reads its own.

Published EAGLE heads carry the architecture of their target, and often more of its ``config.json``, so that alone it
does not tell a head from anything else. The names of the tensors do: every kind has some that no other has.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from specdebug.base.assets import name_of
from specdebug.base.errors import CheckpointError, InvalidOption
from specdebug.engine.model.checkpoint import Checkpoint
from specdebug.engine.model.config import (
    LLAMA_ARCHITECTURES,
    Eagle3Options,
    Keys,
    LlamaConfig,
    architecture_of,
    shown,
    target_kv_layers,
)
from specdebug.engine.model.deepseek_config import DEEPSEEK_ARCHITECTURE, NEXTN_ARCHITECTURE, DeepseekConfig
from specdebug.engine.model.interface import DecoderConfig, DraftModel, Layer, PositionTable
from specdebug.engine.model.layers import DecoderLayer, Norm, as_weight
from specdebug.engine.model.models import (
    AssistantDraft,
    Eagle3Draft,
    EagleDraft,
    MTPDraft,
    NextnDraft,
    NextNLayer,
    NormedPair,
    TargetModel,
    TokenShare,
)
from specdebug.engine.model.weights import DeepseekWeights, ModelWeights, Weights


@dataclass(frozen=True)
class DraftKind:
    """``name``: in a message, with its article. ``algorithm``: the value of ``speculative.algorithm`` that drafts with
    it; None where none does."""

    name: str
    algorithm: str | None


EAGLE_HEAD = DraftKind("an EAGLE head", "EAGLE")
EAGLE3_HEAD = DraftKind("an EAGLE-3 head", "EAGLE3")
NEXTN_LAYERS = DraftKind("next-n layers of Llama's family", "MTP")
ASSISTANT = DraftKind("a frozen-KV assistant", "FROZEN_KV_MTP")
LATENT_NEXTN_LAYER = DraftKind("one next-n layer of a latent (MLA) model", "EAGLE")
WHOLE_MODEL = DraftKind("a whole model without next-n layers", None)

_FUSING = ".eh_proj.weight"
"""Only next-n layers have it."""
_WHOLE = {"model.embed_tokens.weight", "model.layers.0.input_layernorm.weight", "model.norm.weight"}
"""Without ``fc`` or next-n layers beside them, these are a target's."""


def kind_of(config: Mapping[str, Any], names: Collection[str]) -> DraftKind | None:
    """The kind of draft in a checkpoint of this ``config.json`` and these tensors. None where they do not tell for
    sure, as of a checkpoint that lacks tensors."""
    for prefix in (name.removesuffix(_FUSING) for name in names if name.endswith(_FUSING)):
        if f"{prefix}.self_attn.k_proj.weight" in names and f"{prefix}.mlp.up_proj.weight" in names:
            return NEXTN_LAYERS  # keys by head and no experts
    if _has("midlayer.hidden_norm.weight", names) or _has("layers.0.hidden_norm.weight", names):
        return EAGLE3_HEAD  # no other layer norms the hidden that it is given
    if _has("fc.weight", names):
        if _has("layers.0.self_attn.k_proj.weight", names):
            return EAGLE_HEAD
        return ASSISTANT if _has("layers.0.self_attn.q_proj.weight", names) else None
    architecture, layers = architecture_of(config), config.get("num_nextn_predict_layers") or 0
    if architecture == NEXTN_ARCHITECTURE or (architecture == DEEPSEEK_ARCHITECTURE and layers):
        if layers == 1 or type(layers) is not int:  # what is no number is for the config's reader to refuse
            return LATENT_NEXTN_LAYER
        return DraftKind(f"{shown(layers)} next-n layers (num_nextn_predict_layers) of a latent (MLA) model", None)
    return WHOLE_MODEL if not layers and _WHOLE.issubset(names) else None


def _has(name: str, names: Collection[str]) -> bool:
    return name in names or f"model.{name}" in names


def require_kind(checkpoint: Checkpoint, algorithm: str, *wanted: DraftKind) -> DraftKind | None:
    """Return the checkpoint's kind: one of those ``wanted`` for ``algorithm``, or None where it cannot be told.
    Raises InvalidOption for another: at the algorithm if there is one for it, else at the draft."""
    kind = kind_of(checkpoint.config, checkpoint.names)
    if kind is None or kind in wanted:
        return kind
    needed = " or ".join(each.name for each in wanted)
    holds = f"{name_of(checkpoint.folder)} holds {kind.name}"
    if kind.algorithm is None:
        problem = f"{holds}, with which no algorithm drafts; for {algorithm} give {needed}"
        raise InvalidOption(problem, ("speculative", "draft_model"))
    problem = f"{algorithm} drafts with {needed}, and {holds}; set {kind.algorithm}"
    raise InvalidOption(problem, ("speculative", "algorithm"))


# --- targets ---


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
    checkpoint, device = Checkpoint(Path(path)), torch.device(device)
    where = str(checkpoint.config_file)
    unread: list[str] = []
    config: LlamaConfig | DeepseekConfig
    if require_target_architecture(checkpoint.config, where) == DEEPSEEK_ARCHITECTURE:
        config = DeepseekConfig.from_dict(checkpoint.config, where)
        target = build_deepseek(DeepseekWeights(checkpoint, config, dtype, device), max_positions)
        nextn = [f"model.layers.{config.num_layers + i}." for i in range(config.num_nextn_layers)]
        unread = checkpoint.names_under(*nextn)
    else:
        config = LlamaConfig.from_dict(checkpoint.config, where)
        target = build_target(Weights(checkpoint, config, dtype, device), max_positions)
    checkpoint.refuse_leftovers(ignored=[*unread, *(["lm_head.weight"] if config.tie_word_embeddings else [])])
    return target


def require_target_architecture(data: Mapping[str, Any], where: str) -> str:
    """The architecture of a ``config.json``, one that the target loader reads.
    Raises CheckpointError if it is absent or another one."""
    known = (*LLAMA_ARCHITECTURES, DEEPSEEK_ARCHITECTURE)
    found = architecture_of(data)
    if found not in known:
        listed, named = ", ".join(known), shown(data.get("architectures"))
        raise CheckpointError(f"{where}: architecture {named} is none of {listed}; give one of those")
    return found


def build_target(weights: Weights, max_positions: int | None = None) -> TargetModel:
    """The target of ``weights.config``; ``max_positions`` and errors as for ``load_target``."""
    rotary, size = weights.rotary(max_positions), weights.config.hidden_size
    return _around(weights, rotary, lambda prefix, index, norm: weights.layer(prefix, index, rotary, norm, size))


def build_deepseek(weights: DeepseekWeights, max_positions: int | None = None) -> TargetModel:
    """The same of DeepSeek's family."""
    rotary, first = weights.rotary(max_positions), weights.config.first_k_dense_replace
    return _around(
        weights,
        rotary,
        lambda prefix, index, norm: weights.latent_layer(prefix, index, rotary, norm, sparse=index >= first),
    )


def _around(
    weights: Weights | DeepseekWeights, rotary: PositionTable, layer: Callable[[str, int, Norm], Layer]
) -> TargetModel:
    """A target around layers, each made of its prefix, its index and the norm before it."""
    config = weights.config
    embedding = weights.plain("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        norm = weights.norm(f"{prefix}.input_layernorm.weight")
        layers.append((norm, layer(prefix, index, norm)))
    final_norm = weights.norm("model.norm.weight")
    tied = config.tie_word_embeddings
    lm_head = embedding if tied else weights.plain("lm_head.weight", config.vocab_size, config.hidden_size)
    return TargetModel(config, rotary, embedding, tuple(layers), final_norm, as_weight(lm_head))


# --- draft heads ---


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
        return _load_nextn(checkpoint, target, max_positions)
    options = Eagle3Options.from_dict(checkpoint.config, where)
    config = LlamaConfig.from_dict(options.decoder, where)
    _require_fit(config, target.config, where, "vocab_size")
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


_KEYS = {"num_kv_heads": "num_key_value_heads", "num_layers": "num_hidden_layers"}
"""Spelled otherwise in ``config.json``."""


def _require_fit(
    config: DecoderConfig, target: DecoderConfig, where: str, *names: str, use: str = "drafts for"
) -> None:
    """Raise CheckpointError where a draft was made for another target."""
    for name in names:
        ours, theirs = getattr(config, name), getattr(target, name)
        if ours != theirs:
            problem = f"{_KEYS.get(name, name)} {ours} is not the target's {theirs}"
            raise CheckpointError(f"{where}: {problem}; it {use} another model")


def build_eagle(weights: Weights, target: TargetModel, max_positions: int | None = None) -> EagleDraft:
    """An EAGLE head of ``weights.config`` for ``target``; ``max_positions`` and errors as for ``load_draft``."""
    config, size = weights.config, weights.config.hidden_size
    if size != target.config.hidden_size:
        problem = f"hidden_size {size} is not the target's {target.config.hidden_size}"
        where = weights.checkpoint.config_file
        raise CheckpointError(f"{where}: {problem}; an EAGLE head shares the target's hidden and lm_head")
    rotary = weights.rotary(max_positions or target.config.max_position_embeddings)
    layers: list[tuple[Norm | None, DecoderLayer]] = []
    for index in range(config.num_layers):
        norm_name = f"layers.{index}.input_layernorm.weight"
        norm = weights.norm(norm_name) if index or weights.has(norm_name) else None
        layers.append((norm, weights.layer(f"layers.{index}", index, rotary, norm, size)))
    token, fc = _fused_token(weights, target)
    return EagleDraft(
        config=config,
        num_layers=config.num_layers,
        vocab_size=target.lm_head.shape[1],
        target_feature_size=size,
        rotary=rotary,
        token=token,
        fc=fc,
        layers=tuple(layers),
        lm_head=target.lm_head,
    )


def _fused_token(weights: Weights, target: TargetModel) -> tuple[TokenShare, Tensor]:
    """The embedding's share of a head's fc, and its other half [H, H]."""
    size = weights.config.hidden_size
    fc = weights.linear(2 * size, ("fc.weight", size))
    return TokenShare(_head_embedding(weights, target), None, fc[:size], _fc_bias(weights)), fc[size:]


def _fc_bias(weights: Weights) -> Tensor | None:
    return weights.plain("fc.bias", weights.config.hidden_size) if weights.has("fc.bias") else None


def _head_embedding(weights: Weights, target: TargetModel) -> Tensor:
    """The head's own token embedding [V, Hd], else the target's."""
    size = weights.config.hidden_size
    if weights.has("embed_tokens.weight"):
        return weights.plain("embed_tokens.weight", target.config.vocab_size, size)
    if size != target.config.hidden_size:
        problem = f"is missing, and the target's is {target.config.hidden_size} wide where the head needs {size}"
        raise weights.checkpoint.error("embed_tokens.weight", problem)
    return target.embedding


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
    rotary = weights.rotary(max_positions or target.config.max_position_embeddings)
    layer = weights.layer(prefix, 0, rotary, None, 2 * size)
    embedding = _head_embedding(weights, target)
    final_norm = weights.norm("norm.weight")
    lm_head = _eagle3_lm_head(weights, target, embedding, options.draft_vocab_size or config.vocab_size)
    feature_size = len(aux_layers) * target.config.hidden_size
    return Eagle3Draft(
        config=config,
        num_layers=1,
        vocab_size=lm_head.shape[0],
        target_feature_size=feature_size,
        aux_layers=aux_layers,
        rotary=rotary,
        fc=weights.linear(feature_size, ("fc.weight", size)),
        fc_bias=_fc_bias(weights),
        token=TokenShare(embedding, input_norm, input_norm.fold_into(layer.qkv[:size]), layer.qkv_bias),
        hidden_norm=hidden_norm,
        residual_is_normed=options.norm_before_residual,
        layer=replace(layer, qkv=hidden_norm.fold_into(layer.qkv[size:]), qkv_bias=None),
        final_norm=final_norm,
        # a copy where folding writes, because the matrix may be the target's
        lm_head=final_norm.fold_into(as_weight(lm_head.clone() if final_norm.folds_gain else lm_head)),
        target_ids=_target_ids(weights, lm_head.shape[0]),
    )


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


# --- next-n layers ---


def _load_nextn(checkpoint: Checkpoint, target: TargetModel, max_positions: int | None) -> NextnDraft:
    """The one next-n layer of a DeepSeek model, as a draft head."""
    where = str(checkpoint.config_file)
    config = DeepseekConfig.from_dict(checkpoint.config, where)
    _require_fit(config, target.config, where, "vocab_size", "hidden_size")
    weights = DeepseekWeights(checkpoint, config, target.embedding.dtype, target.embedding.device)
    prefix = f"model.layers.{config.num_layers}"
    rotary = weights.rotary(max_positions or target.config.max_position_embeddings)
    fused, layer_norm, final_norm, lm_head = _nextn_parts(weights, target, prefix)
    draft = NextnDraft(
        config=config,
        num_layers=1,
        vocab_size=config.vocab_size,
        target_feature_size=config.hidden_size,
        rotary=rotary,
        fused=fused,
        layer_norm=layer_norm,
        layer=weights.latent_layer(prefix, 0, rotary, layer_norm, sparse=weights.has(f"{prefix}.mlp.gate.weight")),
        final_norm=final_norm,
        lm_head=lm_head,
    )
    checkpoint.refuse_leftovers(ignored=set(checkpoint.names) - set(checkpoint.names_under(f"{prefix}.")))
    return draft


def _nextn_parts(weights: ModelWeights[Any], target: TargetModel, prefix: str) -> tuple[NormedPair, Norm, Norm, Tensor]:
    """What is around a next-n layer: token and hidden fused, the norms before and behind it, and its head [H, V];
    embedding and head are the target's unless it has its own."""
    vocab, size = weights.config.vocab_size, weights.config.hidden_size
    token_norm, hidden_norm = weights.norm(f"{prefix}.enorm.weight"), weights.norm(f"{prefix}.hnorm.weight")
    fused = weights.linear(2 * size, (f"{prefix}.eh_proj.weight", size))
    norms = [weights.norm(f"{prefix}.{name}.weight") for name in ("input_layernorm", "shared_head.norm")]
    embedding, lm_head = target.embedding, target.lm_head
    if weights.has(f"{prefix}.embed_tokens.weight"):
        embedding = weights.plain(f"{prefix}.embed_tokens.weight", vocab, size)
    if weights.has(f"{prefix}.shared_head.head.weight"):
        lm_head = as_weight(weights.plain(f"{prefix}.shared_head.head.weight", vocab, size))
    return NormedPair(embedding, token_norm, hidden_norm, fused), norms[0], norms[1], lm_head


def load_mtp(path: str | Path, *, algorithm: str, target: TargetModel, max_positions: int | None = None) -> MTPDraft:
    """Load the next-n layers at ``path``, whose folder may be the target's own; arguments and errors as for
    ``load_draft``."""
    checkpoint = Checkpoint(Path(path))
    where = str(checkpoint.config_file)
    require_kind(checkpoint, algorithm, NEXTN_LAYERS)
    keys = Keys(checkpoint.config, where)
    count, chained = keys.positive_int("num_nextn_predict_layers"), keys.flag("mtp_chain_hidden_states")
    config = LlamaConfig.from_dict(checkpoint.config, where)
    _require_fit(config, target.config, where, "vocab_size", "hidden_size", "num_layers")
    weights = Weights(checkpoint, config, target.embedding.dtype, target.embedding.device)
    draft = build_mtp(weights, target, count, max_positions, chained=chained)
    own = re.compile(r"(?:model\.)?layers\.(\d+)\.")
    numbers = {name: own.match(name) for name in checkpoint.names}
    others = [name for name, at in numbers.items() if at is None or int(at[1]) < config.num_layers]
    checkpoint.refuse_leftovers(ignored=others)
    return draft


def build_mtp(
    weights: Weights, target: TargetModel, num_layers: int, max_positions: int | None = None, *, chained: bool = False
) -> MTPDraft:
    """The next-n layers behind those of ``weights.config``, for ``target``; ``chained``: each reads the hidden of the
    one before it."""
    config = weights.config
    rotary = weights.rotary(max_positions or target.config.max_position_embeddings)
    layers = []
    for index in range(num_layers):
        prefix = f"model.layers.{config.num_layers + index}"
        fused, input_norm, head_norm, lm_head = _nextn_parts(weights, target, prefix)
        layer = weights.layer(prefix, index, rotary, input_norm, config.hidden_size)
        layers.append(NextNLayer(fused, input_norm, layer, head_norm, lm_head))
    return MTPDraft(
        config=config,
        num_layers=num_layers,
        vocab_size=config.vocab_size,
        target_feature_size=config.hidden_size,
        lookahead=num_layers,
        rotary=rotary,
        layers=tuple(layers),
        chain_hidden_states=chained,
    )


# --- assistants ---


def load_assistant(
    path: str | Path, *, algorithm: str, target: TargetModel, max_positions: int | None = None
) -> AssistantDraft:
    """Load the assistant at ``path``; ``target_kv_layers`` of its config says whose KV each layer reads. Arguments and
    errors as for ``load_draft``."""
    checkpoint = Checkpoint(Path(path))
    where = str(checkpoint.config_file)
    require_kind(checkpoint, algorithm, ASSISTANT)
    config = LlamaConfig.from_dict(checkpoint.config, where)
    if not isinstance(target.config, LlamaConfig):
        raise CheckpointError(f"{where}: an assistant reads keys and values by head, and this target stores latents")
    # its queries meet the target's keys, and its hidden state takes the place of the target's
    shared = ("vocab_size", "hidden_size", "num_kv_heads", "head_dim", "rope_theta", "rope_scaling")
    _require_fit(config, target.config, where, *shared, use="assists")
    if config.qkv_bias:
        raise CheckpointError(f"{where}: attention_bias true is not supported; an assistant's queries have no bias")
    weights = Weights(checkpoint, config, target.embedding.dtype, target.embedding.device)
    layers = target_kv_layers(checkpoint.config, where, config.num_layers, target.config.num_layers)
    assistant = build_assistant(weights, target, layers, max_positions)
    checkpoint.refuse_leftovers()
    return assistant


def build_assistant(
    weights: Weights, target: TargetModel, kv_layers: tuple[int, ...], max_positions: int | None = None
) -> AssistantDraft:
    """An assistant of ``weights.config`` for ``target``, whose layers read the KV of its ``kv_layers``."""
    config, size = weights.config, weights.config.hidden_size
    # a layer has query heads only, and the rotation knows no others
    queries = Weights(weights.checkpoint, replace(config, num_kv_heads=0), weights.dtype, weights.device)
    rotary = queries.rotary(max_positions or target.config.max_position_embeddings)
    token, fc = _fused_token(weights, target)
    own_head = weights.has("lm_head.weight")
    lm_head = as_weight(weights.plain("lm_head.weight", config.vocab_size, size)) if own_head else target.lm_head
    return AssistantDraft(
        config=config,
        num_layers=0,
        lookahead=0,
        vocab_size=config.vocab_size,
        target_feature_size=size,
        rotary=rotary,
        token=token,
        fc=fc,
        layers=tuple(weights.query_layer(f"layers.{n}", layer, rotary) for n, layer in enumerate(kv_layers)),
        final_norm=weights.norm("norm.weight"),
        lm_head=lm_head,
    )
