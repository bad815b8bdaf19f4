"""The weights of a target of ours as a transformers model on the same device, shared wherever the layout allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.models import TargetModel
from specdebug.engine.model.rope import inverse_frequencies, separate_pairs

if TYPE_CHECKING:
    import transformers


def make_reference(target: TargetModel) -> transformers.LlamaForCausalLM:
    """``target`` as transformers would have loaded it; only the q and k projections are copied.

    Raises:
        ValueError: the gains of the norms are folded into the weights (float32 on a CPU), or transformers
            understands the config's RoPE differently.
    """
    if target.final_norm.folds_gain:
        raise ValueError("this target's norms are folded into its weights; make it in bf16, or on a GPU")
    import transformers

    config, device = _config(target.config), target.embedding.device
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(_state(target), assign=True)
    # its tables are no parameters, so they are still on the meta device
    rotary = type(model.model.rotary_emb)(config=config).to(device)
    ours = inverse_frequencies(target.config.head_dim, target.config.rope_theta, target.config.rope_scaling)
    if not torch.allclose(rotary.inv_freq.cpu(), ours, rtol=1e-5):
        raise ValueError("transformers computes other RoPE frequencies from this config")
    model.model.rotary_emb = rotary
    return model.requires_grad_(False).eval()


@torch.inference_mode()
def generate(model: transformers.LlamaForCausalLM, prompts: Tensor, new_tokens: int) -> Tensor:
    """Greedy continuation of equally long prompts [B, n] i64 -> [B, new_tokens]."""
    out: Tensor = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[:, prompts.shape[1] :]


def _config(config: LlamaConfig) -> transformers.LlamaConfig:
    import transformers

    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling is not None:
        rope = {"rope_type": "llama3", **vars(config.rope_scaling)}
    spelling = {"rope_scaling": rope, "rope_theta": config.rope_theta}
    if int(transformers.__version__.split(".")[0]) >= 5:
        spelling = {"rope_parameters": rope | {"rope_theta": config.rope_theta}}
    elif config.rope_scaling is None:
        spelling["rope_scaling"] = None
    return transformers.LlamaConfig(
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=False,
        attention_bias=False,
        bos_token_id=None,
        eos_token_id=None,
        **spelling,
    )


def _state(target: TargetModel) -> dict[str, Tensor]:
    """Parameters by transformers' names; weights [in, out] of ours are views [out, in] here."""
    config = target.config
    q, kv, inner = config.q_size, config.kv_size, config.intermediate_size
    state = {
        "model.embed_tokens.weight": target.embedding,
        "model.norm.weight": target.final_norm.gain,
        "lm_head.weight": target.lm_head.t(),
    }
    for index, (norm, layer) in enumerate(target.layers):
        qkv, gate_up = layer.qkv.t(), layer.gate_up.t()
        layer_state = {
            "input_layernorm": norm.gain,
            "post_attention_layernorm": layer.mlp_norm.gain,
            "self_attn.q_proj": _separated(qkv[:q], config.head_dim),
            "self_attn.k_proj": _separated(qkv[q : q + kv], config.head_dim),
            "self_attn.v_proj": qkv[q + kv :],
            "self_attn.o_proj": layer.output.t(),
            "mlp.gate_proj": gate_up[:inner],
            "mlp.up_proj": gate_up[inner:],
            "mlp.down_proj": layer.down.t(),
        }
        state |= {f"model.layers.{index}.{name}.weight": tensor for name, tensor in layer_state.items()}
    return state


def _separated(rows: Tensor, head_dim: int) -> Tensor:
    """Projection rows [heads*D, in] from our order of pairs to transformers'."""
    heads = rows.t().reshape(rows.shape[1], -1, head_dim)
    return separate_pairs(heads).reshape(rows.shape[1], -1).t().contiguous()
