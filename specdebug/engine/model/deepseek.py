"""From a checkpoint folder to a DeepSeek target with latent attention, or to its next-n layer as a draft head.

Tensors have their published names. A next-n layer has the number that follows the target's last one, so that a folder
may hold both models; of such a folder each loader reads its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.checkpoint import Checkpoint, TensorSource
from specdebug.engine.model.deepseek_config import LATENT_NORM_EPS, DeepseekConfig, ExpertsConfig
from specdebug.engine.model.draft import NormedPair
from specdebug.engine.model.experts import RoutedExperts
from specdebug.engine.model.latent import DenseMlp, FeedForward, LatentLayer
from specdebug.engine.model.latent_rope import LatentRotary
from specdebug.engine.model.layers import Norm
from specdebug.engine.model.linear import as_weight, empty_weights
from specdebug.engine.model.llama import TargetModel
from specdebug.engine.model.nextn import NextnDraft
from specdebug.engine.model.rope import interleave_pairs
from specdebug.engine.model.weights import ModelWeights


class DeepseekWeights(ModelWeights):
    """Reads the layers of one DeepSeek model."""

    def __init__(
        self, checkpoint: TensorSource, config: DeepseekConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(checkpoint, config, dtype, device)
        self.config = config

    def rotary(self, max_positions: int | None) -> LatentRotary:
        """The table of ``max_positions``, by default the model's ``max_position_embeddings``."""
        config = self.config
        positions = max_positions or config.max_position_embeddings
        return LatentRotary(config.qk_rope_head_dim, config.rope_theta, positions, self.device)

    def latent_layer(self, prefix: str, index: int, rotary: LatentRotary, norm: Norm, *, sparse: bool) -> LatentLayer:
        """Layer ``index`` behind ``norm``, its tensors under ``prefix``; ``sparse``: with routed experts."""
        config, attention = self.config, f"{prefix}.self_attn"
        size, rank = config.hidden_size, config.q_lora_rank
        q_norm = q_up = None
        if rank is None:
            queries = self._queries(f"{attention}.q_proj.weight", size)
        else:
            queries = self.checkpoint.floats(self.name(f"{attention}.q_a_proj.weight"), rank, size)
            q_norm = Norm(self.plain(f"{attention}.q_a_layernorm.weight", rank), LATENT_NORM_EPS)
            q_up = q_norm.fold_into(self.fuse(rank, [self._queries(f"{attention}.q_b_proj.weight", rank)]))
        latent_norm = Norm(self.plain(f"{attention}.kv_a_layernorm.weight", config.kv_lora_rank), LATENT_NORM_EPS)
        k_up, v_up = self._up_projections(f"{attention}.kv_b_proj.weight")
        output = (f"{attention}.o_proj.weight", size)
        return LatentLayer(
            layer_id=index,
            rotary=rotary,
            projection=norm.fold_into(self.fuse(size, [queries, self._row(f"{attention}.kv_a_proj_with_mqa.weight")])),
            q_norm=q_norm,
            q_up=q_up,
            latent_norm=latent_norm,
            k_up=k_up,
            v_up=v_up,
            output=self.fused(config.num_heads * config.v_head_dim, output),
            mlp=self._mlp(prefix, sparse),
        )

    def _queries(self, name: str, size_in: int) -> Tensor:
        """Rows [Hq*(Dn+R), in], of each head the last R with the pairs of RoPE adjacent."""
        config = self.config
        rows = self.checkpoint.floats(self.name(name), config.q_size, size_in)
        if config.rope_interleave:
            return rows
        by_head = rows.view(config.num_heads, config.qk_head_dim, size_in).clone()
        parts = by_head[:, config.qk_nope_head_dim :]
        parts.copy_(interleave_pairs(parts.reshape(-1, size_in), config.qk_rope_head_dim).view_as(parts))
        return by_head.flatten(0, 1)

    def _row(self, name: str) -> Tensor:
        """Rows [C + R, hidden], the last R with the pairs of RoPE adjacent."""
        config = self.config
        rows = self.checkpoint.floats(self.name(name), config.head_dim, config.hidden_size)
        if config.rope_interleave:
            return rows
        part = interleave_pairs(rows[config.kv_lora_rank :], config.qk_rope_head_dim)
        return torch.cat((rows[: config.kv_lora_rank], part))

    def _up_projections(self, name: str) -> tuple[Tensor, Tensor]:
        """W_UK transposed [Hq, Dn, C] and W_UV [Hq, C, Dv]."""
        config = self.config
        heads, nope = config.num_heads, config.qk_nope_head_dim
        stored = self.plain(name, heads * (nope + config.v_head_dim), config.kv_lora_rank)
        by_head = stored.view(heads, -1, config.kv_lora_rank)
        v_up = empty_weights(heads, config.kv_lora_rank, config.v_head_dim, self.dtype, self.device)
        return by_head[:, :nope].contiguous(), v_up.copy_(by_head[:, nope:].transpose(1, 2))

    def _mlp(self, prefix: str, sparse: bool) -> FeedForward:
        norm = self.norm(f"{prefix}.post_attention_layernorm.weight")
        if not sparse:
            gate_up, down = self._gated(f"{prefix}.mlp", self.config.intermediate_size)
            return DenseMlp(norm, norm.fold_into(gate_up), down)
        experts = self.config.experts
        if experts is None:
            raise self.checkpoint.error(f"{prefix}.mlp.gate.weight", "routes to experts, but the config names none")
        return self._experts(f"{prefix}.mlp", norm, experts)

    def _gated(self, prefix: str, inner: int) -> tuple[Tensor, Tensor]:
        """Gate and up in one, and down, of an MLP of that inner size."""
        size = self.config.hidden_size
        gates = [(f"{prefix}.{part}_proj.weight", inner) for part in ("gate", "up")]
        return self.fused(size, *gates), self.fused(inner, (f"{prefix}.down_proj.weight", size))

    def _experts(self, prefix: str, norm: Norm, config: ExpertsConfig) -> RoutedExperts:
        size, inner = self.config.hidden_size, config.intermediate_size
        # before anything of that many experts is made
        router = self.checkpoint.floats(self.name(f"{prefix}.gate.weight"), config.count, size)
        bias = self.checkpoint.floats(self.name(f"{prefix}.gate.e_score_correction_bias"), config.count)
        count = config.count + config.shared
        gate_up = empty_weights(count, size, 2 * inner, self.dtype, self.device)
        down = empty_weights(count, inner, size, self.dtype, self.device)
        for expert in range(config.count):  # one at a time, so that they are never held twice
            gates, back = self._gated(f"{prefix}.experts.{expert}", inner)
            gate_up[expert], down[expert] = gates, back
        if config.shared:  # the checkpoint has them side by side, as one wide MLP
            gates, back = self._gated(f"{prefix}.shared_experts", config.shared * inner)
            by_half = gates.view(size, 2, config.shared, inner)
            gate_up[config.count :] = by_half.permute(2, 0, 1, 3).reshape(config.shared, size, 2 * inner)
            down[config.count :] = back.view(config.shared, inner, size)
        return RoutedExperts(
            config=config,
            norm=norm,
            router=as_weight(router.to(self.device, torch.float32)),
            bias=bias.to(self.device, torch.float32),
            gate_up=gate_up,
            down=down,
        )


def load_deepseek(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, max_positions: int | None
) -> TargetModel:
    """Load the target of a checkpoint; arguments and errors as for ``loader.load_target``."""
    config = DeepseekConfig.from_dict(checkpoint.config, str(checkpoint.config_file))
    target = build_deepseek(DeepseekWeights(checkpoint, config, dtype, device), max_positions)
    nextn = [f"model.layers.{config.num_layers + i}." for i in range(config.num_nextn_layers)]
    tied = ["lm_head.weight"] if config.tie_word_embeddings else []
    checkpoint.refuse_leftovers(ignored=[*tied, *checkpoint.names_under(*nextn)])
    return target


def build_deepseek(weights: DeepseekWeights, max_positions: int | None = None) -> TargetModel:
    """The target of ``weights.config``; ``max_positions`` and errors as for ``load_deepseek``."""
    config, rotary = weights.config, weights.rotary(max_positions)
    embedding = weights.plain("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        norm = weights.norm(f"{prefix}.input_layernorm.weight")
        sparse = index >= config.first_k_dense_replace
        layers.append((norm, weights.latent_layer(prefix, index, rotary, norm, sparse=sparse)))
    final_norm = weights.norm("model.norm.weight")
    tied = config.tie_word_embeddings
    lm_head = embedding if tied else weights.plain("lm_head.weight", config.vocab_size, config.hidden_size)
    return TargetModel(config, rotary, embedding, tuple(layers), final_norm, as_weight(lm_head))


def load_nextn(checkpoint: Checkpoint, target: TargetModel, max_positions: int | None) -> NextnDraft:
    """Load the one next-n layer of a checkpoint as a draft head; arguments and errors as for ``loader.load_draft``."""
    where = checkpoint.config_file
    config = DeepseekConfig.from_dict(checkpoint.config, str(where))
    for key, ours, its in (
        ("vocab_size", config.vocab_size, target.config.vocab_size),
        ("hidden_size", config.hidden_size, target.config.hidden_size),
    ):
        if ours != its:
            raise CheckpointError(f"{where}: {key} {ours} is not the target's {its}; it drafts for another model")
    draft = build_nextn(
        DeepseekWeights(checkpoint, config, target.embedding.dtype, target.embedding.device), target, max_positions
    )
    prefix = f"model.layers.{config.num_layers}."
    checkpoint.refuse_leftovers(ignored=set(checkpoint.names_under("")) - set(checkpoint.names_under(prefix)))
    return draft


def build_nextn(weights: DeepseekWeights, target: TargetModel, max_positions: int | None = None) -> NextnDraft:
    """The next-n layer of ``weights.config`` for ``target``; ``max_positions`` and errors as for ``load_draft``."""
    config = weights.config
    size, prefix = config.hidden_size, f"model.layers.{config.num_layers}"
    rotary = weights.rotary(max_positions or target.config.max_position_embeddings)
    token_norm, hidden_norm = weights.norm(f"{prefix}.enorm.weight"), weights.norm(f"{prefix}.hnorm.weight")
    fused = weights.fused(2 * size, (f"{prefix}.eh_proj.weight", size))
    layer_norm = weights.norm(f"{prefix}.input_layernorm.weight")
    final_norm = weights.norm(f"{prefix}.shared_head.norm.weight")
    embedding, lm_head = target.embedding, target.lm_head
    if weights.has(f"{prefix}.embed_tokens.weight"):
        embedding = weights.plain(f"{prefix}.embed_tokens.weight", config.vocab_size, size)
    if weights.has(f"{prefix}.shared_head.head.weight"):
        lm_head = as_weight(weights.plain(f"{prefix}.shared_head.head.weight", config.vocab_size, size))
    return NextnDraft(
        config=config,
        num_layers=1,
        vocab_size=config.vocab_size,
        target_feature_size=size,
        rotary=rotary,
        fused=NormedPair(embedding, token_norm, hidden_norm, fused),
        layer_norm=layer_norm,
        layer=weights.latent_layer(prefix, 0, rotary, layer_norm, sparse=weights.has(f"{prefix}.mlp.gate.weight")),
        final_norm=final_norm,
        lm_head=lm_head,
    )
