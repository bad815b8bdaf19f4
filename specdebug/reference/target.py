"""The target model, dense: all positions at once, or step by step over a plain key/value cache."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from specdebug.reference.config import ModelConfig
from specdebug.reference.layers import Weights, causal_attention, expand, finish, project, rms_norm, rope_tables


class DenseCache:
    """What every layer keeps of one batch's positions: keys (rotated) and values, [layers, ..., Hkv, capacity, D]. Of
    latent attention the rotated keys that heads share, and the latents."""

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        *,
        batch: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        heads, key, value = config.stored_shape
        shape = (config.num_layers, *batch, heads, capacity)
        self.keys = torch.zeros(*shape, key, dtype=dtype, device=device)
        self.values = torch.zeros(*shape, value, dtype=dtype, device=device)
        self.length = 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store [..., Hkv, n, D] behind the committed length; return everything up to its end."""
        stop = self.length + k.shape[-2]
        self.keys[layer][..., self.length : stop, :] = k
        self.values[layer][..., self.length : stop, :] = v
        return self.keys[layer][..., :stop, :], self.values[layer][..., :stop, :]


def target_forward(
    weights: Weights,
    config: ModelConfig,
    ids: Tensor,
    *,
    cache: DenseCache | None = None,
    aux_layers: tuple[int, ...] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Make one pass over int64 ids [..., n], which continue the cache, if there is one, and make it n longer.

    Returns logits [..., n, V], hidden [..., n, H] (after the final norm, for an EAGLE head) and aux
    [..., n, len(aux_layers) * H] (the inputs of those layers, 2, n//2, n-3 unless given, for EAGLE-3).
    """
    start = 0 if cache is None else cache.length
    rope = rope_tables(config, torch.arange(start, start + ids.shape[-1], device=ids.device))
    aux_layers = config.default_aux_layers() if aux_layers is None else aux_layers
    aux = []
    x = F.embedding(ids, weights["model.embed_tokens.weight"])
    for layer in range(config.num_layers):
        if layer in aux_layers:
            aux.append(x)
        prefix = f"model.layers.{layer}."
        normed = rms_norm(x, weights[f"{prefix}input_layernorm.weight"], config)
        q, k, v = project(weights, f"{prefix}self_attn.", config, normed, rope)
        if cache is not None:
            k, v = cache.extend(layer, k, v)
        attended = causal_attention(q, *expand(weights, f"{prefix}self_attn.", config, k, v))
        x = finish(weights, prefix, config, attended, x)
    if cache is not None:
        cache.length += ids.shape[-1]
    hidden = rms_norm(x, weights["model.norm.weight"], config)
    return target_logits(weights, config, hidden), hidden, torch.cat(aux, dim=-1)


def target_logits(weights: Weights, config: ModelConfig, hidden: Tensor) -> Tensor:
    """Logits [..., V] of final-normed hidden [..., H]."""
    name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return F.linear(hidden, weights[name])


@torch.no_grad()
def greedy_generate(
    weights: Weights,
    config: ModelConfig,
    ids: Tensor,
    max_new_tokens: int,
    *,
    pick: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Continue ``ids`` [..., n] to int64 [..., n + max_new_tokens]; no stop token ends it.

    ``pick`` turns last-position logits [..., V] into tokens [...], by argmax when not given.
    """
    choose = pick or (lambda logits: logits.argmax(-1))
    embedding = weights["model.embed_tokens.weight"]
    batch, capacity = tuple(ids.shape[:-1]), ids.shape[-1] + max_new_tokens
    cache = DenseCache(config, capacity, batch=batch, dtype=embedding.dtype, device=ids.device)
    out, step_ids = [ids], ids
    for _ in range(max_new_tokens):
        logits, _, _ = target_forward(weights, config, step_ids, cache=cache)
        step_ids = choose(logits[..., -1, :])[..., None]
        out.append(step_ids)
    return torch.cat(out, dim=-1)
