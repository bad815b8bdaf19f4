"""Pair order, and the fused product against the textbook rotation."""

from __future__ import annotations

import torch

from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.rope import Rotary, interleave_pairs, separate_pairs

CONFIG = LlamaConfig.from_dict(
    {
        "hidden_size": 32,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 5,
        "rope_theta": 100.0,
    },
    "config.json",
)


def test_interleaving_makes_rotated_pairs_adjacent_within_each_head():
    rows = torch.arange(16)
    assert interleave_pairs(rows, 8).tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    matrix = rows[:, None] * torch.ones(3)
    assert torch.equal(interleave_pairs(matrix, 8)[:, 2], interleave_pairs(rows, 8).float())


def test_separating_undoes_interleaving():
    keys = torch.randn(3, 5, 16)
    flat = interleave_pairs(keys.reshape(-1), 16).view_as(keys)
    assert torch.equal(separate_pairs(flat), keys)


def test_queries_and_keys_turn_and_values_do_not():
    qkv = torch.randn(3, 8 * 8)  # 4 + 2 + 2 heads of 8, pairs adjacent
    positions = torch.tensor([0, 7, 19])
    rotary = Rotary(CONFIG, 20, torch.device("cpu"))
    q, k, v = rotary.split(qkv.clone(), rotary.at(positions))
    assert (q.shape, k.shape, v.shape) == ((3, 4, 8), (3, 2, 8), (3, 2, 8))
    before = qkv.view(3, 8, 8)
    assert torch.equal(v, before[:, 6:])
    turned = torch.cat((q, k), 1)
    for row, position in enumerate(positions.tolist()):
        for pair in range(4):
            angle = torch.tensor(position * 100.0 ** (-pair / 4))
            a, b = before[row, :6, 2 * pair], before[row, :6, 2 * pair + 1]
            torch.testing.assert_close(turned[row, :, 2 * pair], a * angle.cos() - b * angle.sin())
            torch.testing.assert_close(turned[row, :, 2 * pair + 1], a * angle.sin() + b * angle.cos())


def test_low_precision_is_rotated_in_float32():
    qkv = torch.randn(2, 64).bfloat16()
    rotary = Rotary(CONFIG, 20, torch.device("cpu"))
    phases = rotary.at(torch.tensor([3, 11]))
    low = rotary.split(qkv.clone(), phases)
    high = rotary.split(qkv.float(), phases)
    for ours, exact in zip(low, high, strict=True):
        assert ours.dtype == torch.bfloat16
        assert torch.equal(ours, exact.bfloat16())
