"""A KV pool from outside: keys and values of a slot side by side in one tensor, chosen by what a model says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.kernels.kv_cache import KVDestination
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.memory.kv_pool import CachedModel, kv_pool_of
from specdebug.engine.textbook.engine import Models, load_models
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from specdebug.events import Finishing
from specdebug.targets.laws import broken_laws
from tests.heard import Heard
from tests.seams.conftest import Install

OPTIONS: dict[str, Any] = {
    "model": "tiny",
    "context_length": 128,
    "page_size": 4,
    "chunked_prefill_size": 16,
    "max_running_requests": 3,
    "speculative": {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6},
    "cuda_graph": {"max_bs": 3},
    "memory": {"num_slots": 512, "fill": "nan"},
}


class PackedPool:
    """[layers, N + P, 2, heads, width]."""

    made: ClassVar[list[PackedPool]] = []

    def __init__(
        self,
        model: CachedModel,
        *,
        num_slots: int,
        page_size: int,
        dtype: torch.dtype,
        fill: FillPolicy,
        device: torch.device,
    ) -> None:
        self.size = num_slots + page_size
        self.num_layers = model.num_layers
        self.device = device
        self._fill = fill
        self.packed = torch.empty(model.num_layers, self.size, 2, model.num_kv_heads, model.head_dim, dtype=dtype)
        fill.paint(self.packed)
        self.packed[:, :page_size] = 0
        self.written = 0
        self.made.append(self)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        self.packed[layer, slots] = torch.stack((k, v), dim=1)
        self.written += slots.numel()

    def probe_written(self, slots: Tensor) -> None:
        async_probe.maybe_detect_nan(self.packed, "packed_pool.write", slots)

    def move_kv_cache(self, tgt_loc: Tensor, src_loc: Tensor) -> None:
        self.packed[:, tgt_loc] = self.packed[:, src_loc]

    def zero(self, slots: Tensor) -> None:
        self.packed[:, slots] = 0

    def poison(self, slots: Tensor) -> None:
        content = torch.empty_like(self.packed[:, slots])
        self._fill.paint(content)
        self.packed[:, slots] = content

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.packed[:, slots].unbind(2)
        return k, v

    def kv_buffer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.packed[layer, :, 0], self.packed[layer, :, 1]

    def destination(self, layer: int, slots: Tensor) -> KVDestination:
        return KVDestination(*self.kv_buffer(layer), slots)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, installing: Install) -> Iterator[None]:
    monkeypatch.setattr(PackedPool, "made", [])
    installing("packing", f"from {__name__} import PackedPool\n", {"kv_pools": {"packed": "packing:PackedPool"}})
    async_probe.configure("record")
    yield
    async_probe.configure("off")


def serve(config: EngineConfig, models: Models) -> tuple[Engine, list[Any], list[Tensor]]:
    """Two prompts of one prefix and, when they have ended, one that hits it: what each step did, and all draft KV."""
    engine, steps, drafted = Engine(config, models), list[Any](), list[Tensor]()

    def read(event: Finishing) -> None:
        drafted.extend(engine.draft_kv(event.request, 0, event.request.kv_len - 1))

    engine.observers.add(Heard(Finishing, then=read))
    prefix = list(range(40, 62))
    for number, tail in enumerate(([7, 8], [9], [7, 8, 9, 10])):
        if number == 2:
            steps += run(engine)
        engine.add_request(f"r{number}", prefix + tail, SamplingParams(max_new_tokens=12))
    return engine, steps + run(engine), drafted


def run(engine: Engine) -> list[Any]:
    steps = []
    while engine.has_work:
        report = engine.step()
        assert broken_laws(engine) == []
        steps.append((report.kind, report.emitted, report.accept_lengths, report.cached))
    return steps


@pytest.mark.parametrize("plan", ["flashinfer", "fa3"])
@pytest.mark.usefixtures("registered")
def test_an_engine_serves_the_same_from_a_pool_of_another_package(plan: str) -> None:
    config = EngineConfig.from_dict({**OPTIONS, "attention_backend": plan})
    target, draft = load_models(config)
    assert draft is not None
    plain, expected, its_draft_kv = serve(config, Models(target, draft))
    assert isinstance(plain._memory.target, MHAPool)
    assert any(cached for _, _, _, cached in expected), "no prefix was hit"

    packed_draft: Any = load_models(config).draft
    packed_draft.kv_layout = "packed"
    packed_target = replace(target, config=replace(target.config, kv_layout="packed"))
    engine, steps, draft_kv = serve(config, Models(packed_target, packed_draft))
    assert [engine._memory.target, engine._memory.draft] == PackedPool.made
    assert all(pool.written for pool in PackedPool.made)
    assert steps == expected
    assert len(draft_kv) == len(its_draft_kv) == 6
    for found, wanted in zip(draft_kv, its_draft_kv, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert async_probe.drain() == []
    assert "packed_pool.write" in async_probe.reached()


@pytest.mark.usefixtures("registered")
def test_a_layout_that_nobody_has_is_answered_with_those_there_are() -> None:
    with pytest.raises(LookupError, match="no KV pool for layout 'tree'; there are mha, mla, packed"):
        kv_pool_of("tree")
