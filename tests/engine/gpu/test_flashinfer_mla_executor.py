"""FlashInfer's kernels for latents attend what the host's schedule says, where the host knows; Triton's do the rest.

The logic runs against a stand-in for the library on CPU tensors; what is marked gpu runs the library.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.engine.attention.backend import TritonBackend
from specdebug.engine.attention.flashinfer_mla import FlashInferMLAPlanner
from specdebug.engine.errors import FlashInferError
from specdebug.engine.gpu import flashinfer_executor
from specdebug.engine.gpu.flashinfer_executor import FlashInferMLAAttention, FlashInferMLAExecutor
from specdebug.engine.gpu.flashinfer_library import LATENT, supports_latents
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.memory.kv_pool import MLAPool
from specdebug.engine.textbook.attention.executor import TorchAttention
from specdebug.engine.textbook.attention.planner import Metadata, RaggedMetadata
from tests.engine.attention.cases import CPU, Case, World, build, draft_layout, eager, random_tree
from tests.engine.attention.fake_flashinfer import LatentKernels
from tests.tolerance import rounding

HEADS = 4
LENGTHS = (9, 5, 14)


@pytest.fixture
def world() -> World:
    return build(Case(LENGTHS, 4, topk=1, steps=3, seed=5, latent=True))


@pytest.fixture
def kernels(world: World, monkeypatch: pytest.MonkeyPatch) -> LatentKernels:
    """The stand-in takes the library's place, with the pool's sizes."""
    found = LatentKernels()
    keys, values = world.pool.kv_buffer(0)
    sizes = (values.shape[2], keys.shape[2] - values.shape[2])
    monkeypatch.setattr(flashinfer_executor, "latent_kernels", lambda dtype, device: found)
    monkeypatch.setattr(flashinfer_executor, "LATENT", sizes)
    monkeypatch.setattr(flashinfer_executor, "_SCRATCH_BYTES", 1 << 10)
    return found


def made(world: World) -> FlashInferMLAExecutor:
    assert world.case.scale is not None
    model: Any = SimpleNamespace(num_heads=HEADS, softmax_scale=world.case.scale)
    return FlashInferMLAExecutor(model, torch.float32, CPU)


def planned(world: World, each: int, *, prefill: bool = False) -> tuple[RaggedMetadata, Tensor]:
    """``each`` new tokens of every sequence: the batch and its slots."""
    planner = FlashInferMLAPlanner(world.config, world.req_to_token)
    if prefill:
        metadata = planner.extend(world.chunks([each] * len(LENGTHS)), eager())
    else:
        metadata = planner.extend_uniform(world.layout, each, eager())
    assert isinstance(metadata, RaggedMetadata)
    return metadata, torch.cat([world.slots(b, n, n + each) for b, n in enumerate(LENGTHS)])


def check(world: World, attention: Any, metadata: Metadata, loc: Tensor) -> None:
    """It gives what the torch executor gives, in both layers."""
    keys, values = world.pool.kv_buffer(0)
    for layer in range(2):
        q = world.draw(loc.numel(), HEADS, keys.shape[2]).float()
        row = world.draw(loc.numel(), 1, keys.shape[2]).float()
        given = (layer, q, row, row[..., : values.shape[2]])
        expected = TorchAttention(metadata, world.pool, loc, world.case.scale)(*given)
        near = rounding(keys.shape[2], 20, size=4.0)
        torch.testing.assert_close(attention(*given), expected, **near)


@pytest.mark.parametrize(("each", "prefill"), [(1, False), (3, False), (3, True)])
def test_a_batch_whose_lengths_the_host_knows_is_the_librarys(
    world: World, kernels: LatentKernels, each: int, prefill: bool
) -> None:
    metadata, loc = planned(world, each, prefill=prefill)
    attention = made(world).bind(metadata, world.pool, loc)
    check(world, attention, metadata, loc)
    assert [plan["causal"] for plan in kernels.plans] == [each > 1]


def test_a_graph_is_planned_anew_where_it_was(world: World, kernels: LatentKernels) -> None:
    executor = made(world)
    metadata, loc = planned(world, 1)
    attention = executor.bind(metadata, world.pool, loc, graph=True)
    shorter = replace(world.layout, seq_lens=world.seq_lens - 1, seq_lens_cpu=tuple(n - 1 for n in LENGTHS))
    again = FlashInferMLAPlanner(world.config, world.req_to_token).extend_uniform(shorter, 1, eager())
    attention.replan(again)
    loc = torch.cat([world.slots(b, n - 1, n) for b, n in enumerate(LENGTHS)])
    check(world, FlashInferMLAAttention(executor, again, world.pool, loc, graph=True), again, loc)
    assert [plan["kv_lens"] for plan in kernels.plans[:2]] == [[n + 1 for n in LENGTHS], list(LENGTHS)]
    assert kernels.plans[0]["space"] == kernels.plans[1]["space"]
    assert kernels.plans[2]["space"] != kernels.plans[0]["space"]


def test_bounds_and_trees_are_left_to_our_kernels(world: World, kernels: LatentKernels, monkeypatch: Any) -> None:
    """A plan for exact lengths is not replaced by one of bounds, either."""
    bound: list[Metadata] = []
    monkeypatch.setattr(TritonBackend, "bind", lambda self, metadata, *rest, **options: bound.append(metadata))
    executor = made(world)
    planner = FlashInferMLAPlanner(world.config, world.req_to_token)
    late = planner.extend_uniform(replace(world.layout, slack=3), 1, eager())
    trees = torch.stack([random_tree(world.case.nodes, 1, world.generator) for _ in LENGTHS])
    batches = [
        late,
        planner.verify(world.layout, trees, eager()),
        *planner.draft_decode(draft_layout(world)[0], eager()),
    ]
    for metadata in batches:
        executor.bind(metadata, world.pool, None)
    assert bound == batches
    assert kernels.plans == []
    attention = executor.bind(planned(world, 1)[0], world.pool, None)
    with pytest.raises(FlashInferError, match="planned for lengths that the host knows"):
        attention.replan(late)


def test_there_are_kernels_for_deepseeks_sizes_alone() -> None:
    assert supports_latents(torch.bfloat16, 512, 64) is None
    assert "kernels for latents and key parts of 512 and 64 columns, not 64 and 32" in str(
        supports_latents(torch.bfloat16, 64, 32)
    )
    assert "not in float32" in str(supports_latents(torch.float32, 512, 64))


@pytest.fixture(scope="module")
def library() -> FlashInferMLAExecutor:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("flashinfer")
    model: Any = SimpleNamespace(num_heads=16, softmax_scale=192**-0.5)
    return FlashInferMLAExecutor(model, torch.bfloat16, torch.device("cuda"))


def pool_of(dtype: torch.dtype, device: torch.device) -> MLAPool:
    sizes: dict[str, Any] = {"num_layers": 1, "num_slots": 2048, "page_size": 1, "fill": FillPolicy("zeros")}
    return MLAPool(**sizes, row_dim=sum(LATENT), value_dim=LATENT[0], dtype=dtype, device=device)


def there_too(pool: MLAPool) -> MLAPool:
    """The same in bfloat16 on the GPU."""
    copy = pool_of(torch.bfloat16, torch.device("cuda"))
    copy.kv_buffer(0)[0].copy_(pool.kv_buffer(0)[0])
    return copy


def latents(kv_lens: tuple[int, ...], q_lens: tuple[int, ...], seed: int) -> tuple[RaggedMetadata, MLAPool, Tensor]:
    """A batch on the CPU over scattered slots of a pool whose other slots hold NaN, and its queries in bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    latent, part = LATENT
    pool = pool_of(torch.float32, CPU)
    starts = torch.tensor([0, *kv_lens]).cumsum(0)
    slots = torch.randperm(2047, generator=generator)[: int(starts[-1])] + 1
    rows, _ = pool.kv_buffer(0)
    rows.fill_(torch.nan)
    rows[slots] = torch.randn(len(slots), 1, latent + part, generator=generator).bfloat16().float()
    metadata = RaggedMetadata(
        kv_indptr=starts.int(),
        kv_indices=slots.int(),
        qo_indptr=torch.tensor([0, *q_lens]).cumsum(0).int(),
        q_len=q_lens[0] if len(set(q_lens)) == 1 else None,
        kv_lens_host=kv_lens,
        kv_lens_exact=True,
        q_lens_host=q_lens,
    )
    return metadata, pool, torch.randn(sum(q_lens), 16, latent + part, generator=generator).bfloat16()


def on_device(metadata: RaggedMetadata) -> RaggedMetadata:
    moved = {name: getattr(metadata, name).to("cuda") for name in ("kv_indptr", "kv_indices", "qo_indptr")}
    return replace(metadata, **moved)


def check_device(found: Tensor, metadata: RaggedMetadata, pool: MLAPool, q: Tensor) -> None:
    expected = TorchAttention(metadata, pool, None, 192**-0.5).attend(0, q.float())
    assert (found.float().cpu() - expected).norm() <= 2 * torch.finfo(torch.bfloat16).eps * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kv_lens", "q_lens"), [((1, 17, 511, 130, 64), (1,) * 5), ((4, 33, 260), (4,) * 3), ((40, 3, 700), (25, 3, 160))]
)
def test_the_library_attends_an_eager_batch(
    library: FlashInferMLAExecutor, kv_lens: tuple[int, ...], q_lens: tuple[int, ...]
) -> None:
    metadata, pool, q = latents(kv_lens, q_lens, 0)
    there = there_too(pool)
    attention = library.bind(on_device(metadata), there, None)
    assert isinstance(attention, FlashInferMLAAttention)
    check_device(attention.attend(0, q.to("cuda")), metadata, pool, q)


@pytest.mark.gpu
def test_a_captured_graph_follows_new_lengths(library: FlashInferMLAExecutor) -> None:
    metadata, pool, q = latents((1, 17, 511, 130, 64), (1,) * 5, 0)
    there = there_too(pool)
    kv_indices = torch.zeros(1024, dtype=torch.int32, device="cuda")
    queries = torch.zeros(q.shape, dtype=torch.bfloat16, device="cuda")
    short = (1,) * 5
    blank = replace(on_device(metadata), kv_indices=kv_indices, kv_lens_host=short)
    attention = library.bind(blank, there, None, graph=True)
    attention.attend(0, queries)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention.attend(0, queries)
    for seed, kv_lens in ((1, (3, 400, 2, 130, 77)), (2, (64, 1, 300, 5, 90))):
        metadata, pool, q = latents(kv_lens, (1,) * 5, seed)
        there.kv_buffer(0)[0].copy_(pool.kv_buffer(0)[0])
        kv_indices[: sum(kv_lens)].copy_(metadata.kv_indices)
        queries.copy_(q)
        attention.replan(replace(on_device(metadata), kv_indices=kv_indices))
        graph.replay()
        check_device(out, metadata, pool, q)
