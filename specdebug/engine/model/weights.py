"""Tensors of a checkpoint in the form that layers use: cast, fused, transposed, gains folded in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdebug.engine.model.checkpoint import TensorSource
from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.interface import DecoderConfig
from specdebug.engine.model.layers import DecoderLayer, Norm, QueryLayer
from specdebug.engine.model.linear import empty_weight
from specdebug.engine.model.rope import Rotary, interleave_pairs, paired


class ModelWeights:
    """Reads one checkpoint for one model of any family; every method raises CheckpointError for an unfit tensor."""

    def __init__(
        self, checkpoint: TensorSource, config: DecoderConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.checkpoint = checkpoint
        self.model = config
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
        return Norm(self.plain(name, self.model.hidden_size), self.model.rms_norm_eps)

    def fused(self, size_in: int, *parts: tuple[str, int]) -> Tensor:
        """Fuse projections of one input to [size_in, sum of outputs]."""
        return self.fuse(size_in, [self.checkpoint.floats(self.name(name), size, size_in) for name, size in parts])

    def fuse(self, size_in: int, stored: Sequence[Tensor]) -> Tensor:
        """Fuse rows [out, size_in] as a checkpoint holds them to [size_in, sum of outputs]."""
        fused = empty_weight(size_in, sum(rows.shape[0] for rows in stored), self.dtype, self.device)
        start = 0
        for rows in stored:
            fused[:, start : start + rows.shape[0]].t().copy_(rows)
            start += rows.shape[0]
        return fused


class Weights(ModelWeights):
    """The same for a model of Llama's family."""

    def __init__(self, checkpoint: TensorSource, config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(checkpoint, config, dtype, device)
        self.config = config

    def linear(self, size_in: int, *parts: tuple[str, int], rotated: int = 0) -> Tensor:
        """Fuse projections of one input to [size_in, sum of outputs]; RoPE turns the first ``rotated`` of them."""
        stored = [self.checkpoint.floats(self.name(name), size, size_in) for name, size in parts]
        fused = empty_weight(size_in, sum(size for _, size in parts), self.dtype, self.device)
        start = 0
        for index, rows in enumerate(stored):
            place = fused[:, start : start + rows.shape[0]].t()
            start += rows.shape[0]
            if index < rotated:  # through views on both sides, so that nothing is copied twice
                rows = paired(rows, self.config.head_dim)
                place = place.view(rows.shape)
            place.copy_(rows)
        return fused

    def layer(self, prefix: str, index: int, rotary: Rotary, norm: Norm | None, size_in: int) -> DecoderLayer:
        """Layer ``index``, its tensors under ``prefix``; its q, k and v read ``norm``, ``size_in`` wide."""
        config = self.config
        attention = f"{prefix}.self_attn"
        qkv = self.linear(
            size_in,
            (f"{attention}.q_proj.weight", config.q_size),
            (f"{attention}.k_proj.weight", config.kv_size),
            (f"{attention}.v_proj.weight", config.kv_size),
            rotated=2,
        )
        return DecoderLayer(
            layer_id=index,
            rotary=rotary,
            qkv=norm.fold_into(qkv) if norm else qkv,
            qkv_bias=self._qkv_bias(attention) if config.qkv_bias else None,
            **self._after_attention(prefix),
        )

    def query_layer(self, prefix: str, target_layer: int, rotary: Rotary) -> QueryLayer:
        """A layer of queries alone, its tensors under ``prefix``; it reads the KV of the target's ``target_layer``."""
        config = self.config
        norm = self.norm(f"{prefix}.input_layernorm.weight")
        queries = (f"{prefix}.self_attn.q_proj.weight", config.q_size)
        q = norm.fold_into(self.linear(config.hidden_size, queries, rotated=1))
        return QueryLayer(target_layer=target_layer, rotary=rotary, norm=norm, q=q, **self._after_attention(prefix))

    def _after_attention(self, prefix: str) -> dict[str, Any]:
        """The fields of ``AfterAttention``."""
        config = self.config
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        mlp_norm = self.norm(f"{prefix}.post_attention_layernorm.weight")
        gates = [(f"{mlp}.{part}_proj.weight", config.intermediate_size) for part in ("gate", "up")]
        return {
            "output": self.linear(config.q_size, (f"{attention}.o_proj.weight", config.hidden_size)),
            "output_bias": self.plain(f"{attention}.o_proj.bias", config.hidden_size) if config.output_bias else None,
            "mlp_norm": mlp_norm,
            "gate_up": mlp_norm.fold_into(self.linear(config.hidden_size, *gates)),
            "down": self.linear(config.intermediate_size, (f"{mlp}.down_proj.weight", config.hidden_size)),
        }

    def _qkv_bias(self, attention: str) -> Tensor:
        config = self.config
        q = self.plain(f"{attention}.q_proj.bias", config.q_size)
        k = self.plain(f"{attention}.k_proj.bias", config.kv_size)
        v = self.plain(f"{attention}.v_proj.bias", config.kv_size)
        return torch.cat((interleave_pairs(q, config.head_dim), interleave_pairs(k, config.head_dim), v))
