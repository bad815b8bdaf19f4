"""Tensors of a checkpoint in the form that layers use: cast, fused, transposed, gains folded in."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from specdebug.engine.model.checkpoint import Checkpoint
from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.deepseek_config import LATENT_NORM_EPS, DeepseekConfig, ExpertsConfig
from specdebug.engine.model.interface import DecoderConfig
from specdebug.engine.model.latent import DenseMlp, FeedForward, LatentLayer, RoutedExperts
from specdebug.engine.model.layers import DecoderLayer, Norm, QueryLayer, as_weight, empty_weight
from specdebug.engine.model.rope import LatentRotary, Rotary, interleave_pairs, paired

C = TypeVar("C", bound=DecoderConfig)


class ModelWeights(Generic[C]):
    """Reads one checkpoint for one model of any family; every method raises CheckpointError for an unfit tensor."""

    def __init__(self, checkpoint: Checkpoint, config: C, dtype: torch.dtype, device: torch.device) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.dtype = dtype
        self.device = device

    def name(self, name: str) -> str:
        """``name`` as this checkpoint spells it: some publishers of heads put ``model.`` before it."""
        longer = f"model.{name}"
        return longer if name not in self.checkpoint and longer in self.checkpoint else name

    def has(self, name: str) -> bool:
        """True if the checkpoint holds ``name`` in either spelling."""
        return self.name(name) in self.checkpoint

    def plain(self, name: str, *shape: int) -> Tensor:
        """The tensor in its stored layout."""
        return self.checkpoint.floats(self.name(name), *shape).to(self.device, self.dtype)

    def norm(self, name: str) -> Norm:
        """The norm of weight ``name`` [hidden_size]."""
        return Norm(self.plain(name, self.config.hidden_size), self.config.rms_norm_eps)

    def linear(self, size_in: int, *parts: tuple[str, int], rotated: int = 0) -> Tensor:
        """Fuse projections of one input to [size_in, sum of outputs]; RoPE turns the first ``rotated`` of them."""
        stored = [self.checkpoint.floats(self.name(name), size, size_in) for name, size in parts]
        return self.fuse(size_in, stored, rotated)

    def fuse(self, size_in: int, stored: Sequence[Tensor], rotated: int = 0) -> Tensor:
        """Fuse rows [out, size_in] as a checkpoint holds them; else as :meth:`linear`."""
        fused = empty_weight(size_in, sum(rows.shape[0] for rows in stored), self.dtype, self.device)
        start = 0
        for index, rows in enumerate(stored):
            place = fused[:, start : start + rows.shape[0]].t()
            start += rows.shape[0]
            if index < rotated:  # through views on both sides, so that nothing is copied twice
                rows = paired(rows, self.config.head_dim)
                place = place.view(rows.shape)
            place.copy_(rows)
        return fused

    def gated(self, prefix: str, inner: int) -> tuple[Tensor, Tensor]:
        """Gate and up in one, and down, of an MLP of that inner size."""
        size = self.config.hidden_size
        gates = [(f"{prefix}.{part}_proj.weight", inner) for part in ("gate", "up")]
        return self.linear(size, *gates), self.linear(inner, (f"{prefix}.down_proj.weight", size))


class Weights(ModelWeights[LlamaConfig]):
    """Reads the layers of a model of Llama's family."""

    def rotary(self, max_positions: int | None) -> Rotary:
        """The table of ``max_positions``, by default the model's ``max_position_embeddings``."""
        return Rotary(self.config, max_positions or self.config.max_position_embeddings, self.device)

    def layer(self, prefix: str, index: int, rotary: Rotary, norm: Norm | None, size_in: int) -> DecoderLayer:
        """Layer ``index``, its tensors under ``prefix``; its q, k and v read ``norm``, ``size_in`` wide."""
        config, attention = self.config, f"{prefix}.self_attn"
        sizes = {"q": config.q_size, "k": config.kv_size, "v": config.kv_size}
        qkv = self.linear(size_in, *((f"{attention}.{n}_proj.weight", size) for n, size in sizes.items()), rotated=2)
        bias = None
        if config.qkv_bias:
            q, k, v = (self.plain(f"{attention}.{name}_proj.bias", size) for name, size in sizes.items())
            bias = torch.cat((interleave_pairs(q, config.head_dim), interleave_pairs(k, config.head_dim), v))
        rest = self._after_attention(prefix)
        return DecoderLayer(
            layer_id=index, rotary=rotary, qkv=norm.fold_into(qkv) if norm else qkv, qkv_bias=bias, **rest
        )

    def query_layer(self, prefix: str, target_layer: int, rotary: Rotary) -> QueryLayer:
        """A layer of queries alone, its tensors under ``prefix``; it reads the KV of the target's ``target_layer``."""
        norm = self.norm(f"{prefix}.input_layernorm.weight")
        queries = (f"{prefix}.self_attn.q_proj.weight", self.config.q_size)
        q = norm.fold_into(self.linear(self.config.hidden_size, queries, rotated=1))
        return QueryLayer(target_layer=target_layer, rotary=rotary, norm=norm, q=q, **self._after_attention(prefix))

    def _after_attention(self, prefix: str) -> dict[str, Any]:
        """The fields of ``AfterAttention``."""
        config, output = self.config, f"{prefix}.self_attn.o_proj"
        mlp_norm = self.norm(f"{prefix}.post_attention_layernorm.weight")
        gate_up, down = self.gated(f"{prefix}.mlp", config.intermediate_size)
        return {
            "output": self.linear(config.q_size, (f"{output}.weight", config.hidden_size)),
            "output_bias": self.plain(f"{output}.bias", config.hidden_size) if config.output_bias else None,
            "mlp_norm": mlp_norm,
            "gate_up": mlp_norm.fold_into(gate_up),
            "down": down,
        }


class DeepseekWeights(ModelWeights[DeepseekConfig]):
    """Reads the layers of a DeepSeek model."""

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
        return LatentLayer(
            layer_id=index,
            rotary=rotary,
            projection=norm.fold_into(self.fuse(size, [queries, self._row(f"{attention}.kv_a_proj_with_mqa.weight")])),
            q_norm=q_norm,
            q_up=q_up,
            latent_norm=latent_norm,
            k_up=k_up,
            v_up=v_up,
            output=self.linear(config.num_heads * config.v_head_dim, (f"{attention}.o_proj.weight", size)),
            mlp=self._mlp(prefix, sparse),
        )

    def _queries(self, name: str, size_in: int) -> Tensor:
        """Rows [Hq*(Dn+R), in], of each head the last R with the pairs of RoPE adjacent."""
        config = self.config
        rows = self.checkpoint.floats(self.name(name), config.num_heads * config.qk_head_dim, size_in)
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
        v_up = empty_weight(config.kv_lora_rank, config.v_head_dim, self.dtype, self.device, heads)
        return by_head[:, :nope].contiguous(), v_up.copy_(by_head[:, nope:].transpose(1, 2))

    def _mlp(self, prefix: str, sparse: bool) -> FeedForward:
        norm = self.norm(f"{prefix}.post_attention_layernorm.weight")
        if not sparse:
            gate_up, down = self.gated(f"{prefix}.mlp", self.config.intermediate_size)
            return DenseMlp(norm, norm.fold_into(gate_up), down)
        if self.config.experts is None:
            raise self.checkpoint.error(f"{prefix}.mlp.gate.weight", "routes to experts, but the config names none")
        return self._experts(f"{prefix}.mlp", norm, self.config.experts)

    def _experts(self, prefix: str, norm: Norm, config: ExpertsConfig) -> RoutedExperts:
        size, inner = self.config.hidden_size, config.intermediate_size
        # before anything of that many experts is made
        router = self.checkpoint.floats(self.name(f"{prefix}.gate.weight"), config.count, size)
        bias = self.checkpoint.floats(self.name(f"{prefix}.gate.e_score_correction_bias"), config.count)
        count = config.count + config.shared
        gate_up = empty_weight(size, 2 * inner, self.dtype, self.device, count)
        down = empty_weight(inner, size, self.dtype, self.device, count)
        for expert in range(config.count):  # one at a time, so that they are never held twice
            gate_up[expert], down[expert] = self.gated(f"{prefix}.experts.{expert}", inner)
        if config.shared:  # the checkpoint has them side by side, as one wide MLP
            gates, back = self.gated(f"{prefix}.shared_experts", config.shared * inner)
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
