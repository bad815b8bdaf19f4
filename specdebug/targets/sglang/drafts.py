"""Drafts in the layouts that only SGLang loads, made where they are first wanted: block drafts for a shipped target by
one least-squares fit, and next-n layers by another layout of the shipped one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError
from specdebug.targets.installed import config_of, remade

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.reference.config import ModelConfig

BLOCK = 3
"""Tokens that a made draft drafts at once; SGLang's DFLASH counts the one before them, too."""
MASK = 2047
"""The token that stands for those to be drafted: the last of the vocabulary, which no text of the fit's has."""
LAYER = 12
"""The target's layer whose output the draft reads, counted as SGLang does."""
REACH = BLOCK + 1
"""Positions that each query attends to, each by heads of its own."""
THETA = 10.0
SHARP = 16.0
"""Base of the rotation, and the norm's weight, by which attention at constant queries and keys sees one distance."""
SEED, ROWS, LENGTH, WARMTH, RIDGE = 7, 48, 160, 0.7, 1.0
GAINS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Factors of a correction by the token before, of which the best is taken."""
_EXPERTS = 4


@dataclass(frozen=True)
class Made:
    """A draft's layout. ``first``: the distance that the nearest heads look back: a DSPARK draft speaks from the
    position before the token."""

    architecture: str
    first: int
    tokens: int
    more: Mapping[str, Any]


_MARKOV = {
    "markov_rank": 8, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip
LAYOUTS: Mapping[str, Made] = {
    "dflash": Made("DFlashDraftModel", 1, BLOCK + 1, {}),
    "dspark": Made("DSparkDraftModel", 0, BLOCK, _MARKOV),
}
"""By the ending of the draft's name: that of ``tiny`` is ``tiny-dflash``."""


def block_draft(name: str, below: Path) -> Path | None:
    """The folder of a block draft ``TARGET-dflash`` or ``TARGET-dspark``, made ``below`` unless it is there; None of
    any other name. The fit takes some 15 s of processor, once. Raises CheckpointError where there is no such target."""
    target, _, ending = name.rpartition("-")
    layout = LAYOUTS.get(ending)
    if layout is None or not target or Path(name).exists():
        return None
    path = checkpoint_path(target)
    return remade(path, _config(config_of(path), layout), below, lambda made: _write(path, made, layout))


def _config(target: Mapping[str, Any], layout: Made) -> dict[str, Any]:
    """The draft's config. Raises CheckpointError for a target that the fit is not for."""
    if target.get("model_type") != "llama" or target.get("num_hidden_layers", 0) <= LAYER:
        raise CheckpointError(f"a block draft is made for a Llama of more than {LAYER} layers; name one of your own")
    width, block = target["hidden_size"], layout.tokens
    facts = {"target_layer_ids": [LAYER], "mask_token_id": MASK, "block_size": block, **layout.more}
    return {
        "architectures": [layout.architecture],
        "model_type": "qwen3",
        "hidden_size": width,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "head_dim": 64,
        "num_attention_heads": width // 64 * REACH,
        "num_key_value_heads": width // 64,
        "vocab_size": target["vocab_size"],
        "max_position_embeddings": target["max_position_embeddings"],
        "rms_norm_eps": target["rms_norm_eps"],
        "rope_theta": THETA,
        "hidden_act": "silu",
        "attention_bias": True,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "num_target_layers": target["num_hidden_layers"],
        "block_size": block,
        "mask_token_id": MASK,
        "dflash_config": facts,
        **layout.more,
        "specdebug": {
            "seed": SEED,
            "rows": ROWS,
            "length": LENGTH,
            "warmth": WARMTH,
            "ridge": RIDGE,
            "sharp": SHARP,
            "gains": list(GAINS) if layout.more else [],
        },
    }


def _write(path: Path, made: Path, layout: Made) -> None:
    from safetensors.torch import save_file

    from specdebug.reference.weights import load_weights

    weights, config = load_weights(path)
    tensors = fitted(weights, config, layout)
    save_file({name: each.contiguous() for name, each in tensors.items()}, made / "model.safetensors")


def fitted(weights: Mapping[str, Tensor], config: ModelConfig, layout: Made) -> dict[str, Tensor]:
    """The tensors of a draft for a target: of one layer whose queries and keys are constant, so that each head attends
    to the token at one distance behind it, and whose values pass what they read on. What is left, the projection of
    all heads to the target's last hidden state, is fitted by least squares on text that the target writes."""
    import torch

    width, size = config.hidden_size, 64
    slices = width // size
    inputs, wanted = _equations(weights, config, layout)
    gram = inputs.T @ inputs + RIDGE * torch.eye(inputs.shape[1], dtype=inputs.dtype)
    solved = torch.linalg.solve(gram, inputs.T @ wanted).float()  # [REACH * width + 1, width]
    corrections = _corrections(inputs @ solved.double(), weights, config, layout) if layout.more else None
    by_distance = solved[:-1].view(REACH, slices, size, width)
    # A KV head has the REACH query heads behind each other, one for each distance.
    output = by_distance.transpose(0, 1).reshape(REACH * width, width).T
    angles = torch.arange(size // 2) * (-1.0 / (size // 2))
    turns = (layout.first + torch.arange(REACH)).unsqueeze(1) * (THETA**angles)
    query = torch.cat((torch.cos(turns), -torch.sin(turns)), -1).repeat(slices, 1)  # [heads, size]
    key = torch.cat((torch.ones(size // 2), torch.zeros(size // 2))).repeat(slices)
    layer, nothing = "layers.0", torch.zeros
    tensors = {
        "fc.weight": torch.eye(width),
        "hidden_norm.weight": torch.ones(width),
        "norm.weight": torch.ones(width),
        f"{layer}.input_layernorm.weight": torch.ones(width),
        f"{layer}.post_attention_layernorm.weight": torch.ones(width),
        f"{layer}.self_attn.q_proj.weight": nothing(query.numel(), width),
        f"{layer}.self_attn.q_proj.bias": query.flatten(),
        f"{layer}.self_attn.k_proj.weight": nothing(width, width),
        f"{layer}.self_attn.k_proj.bias": key,
        f"{layer}.self_attn.v_proj.weight": torch.eye(width),
        f"{layer}.self_attn.v_proj.bias": nothing(width),
        f"{layer}.self_attn.o_proj.weight": output,
        f"{layer}.self_attn.o_proj.bias": solved[-1],
        f"{layer}.self_attn.q_norm.weight": torch.full((size,), SHARP),
        f"{layer}.self_attn.k_norm.weight": torch.ones(size),
        f"{layer}.mlp.gate_proj.weight": nothing(64, width),
        f"{layer}.mlp.up_proj.weight": nothing(64, width),
        f"{layer}.mlp.down_proj.weight": nothing(width, 64),
    }
    if corrections is not None:
        rank = layout.more["markov_rank"]
        tensors |= {
            "markov_head.markov_w1.weight": corrections[0],
            "markov_head.markov_w2.weight": corrections[1],
            "confidence_head.proj.weight": nothing(1, width + rank),
            "confidence_head.proj.bias": nothing(1),
        }
    return tensors


def _equations(weights: Mapping[str, Tensor], config: ModelConfig, layout: Made) -> tuple[Tensor, Tensor]:
    """What the heads read and what they are to add up to, float64 [n, REACH * width + 1] and [n, width]: for each
    position of the text behind which BLOCK tokens are drafted, and each of these."""
    import torch
    from torch.nn.functional import rms_norm

    ids, states, last = written_text(weights, config)
    embedding = weights["model.embed_tokens.weight"]
    width, length = config.hidden_size, ids.shape[1]
    read, tokens = rms_norm(states, (width,), eps=1e-6), rms_norm(embedding, (width,), eps=1e-6)
    inputs, wanted = [], []
    at = torch.arange(REACH, length - BLOCK - 1)
    for number in range(1, BLOCK + 1):
        seen = []
        for back in range(1, REACH + 1):
            place = number + 1 - back  # from the position that the target has computed last
            if place <= 0:
                seen.append(read[:, at + place])
            else:
                seen.append(tokens[ids[:, at + 1]] if place == 1 else tokens[MASK].expand(*ids[:, at].shape, width))
        own = embedding[ids[:, at + 1]] if number == 1 and not layout.first else embedding[MASK]
        inputs.append(torch.cat((*seen, torch.ones(*seen[0].shape[:2], 1)), -1).flatten(0, 1))
        wanted.append((last[:, at + number] - own).flatten(0, 1))
    return torch.cat(inputs).double(), torch.cat(wanted).double()


def _corrections(
    made: Tensor, weights: Mapping[str, Tensor], config: ModelConfig, layout: Made
) -> tuple[Tensor, Tensor]:
    """What a DSPARK draft adds to the logits of a token for the one before it, as two factors, each [vocabulary, rank]:
    what is left to say behind each token, on average, times the gain by which most tokens of the text are drafted.
    ``made``: what the heads add up to, float64 [n, width], in the order of :func:`_equations`."""
    import torch
    from torch.nn.functional import rms_norm

    ids, _, _ = written_text(weights, config)
    embedding, head = weights["model.embed_tokens.weight"], weights.get("lm_head.weight")
    at, width = torch.arange(REACH, ids.shape[1] - BLOCK - 1), config.hidden_size
    before = torch.cat([ids[:, at + number].flatten() for number in range(1, BLOCK + 1)])
    behind = torch.cat([ids[:, at + number + 1].flatten() for number in range(1, BLOCK + 1)])
    own = embedding[MASK].expand(before.numel(), width).clone()
    if not layout.first:
        first = before.numel() // BLOCK
        own[:first] = embedding[before[:first]]
    states = rms_norm(made.float() + own, (width,), eps=1e-6)
    logits = states @ (embedding if head is None else head).T
    left = -logits.softmax(-1)
    left[torch.arange(behind.numel()), behind] += 1
    every = torch.zeros(config.vocab_size, config.vocab_size).index_add_(0, before, left)
    every /= (before.bincount(minlength=config.vocab_size) + RIDGE).unsqueeze(1)
    rank = layout.more["markov_rank"]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        one, sizes, other = torch.svd_lowrank(every.double(), q=2 * rank, niter=4)
    factors = one[:, :rank] * sizes[:rank].sqrt(), other[:, :rank] * sizes[:rank].sqrt()
    added = (factors[0] @ factors[1].T).float()[before]
    right = [int(((logits + gain * added).argmax(-1) == behind).sum()) for gain in GAINS]
    gain = GAINS[right.index(max(right))]
    return (gain * factors[0]).float(), factors[1].float()


def written_text(weights: Mapping[str, Tensor], config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Text that the target writes by itself, int64 [ROWS, LENGTH], and of each position the states after LAYER and
    those that its head reads, [ROWS, LENGTH, width]."""
    import torch

    from specdebug.reference.target import DenseCache, target_forward

    draws = torch.Generator().manual_seed(SEED)
    own = dict(weights)
    with torch.inference_mode():
        ids = torch.randint(1, config.vocab_size - 1, (ROWS, 1), generator=draws)
        cache = DenseCache(config, LENGTH, batch=(ROWS,))
        while ids.shape[1] < LENGTH:
            logits = target_forward(own, config, ids[:, cache.length :], cache=cache)[0][:, -1]
            logits[:, MASK] = float("-inf")
            drawn = torch.multinomial((logits / WARMTH).softmax(-1), 1, generator=draws)
            ids = torch.cat((ids, drawn), 1)
        _, last, states = target_forward(own, config, ids, aux_layers=(LAYER + 1,))
    return ids, states.clone(), last.clone()


def sglangs_folder(path: Path, below: Path) -> Path:
    """The folder of a shipped checkpoint as SGLang loads it, made ``below`` where that is another. A DeepSeek config
    must say which layers are mixtures; a next-n layer is always one: its own MLP becomes the shared expert, and the
    others are nothing. Raises SpecDebugError."""
    config = config_of(path)
    if config.get("model_type") != "deepseek_v3" or "moe_layer_freq" in config:
        return path
    config["moe_layer_freq"] = 1
    if not config.get("num_nextn_predict_layers"):
        return remade(path, config, below)
    config |= {
        "tie_word_embeddings": False, "n_routed_experts": _EXPERTS, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "moe_intermediate_size": config["intermediate_size"], "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": True,
        "first_k_dense_replace": config["num_hidden_layers"],
    }  # fmt: skip
    return remade(path, config, below, lambda made: _write_mixture(path, made))


def untied_folder(path: Path, below: Path) -> Path:
    """The folder of a model with a head of its own, the same as its embedding: the last stage of a pipeline has no
    embedding. Raises SpecDebugError."""
    config = config_of(path)
    if not config.get("tie_word_embeddings"):
        return path
    return remade(path, {**config, "tie_word_embeddings": False}, below, lambda made: _write_head(path, made))


def _write_head(path: Path, made: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {name: each for file in sorted(path.glob("*.safetensors")) for name, each in load_file(file).items()}
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())
    save_file(tensors, made / "model.safetensors")


def _write_mixture(path: Path, made: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = {}
    for file in sorted(path.glob("*.safetensors")):
        for name, each in load_file(file).items():
            layer, inside, part = name.partition(".mlp.")
            if not inside:
                tensors[name] = each
                continue
            tensors[f"{layer}.mlp.shared_experts.{part}"] = each
            for expert in range(_EXPERTS):
                tensors[f"{layer}.mlp.experts.{expert}.{part}"] = torch.zeros_like(each)
            if part == "gate_proj.weight":
                tensors[f"{layer}.mlp.gate.weight"] = torch.eye(_EXPERTS, each.shape[1], dtype=each.dtype)
                tensors[f"{layer}.mlp.gate.e_score_correction_bias"] = torch.zeros(_EXPERTS)
    save_file(tensors, made / "model.safetensors")
