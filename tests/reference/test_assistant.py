"""The frozen-KV assistant against the plain reading: one chain at a time, over keys and values it did not write."""

import pytest
import torch
from torch import Tensor

from specdebug.reference.config import ModelConfig
from specdebug.reference.draft import (
    AssistantHead,
    accept_lengths,
    assistant_logits,
    assistant_matches,
    assistant_unroll,
    frozen_kv,
)
from specdebug.reference.target import DenseCache
from specdebug.reference.weights import join_draft
from tests.reference.test_draft import NEAR, attended, finished, norm, rotate, walked

CONFIG = ModelConfig(
    hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, vocab_size=50,
    target_kv_layers=(3, 1),
)  # fmt: skip
TARGET = ModelConfig(
    hidden_size=32, intermediate_size=48, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=8, vocab_size=50
)
STEPS = 3
LENGTH = 12


def make_assistant(seed: int = 0, *, bias: bool = False) -> AssistantHead:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.3

    weights = {"fc.weight": normal(32, 64), "norm.weight": 1 + normal(32)}
    if bias:
        weights["fc.bias"] = normal(32)
    for layer in ("layers.0.", "layers.1."):
        weights |= {
            f"{layer}input_layernorm.weight": 1 + normal(32),
            f"{layer}self_attn.q_proj.weight": normal(32, 32),
            f"{layer}self_attn.o_proj.weight": normal(32, 32),
            f"{layer}post_attention_layernorm.weight": 1 + normal(32),
            f"{layer}mlp.gate_proj.weight": normal(48, 32),
            f"{layer}mlp.up_proj.weight": normal(48, 32),
            f"{layer}mlp.down_proj.weight": normal(32, 48),
        }
    head = join_draft(weights, CONFIG, normal(50, 32), normal(50, 32))
    assert isinstance(head, AssistantHead)
    return head


def text(seed: int = 1) -> tuple[Tensor, Tensor, DenseCache]:
    """Tokens, the target's states, and a cache of four layers of which the assistant reads two."""
    generator = torch.Generator().manual_seed(seed)
    cache = DenseCache(TARGET, LENGTH, dtype=torch.float64)
    cache.keys.normal_(generator=generator)
    cache.values.normal_(generator=generator)
    cache.length = LENGTH
    ids = torch.randint(50, (LENGTH,), generator=generator)
    return ids, torch.randn(LENGTH, 32, generator=generator, dtype=torch.float64), cache


def naive_pass(head: AssistantHead, token: int, hidden: Tensor, length: int, cache: DenseCache) -> Tensor:
    """One pass behind ``length`` positions."""
    w = head.weights
    x = w["fc.weight"] @ torch.cat([head.embed[token], hidden]) + w.get("fc.bias", torch.zeros(32))
    for index, layer in enumerate((3, 1)):
        prefix = f"layers.{index}."
        y = norm(x, w[f"{prefix}input_layernorm.weight"])
        q = rotate((w[f"{prefix}self_attn.q_proj.weight"] @ y).view(4, 8), length - 1)
        seen = [(cache.keys[layer][:, p], cache.values[layer][:, p]) for p in range(length)]
        x = finished(w, prefix, x, attended(q, seen))
    return norm(x, w["norm.weight"])


@pytest.mark.parametrize("bias", [False, True])
def test_every_chain_of_the_unrolled_assistant_is_the_sequential_chain(bias: bool) -> None:
    head, (ids, hidden, cache) = make_assistant(bias=bias), text()
    unrolled = assistant_unroll(head, ids, hidden, frozen_kv(head, cache), STEPS)
    for length in (1, 4, LENGTH - STEPS):
        state = hidden[length - 1]
        for step in range(STEPS):
            state = naive_pass(head, int(ids[length + step]), state, length, cache)
            torch.testing.assert_close(unrolled[step][length - 1], state, **NEAR)


def test_batched_passes_equal_single() -> None:
    head, (ids, hidden, cache) = make_assistant(), text()
    kv = frozen_kv(head, cache)
    both = assistant_unroll(
        head, ids.expand(2, -1), hidden.expand(2, -1, -1), [(k.expand(2, -1, -1, -1), v[None]) for k, v in kv], STEPS
    )
    for batched, single in zip(both, assistant_unroll(head, ids, hidden, kv, STEPS), strict=True):
        torch.testing.assert_close(batched[1], single)


def test_matches_give_the_accept_lengths_of_chains_that_draft_for_themselves() -> None:
    head, (ids, hidden, cache) = make_assistant(3), text(3)

    def drafts(length: int) -> list[int]:
        token, state, out = int(ids[length]), hidden[length - 1], []
        for _ in range(STEPS):
            state = naive_pass(head, token, state, length, cache)
            token = int(assistant_logits(head, state).argmax())
            out.append(token)
        return out

    ids[5:7] = torch.tensor(drafts(4)[:2])
    lengths = walked(drafts, ids, 4, STEPS)
    found = accept_lengths(assistant_matches(head, ids, hidden, frozen_kv(head, cache), STEPS), prompt_length=4)
    assert found == lengths
    assert lengths[0] >= 3
