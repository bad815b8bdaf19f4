"""The Triton executor under every plan: the planners' batches against dense attention, and the torch reference."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from specdebug.base.attention_plans import SHIPPED
from specdebug.engine.attention.backend import planner_class
from specdebug.engine.attention.fa3 import FlashAttention3Planner
from specdebug.engine.attention.triton import TritonPlanner
from specdebug.engine.gpu import triton_executor
from specdebug.engine.gpu.flash_attn import FlashAttention3, FlashAttnExecutor
from specdebug.engine.gpu.triton_executor import TritonAttention
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.memory.kv_pool import KVPool, MLAPool
from specdebug.engine.model.interface import StoredAttention
from specdebug.engine.textbook.attention.executor import TorchAttention
from specdebug.engine.textbook.attention.planner import CascadeMetadata, Metadata, PagedMetadata
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from tests.engine.attention import cases as worlds
from tests.engine.attention.cases import (
    DIM,
    FORWARDS,
    KV_HEADS,
    LAYERS,
    Q_HEADS,
    Case,
    every_forward,
    ragged_of,
    two_sequences,
    uniform,
)
from tests.engine.attention.fake_flash_attn import Interface3
from tests.interpreter import device, float_types

__all__ = ["device"]
PLANNERS = [planner_class(plan.name) for plan in SHIPPED]
LATENT_PLANNERS = [planner_class(plan.name, "mla") for plan in SHIPPED]
INT32 = torch.int32
Moved = TypeVar("Moved", bound=Any)


def moved(metadata: Moved, to: torch.device) -> Moved:
    changes = {}
    for field in fields(metadata):
        value = getattr(metadata, field.name)
        if isinstance(value, Tensor):
            changes[field.name] = value.to(to)
        elif isinstance(value, PagedMetadata):
            changes[field.name] = moved(value, to)
    return replace(metadata, **changes)


class OnDevice:
    """TritonAttention for plans and pools made on the CPU, results back there."""

    def __init__(
        self, metadata: Metadata, pool: KVPool, loc: Tensor | None, device: torch.device, scale: float | None = None
    ) -> None:
        self._host, self._device = pool, device
        self._pool = pool if device.type == "cpu" else pool_like(pool, device)
        there = None if loc is None else loc.to(device)
        self.attention = TritonAttention(moved(metadata, device), self._pool, there, scale)

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._copy(self._host, self._pool, layer_id)
        out = self.attention(layer_id, *(tensor.to(self._device) for tensor in (q, k, v)))
        self._copy(self._pool, self._host, layer_id)
        return out.cpu()

    def replan(self, metadata: Metadata) -> None:
        self.attention.replan(moved(metadata, self._device))

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        self._copy(self._host, self._pool, layer_id)
        return self.attention.attend(layer_id, q.to(self._device)).cpu()

    def _copy(self, source: KVPool, target: KVPool, layer: int) -> None:
        if source is not target:
            for theirs, ours in zip(source.kv_buffer(layer), target.kv_buffer(layer), strict=True):
                ours.copy_(theirs)


def pool_like(pool: KVPool, device: torch.device) -> KVPool:
    k, v = pool.kv_buffer(0)
    sizes: dict[str, Any] = {"num_layers": pool.num_layers, "num_slots": pool.size - 1, "page_size": 1}
    sizes |= {"dtype": k.dtype, "fill": FillPolicy("zeros"), "device": device}
    if isinstance(pool, MLAPool):
        return MLAPool(row_dim=k.shape[2], value_dim=v.shape[2], **sizes)
    return MHAPool(num_kv_heads=k.shape[1], head_dim=k.shape[2], **sizes)


@pytest.fixture(autouse=True)
def on_device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worlds of the other executor's tests, attended by this one."""

    def bind(metadata: Metadata, pool: KVPool, loc: Tensor | None, scale: float | None = None) -> OnDevice:
        return OnDevice(metadata, pool, loc, device, scale)

    monkeypatch.setattr(worlds, "TorchAttention", bind)


SMALL = st.builds(
    Case,
    lengths=st.lists(st.integers(1, 9) | st.just(33), min_size=1, max_size=2).map(tuple),
    page_size=st.sampled_from([1, 4]),
    topk=st.integers(1, 2),
    steps=st.integers(2, 3),
    seed=st.integers(0, 10**6),
)
# few examples and no search for smaller ones: interpreted programs are slow. The fixture replaces a name.
FEW = settings(
    max_examples=3,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


ALL = [(planner, False) for planner in PLANNERS] + [(planner, True) for planner in LATENT_PLANNERS]


@pytest.mark.parametrize(("planner", "latent"), ALL)
@every_forward
@given(case=SMALL)
@FEW
def test_every_forward_is_dense_attention(planner: Any, latent: bool, forward: Any, case: Case) -> None:
    forward(planner, replace(case, latent=latent), True).check()


@pytest.mark.parametrize(("planner", "latent"), ALL)
@pytest.mark.parametrize("dtype", float_types()[1:])
def test_half_precision_stays_half_precision(planner: Any, latent: bool, dtype: torch.dtype) -> None:
    for forward in FORWARDS.values():
        forward(planner, Case((9,), 4, topk=2, steps=2, dtype=dtype, latent=latent), False).check()


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("page_size", [3, 24])
def test_pages_may_have_any_size(planner: Any, page_size: int) -> None:
    for name in ("prefill", "verify", "draft"):
        FORWARDS[name](planner, Case((page_size + 1, 5), page_size, topk=2, steps=2), True).check()


@pytest.mark.parametrize("most", [0, 32])
def test_long_sequences_in_as_many_parts_as_planned(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged by a kernel of its own where there are too many."""
    monkeypatch.setattr(triton_executor, "MAX_MERGED_IN_PLACE", most)
    uniform(TritonPlanner, Case((3, 600), 16), 1).check()
    uniform(FlashAttention3Planner, Case((600,), 16), 1).check()
    uniform(TritonPlanner, Case((3, 600), 16, latent=True), 1).check()


def test_new_keys_are_written_before_they_are_attended_or_by_the_model_itself(device: torch.device) -> None:
    """From slices of one fused projection, as models hand them over; or to where the executor says."""
    world = two_sequences((3, 2))
    loc = torch.cat([world.slots(0, 3, 4), world.slots(1, 2, 3)])
    plan = ragged_of([0, 4, 7], torch.cat([world.slots(0, 0, 4), world.slots(1, 0, 3)]).to(INT32))
    q, k, v = torch.randn(2, Q_HEADS + 2 * KV_HEADS, DIM).split([Q_HEADS, KV_HEADS, KV_HEADS], dim=1)
    expected = TorchAttention(plan, world.pool, loc)(1, q, k, v)
    assert not bool(expected.isnan().any())
    for pool in (world.pool.k[1], world.pool.v[1]):
        pool[loc] = float("nan")
    found = OnDevice(plan, world.pool, loc, device)
    torch.testing.assert_close(found(1, q, k, v), expected)
    bound = found.attention
    assert isinstance(bound, StoredAttention)
    place = bound.destination(1)
    for cache, new in zip((place.k, place.v), (k, v), strict=True):
        assert torch.equal(cache[place.slots], new.to(device))
        cache[place.slots] = float("nan")
    assert bool(bound.attend(1, q.to(device)).isnan().all())
    for cache, new in zip((place.k, place.v), (k, v), strict=True):
        cache[place.slots] = new.to(device)
    torch.testing.assert_close(bound.attend(1, q.to(device)).cpu(), expected)


@pytest.fixture(params=["triton", "flash-attn"])
def bind(request: pytest.FixtureRequest, device: torch.device) -> Callable[[Metadata, KVPool, Tensor], Any]:
    """Binds a batch to this executor, or to flash-attn's over a stand-in for the library."""
    if request.param == "triton":
        return lambda plan, pool, loc: OnDevice(plan, pool, loc, device)
    return FlashAttnExecutor(FlashAttention3(Interface3())).bind


def test_a_sequence_without_keys_attends_nothing(request: pytest.FixtureRequest, bind: Any) -> None:
    """An empty list, a length of zero, and a cascade of which one pass or both are empty."""
    world = two_sequences((3, 2))
    q, kv = torch.ones(2, Q_HEADS, DIM), torch.full((2, KV_HEADS, DIM), float("nan"))
    loc = torch.zeros(2, dtype=torch.int64)  # NaN goes to padding, which no query may see
    ragged = ragged_of([0, 3, 3], world.slots(0, 0, 4).to(INT32))
    slots = torch.stack([world.slots(0, 0, 3), torch.zeros(3, dtype=torch.int64)]).to(INT32)
    paged = PagedMetadata(slots, torch.tensor([3, 0], dtype=INT32), torch.arange(3), 1, 1, causal=False)
    empty = replace(paged, cache_seqlens=torch.zeros(2, dtype=INT32))
    expected = TorchAttention(paged, world.pool, loc)(0, q, kv, kv)
    lists = [ragged] if "triton" in request.node.callspec.id else []  # flash-attn's plan has page tables alone
    for plan in (*lists, paged, CascadeMetadata(paged, empty), CascadeMetadata(empty, paged)):
        out = bind(plan, world.pool, loc)(0, q, kv, kv)
        torch.testing.assert_close(out, expected)
        assert bool((out[1] == 0).all())
    assert bool((bind(CascadeMetadata(empty, empty), world.pool, loc)(0, q, kv, kv) == 0).all())


def test_it_attends_by_its_newest_plan(bind: Any) -> None:
    """All layers, with the workspace of the first."""
    world = two_sequences((4, 4))
    slots = torch.stack([world.slots(0, 0, 4), world.slots(1, 0, 4)]).to(INT32)
    first = PagedMetadata(slots, torch.tensor([4, 4], dtype=INT32), torch.arange(3), 1, 1)
    second = replace(first, cache_seqlens=torch.tensor([1, 3], dtype=INT32))
    loc, kv = torch.zeros(2, dtype=torch.int64), torch.zeros(2, KV_HEADS, DIM)
    q = world.draw(2, Q_HEADS, DIM).float()
    bound = bind(first, world.pool, loc)
    for plan in (first, second):
        bound.replan(plan)
        for layer in range(LAYERS):
            expected = TorchAttention(plan, world.pool, loc)(layer, q, kv, kv)
            torch.testing.assert_close(bound(layer, q, kv, kv), expected)


def test_no_rows_are_no_launch(bind: Any) -> None:
    world, none = two_sequences((4, 4)), torch.zeros(0, dtype=torch.int64)
    plan = PagedMetadata(torch.zeros((0, 1), dtype=INT32), torch.zeros(0, dtype=INT32), torch.zeros(1), 1, 1)
    kv = torch.zeros(0, KV_HEADS, DIM)
    assert bind(plan, world.pool, none)(0, torch.zeros(0, Q_HEADS, DIM), kv, kv).shape == (0, Q_HEADS * DIM)
