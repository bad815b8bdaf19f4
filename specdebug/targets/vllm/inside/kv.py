"""The keys and values that vLLM's caches hold of a request, wherever its attention puts them in a block."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

_BASE = 128
"""Numbers below it every type of a cache holds exactly."""


def _draft_layers(runner: Any) -> set[str]:
    """The names of a draft's layers, by runner V1 or V2."""
    places = (("drafter", "_draft_attn_layer_names"), ("speculator", "draft_attn_layer_names"))
    return {each for owner, names in places for each in getattr(getattr(runner, owner, None), names, ())}


class BlockReader:
    """Reads the caches of a runner's layers, by the tables of its ``scheduler``. Where a block holds what is learnt by
    vLLM's own function that writes it: backends have keys in orders of their own."""

    def __init__(self, runner: Any, scheduler: Any) -> None:
        groups = runner.kv_cache_config.kv_cache_groups
        names = [(name, number) for number, group in enumerate(groups) for name in group.layer_names]
        drafts = _draft_layers(runner)
        context = runner.compilation_config.static_forward_context
        self._managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._layers = {
            pool: [(context[name], number) for name, number in names if (name in drafts) == (pool == "draft")]
            for pool in ("draft", "target")
        }

    def read(self, pool: str, rid: str, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Positions [start, stop) in the pool of the ``draft`` or the ``target``: each [layers, n, heads, head_dim]."""
        positions = torch.arange(start, stop)
        sides: tuple[list[Tensor], list[Tensor]] = ([], [])
        for layer, number in self._layers[pool]:
            manager = self._managers[number]
            blocks = torch.tensor([block.block_id for block in manager.req_to_blocks[rid]])
            held = layer.kv_cache.flatten(1)[blocks[positions // manager.block_size].to(layer.kv_cache.device)]
            for side, places in zip(sides, self._places, strict=True):
                where = places[positions % manager.block_size].to(held.device)
                side.append(held.gather(1, where.flatten(1)).view(where.shape))
        keys, values = (torch.stack(side) for side in sides)
        return keys, values

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """The places of keys, and of values, in a block: int64 [slots, heads, head_dim]."""
        layer, _ = self._layers["target"][0]
        cache = layer.kv_cache
        shape = (self._managers[0].block_size, layer.num_kv_heads, layer.head_size)
        count = torch.Size(shape).numel()
        numbers, slots = torch.arange(2 * count), torch.arange(shape[0])
        written = torch.zeros_like(numbers)
        for scale in (1, _BASE, _BASE**2):
            block = torch.zeros_like(cache[:1])
            keys, values = (numbers // scale % _BASE).to(cache.device, cache.dtype).view(2, *shape)
            layer.impl.do_kv_cache_update(layer, keys, values, block, slots.to(cache.device))
            written += block.flatten().long().cpu() * scale
        keys, values = written.argsort().view(2, *shape)
        return keys, values
