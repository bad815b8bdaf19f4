"""Layers of multi-token prediction against the plain reading: one row at a time, a fresh cache for every chain."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdebug.reference.config import ModelConfig
from specdebug.reference.draft import MTPHead, accept_lengths, mtp_draft, mtp_kv, mtp_matches
from specdebug.reference.weights import join_draft
from tests.reference.test_draft import NEAR, attended, finished, norm, rotate, walked

DEPTH = 3
CONFIG = ModelConfig(
    hidden_size=32, intermediate_size=48, num_layers=5, num_heads=4, num_kv_heads=2, head_dim=8, vocab_size=50,
    nextn_layers=DEPTH,
)  # fmt: skip
SHAPES = {
    "eh_proj": (32, 64), "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32), "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48),
}  # fmt: skip
NORMS = ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm")
KV = tuple[Tensor, Tensor]


def make_mtp(*, chained: bool = False, own_heads: bool = False, seed: int = 0) -> MTPHead:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.3

    weights = {}
    for layer in range(5, 5 + DEPTH):
        weights |= {f"model.layers.{layer}.{name}.weight": normal(*shape) for name, shape in SHAPES.items()}
        weights |= {f"model.layers.{layer}.{name}.weight": 1 + normal(32) for name in NORMS}
        if own_heads:
            weights[f"model.layers.{layer}.shared_head.head.weight"] = normal(50, 32)
            weights[f"model.layers.{layer}.embed_tokens.weight"] = normal(50, 32)
    head = join_draft(weights, replace(CONFIG, chain_hidden_states=chained), normal(50, 32), normal(50, 32))
    assert isinstance(head, MTPHead)
    return head


def one_row(head: MTPHead, index: int, token: int, hidden: Tensor, position: int, past: list[KV]) -> tuple[Tensor, KV]:
    """Layer ``index`` at one position: output [32], and the key and value written."""
    layer = head.layers[index]
    w = {name.removeprefix(layer.layer): value for name, value in layer.weights.items()}
    pair = torch.cat([norm(layer.embed[token], w["enorm.weight"]), norm(hidden, w["hnorm.weight"])])
    residual = w["eh_proj.weight"] @ pair
    x = norm(residual, w["input_layernorm.weight"])
    q = rotate((w["self_attn.q_proj.weight"] @ x).view(4, 8), position)
    k = rotate((w["self_attn.k_proj.weight"] @ x).view(2, 8), position)
    seen = [*past, (k, (w["self_attn.v_proj.weight"] @ x).view(2, 8))]
    return norm(finished(w, "", residual, attended(q, seen)), w["shared_head.norm.weight"]), seen[-1]


def naive_draft(head: MTPHead, ids: list[int], hidden: Tensor) -> tuple[list[int], list[Tensor], list[list[KV]]]:
    """Drafts behind ``ids``, the logits that each is the greatest of, and what every layer has written then."""
    length, known = len(ids) - 1, list(ids)
    logits, written = [], []
    states = list(hidden)
    for index, layer in enumerate(head.layers):
        past: list[KV] = []
        outputs = []
        for p in range(length):
            output, kv = one_row(head, index, known[p + 1 + index], states[p], p, past)
            past.append(kv)
            outputs.append(output)
        logits.append(layer.lm_head @ outputs[-1])
        known.append(int(logits[-1].argmax()))
        written.append(past)
        states = outputs if head.chained else list(hidden)
    return known[len(ids) :], logits, written


def text(n: int = 11, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(50, (n,), generator=generator), torch.randn(n, 32, generator=generator, dtype=torch.float64)


@pytest.fixture(params=["plain", "chained", "own_heads"])
def head(request: pytest.FixtureRequest) -> MTPHead:
    return make_mtp(chained=request.param == "chained", own_heads=request.param == "own_heads")


def test_drafts_are_those_of_the_plain_reading(head: MTPHead) -> None:
    ids, hidden = text()
    for length in (1, 2, 3, 10):
        drafts = mtp_draft(head, ids[: length + 1], hidden[:length])
        tokens, logits, _ = naive_draft(head, ids[: length + 1].tolist(), hidden[:length])
        assert drafts.tokens.tolist() == tokens
        torch.testing.assert_close(drafts.logits, torch.stack(logits), **NEAR)


def test_written_kv_is_that_of_any_chain_whose_tokens_became_the_text(head: MTPHead) -> None:
    ids, hidden = text()
    written = naive_draft(head, ids.tolist(), hidden[:-1])[2]
    for index, (k, v) in enumerate(mtp_kv(head, ids, hidden)):
        assert k.shape == (2, len(ids) - 1 - index, 8)
        for p in range(k.shape[1]):
            torch.testing.assert_close(k[:, p], written[index][p][0], **NEAR)
            torch.testing.assert_close(v[:, p], written[index][p][1], **NEAR)


def test_matches_give_the_accept_lengths_of_chains_that_draft_for_themselves(head: MTPHead) -> None:
    ids, hidden = text(14, seed=5)
    for _ in range(3):  # a text that the head itself continues now and then, so that it guesses some of it
        drafts = mtp_draft(head, ids[:8], hidden[:7]).tokens
        ids[8:10] = drafts[:2]
        ids[11:13] = mtp_draft(head, ids[:11], hidden[:10]).tokens[:2]
    lengths = walked(lambda n: mtp_draft(head, ids[: n + 1], hidden[:n]).tokens.tolist(), ids, 4, DEPTH)
    assert accept_lengths(mtp_matches(head, ids, hidden), prompt_length=4) == lengths
    assert max(lengths) > 1
