"""Keys and values out of blocks, in whatever order a backend has them there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.targets.vllm.inside.kv import BlockReader

SLOTS, HEADS, DIM = 4, 2, 3


class Transposed:
    """Keys lie heads first, each dimension's slots beside each other; values slots first, behind them."""

    def do_kv_cache_update(self, layer: Any, keys: Tensor, values: Tensor, cache: Tensor, slots: Tensor) -> None:
        for row, slot in enumerate(slots.tolist()):
            block = cache[slot // SLOTS].view(2, -1)
            block[0].view(HEADS, DIM, SLOTS)[:, :, slot % SLOTS] = keys[row]
            block[1].view(SLOTS, HEADS, DIM)[slot % SLOTS] = values[row]


def reader(dtype: torch.dtype) -> tuple[BlockReader, dict[str, Any]]:
    def layer() -> Any:
        cache = torch.zeros(6, HEADS, SLOTS, 2 * DIM, dtype=dtype)
        return SimpleNamespace(kv_cache=cache, num_kv_heads=HEADS, head_size=DIM, impl=Transposed())

    layers = {name: layer() for name in ("0", "1", "head")}
    runner = SimpleNamespace(
        drafter=SimpleNamespace(_draft_attn_layer_names={"head"}),
        kv_cache_config=SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=list(layers))]),
        compilation_config=SimpleNamespace(static_forward_context=layers),
    )
    table = {"a": [SimpleNamespace(block_id=block) for block in (5, 2)]}
    manager = SimpleNamespace(block_size=SLOTS, req_to_blocks=table)
    coordinator = SimpleNamespace(single_type_managers=[manager])
    scheduler = SimpleNamespace(kv_cache_manager=SimpleNamespace(coordinator=coordinator))
    return BlockReader(runner, scheduler), layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_are_read_from_the_blocks_of_their_request(dtype: torch.dtype) -> None:
    found, layers = reader(dtype)
    keys = torch.arange(6 * HEADS * DIM).view(6, HEADS, DIM).to(dtype)
    slots = torch.tensor([5 * SLOTS, 5 * SLOTS + 1, 5 * SLOTS + 2, 5 * SLOTS + 3, 2 * SLOTS, 2 * SLOTS + 1])
    for number, layer in enumerate(layers.values()):
        layer.impl.do_kv_cache_update(layer, keys + number, -keys - number, layer.kv_cache, slots)
    ours = found.read("target", "a", 1, 6)
    assert torch.equal(ours[0], torch.stack([keys, keys + 1])[:, 1:])
    assert torch.equal(ours[1], -ours[0])
    assert torch.equal(found.read("draft", "a", 0, 3)[0], (keys + 2)[None, :3])
