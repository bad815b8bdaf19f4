"""The unrolled head against the plain reading of EAGLE: one chain at a time, one token at a time. So it is with a
next-n layer of DeepSeek's that is used as a head."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from specdebug.reference.config import LatentAttention, ModelConfig
from specdebug.reference.draft import DraftHead, draft_kv, draft_unroll
from tests.tolerance import layers_rounding

CONFIG = ModelConfig(
    hidden_size=32, intermediate_size=48, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8, vocab_size=50
)
NEXTN = replace(
    CONFIG,
    head_dim=4,
    num_kv_heads=4,
    nextn_layers=1,
    latent=LatentAttention(q_lora_rank=14, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5),
)

DRAFT_VOCAB = 20
NEAR = layers_rounding(vars(CONFIG), 12, times=4 + 1)  # four steps of a chain and what they begin from


def make_head(kind: str, seed: int = 0) -> DraftHead:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.3

    if kind == "nextn":
        return DraftHead(weights=nextn_weights(normal), config=NEXTN, embed=normal(50, 32), lm_head=normal(50, 32))
    eagle3 = kind == "eagle3"
    layer, width = ("midlayer.", 64) if eagle3 else ("layers.0.", 32)
    weights = {
        f"{layer}self_attn.q_proj.weight": normal(32, width),
        f"{layer}self_attn.k_proj.weight": normal(16, width),
        f"{layer}self_attn.v_proj.weight": normal(16, width),
        f"{layer}self_attn.o_proj.weight": normal(32, 32),
        f"{layer}post_attention_layernorm.weight": 1 + normal(32),
        f"{layer}mlp.gate_proj.weight": normal(48, 32),
        f"{layer}mlp.up_proj.weight": normal(48, 32),
        f"{layer}mlp.down_proj.weight": normal(32, 48),
    }
    if eagle3:
        kept = torch.arange(DRAFT_VOCAB) * 2 + 1
        weights |= {
            "fc.weight": normal(32, 96),
            "midlayer.input_layernorm.weight": 1 + normal(32),
            "midlayer.hidden_norm.weight": 1 + normal(32),
            "norm.weight": 1 + normal(32),
            "lm_head.weight": normal(DRAFT_VOCAB, 32),
            "d2t": kept - torch.arange(DRAFT_VOCAB),
        }
    else:
        weights |= {"fc.weight": normal(32, 64), "fc.bias": normal(32)}
    return DraftHead(weights=weights, config=CONFIG, embed=normal(50, 32), lm_head=normal(50, 32))


def nextn_weights(normal: Callable[..., Tensor]) -> dict[str, Tensor]:
    layer = "model.layers.1."
    shapes = {
        "eh_proj": (32, 64), "self_attn.q_a_proj": (14, 32), "self_attn.q_b_proj": (4 * 10, 14),
        "self_attn.kv_a_proj_with_mqa": (14, 32), "self_attn.kv_b_proj": (4 * 11, 10), "self_attn.o_proj": (32, 20),
        "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48),
    }  # fmt: skip
    norms = {
        "enorm": 32, "hnorm": 32, "input_layernorm": 32, "self_attn.q_a_layernorm": 14, "self_attn.kv_a_layernorm": 10,
        "post_attention_layernorm": 32, "shared_head.norm": 32,
    }  # fmt: skip
    weights = {f"{layer}{name}.weight": normal(*shape) for name, shape in shapes.items()}
    return weights | {f"{layer}{name}.weight": 1 + normal(width) for name, width in norms.items()}


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + CONFIG.rms_norm_eps).rsqrt() * weight


def rotate(x: Tensor, position: int) -> Tensor:
    """[heads, 8] at one position, pair by pair."""
    out = x.clone()
    for i in range(4):
        angle = torch.tensor(position * CONFIG.rope_theta ** (-2 * i / 8))
        out[:, i] = x[:, i] * angle.cos() - x[:, i + 4] * angle.sin()
        out[:, i + 4] = x[:, i + 4] * angle.cos() + x[:, i] * angle.sin()
    return out


def attended(q: Tensor, seen: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Queries [4, 8] over the keys and values [2, 8] of each position that is seen: [32]."""
    rows = []
    for h in range(4):
        scores = torch.stack([q[h] @ key[h // 2] for key, _ in seen]) / 8**0.5
        rows.append(sum(p * value[h // 2] for p, (_, value) in zip(scores.softmax(0), seen, strict=True)))
    return torch.cat(rows)


def finished(w: Mapping[str, Tensor], layer: str, residual: Tensor, attended: Tensor) -> Tensor:
    """A layer's output, from its attention's on."""
    x = residual + w[f"{layer}self_attn.o_proj.weight"] @ attended
    y = norm(x, w[f"{layer}post_attention_layernorm.weight"])
    gate = F.silu(w[f"{layer}mlp.gate_proj.weight"] @ y) * (w[f"{layer}mlp.up_proj.weight"] @ y)
    return x + w[f"{layer}mlp.down_proj.weight"] @ gate


def walked(drafts: Callable[[int], list[int]], ids: Tensor, newest: int, steps: int) -> list[int]:
    """The accept lengths of chains that draft for themselves, each behind what the one before came to."""
    lengths = []
    while newest - 1 + steps <= len(ids) - 2:
        pairs = zip(drafts(newest), ids[newest + 1 : newest + 1 + steps].tolist(), strict=True)
        accepted = next((n for n, (a, b) in enumerate(pairs) if a != b), steps)
        lengths.append(accepted + 1)
        newest += accepted + 1
    return lengths


def one_step(
    head: DraftHead, token: int, hidden: Tensor, position: int, past: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Output [H] and the key and value written, for one pair; ``hidden`` is [H]."""
    w, layer = head.weights, head.layer
    if head.is_nextn:
        return nextn_step(head, token, hidden, position, past)
    if head.is_eagle3:
        token_part = norm(head.embed[token], w["midlayer.input_layernorm.weight"])
        x = torch.cat([token_part, norm(hidden, w["midlayer.hidden_norm.weight"])])
        residual = hidden
    else:
        x = residual = w["fc.weight"] @ torch.cat([head.embed[token], hidden]) + w["fc.bias"]
    q = rotate((w[f"{layer}self_attn.q_proj.weight"] @ x).view(4, 8), position)
    k = rotate((w[f"{layer}self_attn.k_proj.weight"] @ x).view(2, 8), position)
    v = (w[f"{layer}self_attn.v_proj.weight"] @ x).view(2, 8)
    seen = [*past, (k, v)]
    return finished(w, layer, residual, attended(q, seen)), (k, v)


def rotate_neighbours(x: Tensor, position: int) -> Tensor:
    """[4] at one position: neighbours are a pair; first elements of pairs come out first."""
    first, second = x[0::2], x[1::2]
    angles = torch.tensor([position * CONFIG.rope_theta ** (-2 * i / 4) for i in range(2)])
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()])


def nextn_step(
    head: DraftHead, token: int, hidden: Tensor, position: int, past: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """As ``one_step``; what is written are the rotated key [1, 4] and the latent [1, 10]."""
    w = {name.removeprefix(head.layer): value for name, value in head.weights.items()}
    pair = torch.cat([norm(head.embed[token], w["enorm.weight"]), norm(hidden, w["hnorm.weight"])])
    residual = w["eh_proj.weight"] @ pair
    x = norm(residual, w["input_layernorm.weight"])
    low = norm(w["self_attn.q_a_proj.weight"] @ x, w["self_attn.q_a_layernorm.weight"])
    queries = (w["self_attn.q_b_proj.weight"] @ low).view(4, 10)
    kept = w["self_attn.kv_a_proj_with_mqa.weight"] @ x
    latent = norm(kept[:10], w["self_attn.kv_a_layernorm.weight"])
    seen = [*past, (rotate_neighbours(kept[10:], position)[None], latent[None])]
    both = w["self_attn.kv_b_proj.weight"].view(4, 11, 10)
    rows = []
    for h in range(4):
        q = torch.cat([queries[h, :6], rotate_neighbours(queries[h, 6:], position)])
        made = [both[h] @ each[0] for _, each in seen]
        scores = torch.stack([q @ torch.cat([m[:6], key[0]]) for m, (key, _) in zip(made, seen, strict=True)])
        rows.append(sum(p * m[6:] for p, m in zip((scores / 10**0.5).softmax(0), made, strict=True)))
    return norm(finished(w, "", residual, torch.cat(rows)), w["shared_head.norm.weight"]), seen[-1]


def naive_chain(head: DraftHead, ids: Tensor, hidden: Tensor, start: int, num_steps: int) -> list[Tensor]:
    """Outputs of the chain whose true states end at ``start``, fed with the text's own tokens."""
    states = hidden @ head.weights["fc.weight"].T if head.is_eagle3 else hidden
    past: list[tuple[Tensor, Tensor]] = []
    for p in range(start):
        past.append(one_step(head, int(ids[p + 1]), states[p], p, past)[1])
    outputs, state = [], states[start]
    for step in range(num_steps):
        p = start + step
        state, written = one_step(head, int(ids[p + 1]), state, p, past)
        past.append(written)
        outputs.append(state)
    return outputs


@pytest.fixture(params=["eagle", "eagle3", "nextn"])
def head(request: pytest.FixtureRequest) -> DraftHead:
    return make_head(request.param)


def text(head: DraftHead, n: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(50, (n,), generator=generator)
    width = 96 if head.is_eagle3 else 32
    return ids, torch.randn(n, width, generator=generator, dtype=torch.float64)


def test_every_chain_of_the_unrolled_head_is_the_sequential_chain(head: DraftHead) -> None:
    ids, hidden = text(head)
    unrolled = draft_unroll(head, ids[1:], hidden[:-1], 4)
    for start in (0, 3, 7):
        for step, expected in enumerate(naive_chain(head, ids, hidden, start, 4)):
            torch.testing.assert_close(unrolled[step][start + step], expected, **NEAR)


def test_written_keys_and_values_depend_on_pair_and_position_alone(head: DraftHead) -> None:
    ids, hidden = text(head)
    positions = torch.arange(3, 9)
    k, v = draft_kv(head, ids[4:10], hidden[3:9], positions)
    states = hidden @ head.weights["fc.weight"].T if head.is_eagle3 else hidden
    for row, p in enumerate(positions.tolist()):
        expected_k, expected_v = one_step(head, int(ids[p + 1]), states[p], p, [])[1]
        torch.testing.assert_close(k[:, row], expected_k, **NEAR)
        torch.testing.assert_close(v[:, row], expected_v, **NEAR)
