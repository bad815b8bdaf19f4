"""flash-attn under the fa3 plan: the planner's batches against dense attention, by a stand-in for the library."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.attention.fa3 import FlashAttention3Planner
from specdebug.engine.gpu.flash_attn import (
    FlashAttention2,
    FlashAttention3,
    FlashAttnAttention,
    FlashAttnExecutor,
    FlashAttnKernels,
)
from specdebug.engine.model.interface import StoredAttention
from specdebug.engine.textbook.attention.executor import TorchAttention
from specdebug.engine.textbook.attention.planner import Metadata, PagedMetadata
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from tests.engine.attention import cases as worlds
from tests.engine.attention.cases import (
    DIM,
    FORWARDS,
    KV_HEADS,
    LAYERS,
    Q_HEADS,
    Case,
    cases,
    every_forward,
    two_sequences,
    verify,
)
from tests.engine.attention.fake_flash_attn import Interface3, Package2

INT32 = torch.int32
PLANNER = FlashAttention3Planner
FEW = settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])


def attended_by(kernels: FlashAttnKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worlds of the torch executor's tests, attended by this one."""

    def bind(metadata: Metadata, pool: MHAPool, loc: Tensor, scale: None) -> FlashAttnAttention:
        return FlashAttnExecutor(kernels).bind(metadata, pool, loc)

    monkeypatch.setattr(worlds, "TorchAttention", bind)


@pytest.fixture
def interface(monkeypatch: pytest.MonkeyPatch) -> Interface3:
    module = Interface3()
    attended_by(FlashAttention3(module), monkeypatch)
    return module


@every_forward
@given(case=cases(min_steps=2))
@FEW
def test_every_forward_is_dense_attention_from_static_buffers(interface: Interface3, forward: Any, case: Case) -> None:
    forward(PLANNER, case, True).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half_precision(interface: Interface3, dtype: torch.dtype) -> None:
    for forward in FORWARDS.values():
        forward(PLANNER, Case((9,), 4, topk=2, steps=2, dtype=dtype), False).check()


def test_a_tree_is_two_calls_a_layer_over_pages_and_over_slots(interface: Interface3) -> None:
    case = Case((9, 5), 4, topk=2, steps=2)
    verify(PLANNER, case).check()
    nodes = case.nodes
    prefix = {"shape": (2, nodes, Q_HEADS, DIM), "page": 4, "causal": False}
    expand = {"shape": (2 * nodes, 1, Q_HEADS, DIM), "page": 1, "causal": False}
    assert interface.calls == [prefix, expand] * LAYERS


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=3).map(tuple), seed=st.integers(0, 999))
@FEW
def test_the_second_generation_attends_chains_over_large_pages(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...], seed: int
) -> None:
    attended_by(FlashAttention2(Package2()), monkeypatch)
    case = Case(lengths, 256, topk=1, steps=3, seed=seed)
    for forward in FORWARDS.values():
        forward(PLANNER, case, True).check()


def test_it_attends_where_the_model_wrote() -> None:
    world = two_sequences((4, 4))
    slots = torch.stack([world.slots(0, 0, 4), world.slots(1, 0, 4)]).to(INT32)
    plan = PagedMetadata(slots, torch.tensor([4, 4], dtype=INT32), torch.arange(3), 1, 1)
    loc, kv = torch.stack([slots[0, 0], slots[1, 0]]).long(), torch.randn(2, 2, KV_HEADS, DIM)
    q = torch.randn(2, Q_HEADS, DIM)
    bound = FlashAttnExecutor(FlashAttention3(Interface3())).bind(plan, world.pool, loc)
    assert isinstance(bound, StoredAttention)
    expected = TorchAttention(plan, world.pool, loc)(1, q, kv[0], kv[1])
    place = bound.destination(1)
    place.k[place.slots], place.v[place.slots] = kv[0], kv[1]
    torch.testing.assert_close(bound.attend(1, q), expected)
