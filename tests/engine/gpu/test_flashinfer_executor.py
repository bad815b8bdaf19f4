"""FlashInfer attends what the metadata says, is planned from what the host knows, and survives capture.

The planning logic runs against a stand-in for the library on CPU tensors; what is marked gpu runs the library.
"""

from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.engine.gpu import flashinfer_executor
from specdebug.engine.gpu.flashinfer_executor import FlashInferExecutor
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.textbook.attention.executor import TorchAttention
from specdebug.engine.textbook.attention.flashinfer import FlashInferPlanner
from specdebug.engine.textbook.attention.planner import Metadata, RaggedMetadata, Workspace
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from tests.engine.attention.cases import (
    CPU,
    DIM,
    KV_HEADS,
    Q_HEADS,
    Case,
    World,
    build,
    draft_layout,
    eager,
    random_tree,
    static,
)
from tests.engine.attention.fake_flashinfer import DecodeWrapper, Kernels, PrefillWrapper, Wrapper

INT32 = torch.int32
LENGTHS = (9, 5, 14)
KINDS = ["decode", "extend", "prefill", "chain", "tree", "draft"]
GRAPH_KINDS = ["decode", "extend", "chain", "tree", "draft"]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The stand-in takes the library's place."""
    found = Kernels()
    library = SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=DecodeWrapper, BatchPrefillWithPagedKVCacheWrapper=PrefillWrapper
    )
    monkeypatch.setattr(flashinfer_executor, "load", lambda: library)
    monkeypatch.setattr(flashinfer_executor, "paged_kernels", lambda dtype, head_dim: found)
    monkeypatch.setattr(flashinfer_executor, "_SCRATCH_BYTES", 1 << 16)
    Wrapper.made.clear()
    return found


def make_executor() -> FlashInferExecutor:
    return FlashInferExecutor(num_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype=torch.float32, device=CPU)


@dataclass
class Planned:
    """A batch of one kind over scattered slots, planned into ``workspace``."""

    world: World
    metadata: RaggedMetadata
    loc: Tensor

    def check(self, attention: Any, metadata: Metadata | None = None) -> None:
        """``attention`` gives what the torch executor gives for ``metadata``."""
        n, world = self.loc.numel(), self.world
        for layer in range(2):
            q = world.draw(n, Q_HEADS, DIM).float()
            k, v = world.draw(n, KV_HEADS, DIM).float(), world.draw(n, KV_HEADS, DIM).float()
            expected = TorchAttention(metadata or self.metadata, world.pool, self.loc)(layer, q, k, v)
            torch.testing.assert_close(attention(layer, q, k, v), expected, atol=1e-5, rtol=1e-5)


def plan(kind: str, world: World, workspace: Workspace) -> Planned:
    planner = FlashInferPlanner(world.config, world.req_to_token)
    batch, nodes, lengths = len(world.case.lengths), world.case.nodes, world.case.lengths
    if kind == "draft":
        layout, slots = draft_layout(world)
        metadata: Metadata = planner.draft_decode(layout, workspace)[0]
        loc = slots[:, 0]
    else:
        each = {"decode": 1, "prefill": 3}.get(kind, nodes)
        loc = torch.cat([world.slots(b, n, n + each) for b, n in enumerate(lengths)])
        if kind == "prefill":
            metadata = planner.extend(world.chunks([each] * batch), workspace)
        elif kind in ("chain", "tree"):
            masks = torch.stack([random_tree(nodes, world.case.topk, world.generator) for _ in range(batch)])
            metadata = planner.verify(world.layout, masks, workspace)
        else:
            metadata = planner.extend_uniform(world.layout, each, workspace)
    assert isinstance(metadata, RaggedMetadata)
    return Planned(world, metadata, loc)


def make_world(kind: str, lengths: tuple[int, ...] = LENGTHS, seed: int = 5) -> World:
    return build(Case(lengths, 4, topk=2 if kind in ("tree", "draft") else 1, steps=3, seed=seed))


def static_workspace(kind: str, world: World) -> Workspace:
    planner = FlashInferPlanner(world.config, world.req_to_token)
    batch, nodes = len(world.case.lengths), world.case.nodes

    def declare(planner: Any, layout: Any) -> None:
        if kind == "draft":
            planner.declare_draft(layout, batch)
        elif kind in ("chain", "tree"):
            planner.declare_verify(layout, batch)
        else:
            planner.declare_extend(layout, batch, 1 if kind == "decode" else nodes)

    return static(planner, declare)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_an_eager_batch_attends_as_the_torch_executor_does(kernels: Kernels, kind: str) -> None:
    planned = plan(kind, make_world(kind), eager())
    attention = make_executor().bind(planned.metadata, planned.world.pool, planned.loc)
    planned.check(attention)
    decode = kind in ("decode", "draft")
    assert [type(wrapper) for wrapper in Wrapper.made] == [DecodeWrapper if decode else PrefillWrapper]
    assert Wrapper.made[0].plans == 1
    assert not Wrapper.made[0].graph


@pytest.mark.parametrize("kind", GRAPH_KINDS)
def test_a_graph_is_planned_anew_without_the_wrapper_and_reads_its_static_buffers(kernels: Kernels, kind: str) -> None:
    world = make_world(kind)
    workspace = static_workspace(kind, world)
    small = replace(world, case=replace(world.case, lengths=(2, 3, 1)))
    blank = plan(kind, small, workspace)
    attention = make_executor().bind(blank.metadata, world.pool, blank.loc, graph=True)
    blank.check(attention)
    later = plan(kind, world, workspace)
    assert later.metadata.kv_indptr.data_ptr() == blank.metadata.kv_indptr.data_ptr()
    attention._loc.copy_(later.loc)  # a runner's static locations
    # The wrapper was captured with views of a smaller batch; the captured kernels know only where those begin.
    wrapper = Wrapper.made[0]
    wrapper._paged_kv_indices_buf = later.metadata.kv_indices
    attention.replan(later.metadata)
    later.check(attention)
    assert (wrapper.plans, len(kernels.plans)) == (1, 1)
    done = kernels.plans[0]
    assert tuple(done["kv_lens"]) == later.metadata.kv_lens_host
    each = later.metadata.q_len
    assert each is not None
    assert (done["batch"], done["rows"]) == (done["rows"] // each, later.loc.numel())
    assert done["qo_indptr"] == list(range(0, done["rows"] + 1, each))
    assert done["kv_indptr"][-1] == sum(done["kv_lens"])
    assert done["causal"] == (kind in ("extend", "chain"))


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("kind", ["decode", "chain"])
def test_where_host_and_device_disagree_the_device_is_attended(kernels: Kernels, kind: str, graph: bool) -> None:
    world = make_world(kind)
    planned = plan(kind, world, static_workspace(kind, world) if graph else eager())
    device = replace(planned.metadata, kv_indptr=planned.metadata.kv_indptr.clone())
    device.kv_indptr[1:] -= torch.tensor([1, 2, 2], dtype=INT32)
    assert device.kv_lens_host == tuple(planned.metadata.kv_lens_host or ())
    attention = make_executor().bind(device, world.pool, planned.loc, graph=graph)
    planned.check(attention, device)
    assert device.kv_indptr.tolist() == (planned.metadata.kv_indptr - torch.tensor([0, 1, 2, 2])).tolist()


def test_schedules_take_turns_in_host_memory(kernels: Kernels) -> None:
    world = make_world("decode")
    planned = plan("decode", world, static_workspace("decode", world))
    attention = make_executor().bind(planned.metadata, world.pool, planned.loc, graph=True)
    for _ in range(4):
        attention.replan(planned.metadata)
    first = Wrapper.made[0]._pin_memory_int_workspace_buffer.data_ptr()
    used = [done["staging"] for done in kernels.plans]
    assert used == [used[0], first, used[0], first]
    assert used[0] != first


def test_scratch_grows_for_a_batch_that_needs_more_and_is_shared_otherwise(kernels: Kernels) -> None:
    executor = make_executor()
    sizes = []
    for lengths in ((3,), (3,) * 60, (3,)):
        world = make_world("chain", lengths)
        planned = plan("chain", world, static_workspace("chain", world))
        executor.bind(planned.metadata, world.pool, planned.loc, graph=True)
        sizes.append(Wrapper.made[-1].float_workspace.numel())
    group, nodes, batch = Q_HEADS // KV_HEADS, 4, 60
    tiles = -(-batch * nodes * group // 128) + batch - 1
    assert sizes[0] == 1 << 16
    assert sizes[1] == sizes[2] == Q_HEADS * tiles * 128 * (DIM + 1) * 4 + 64
    assert Wrapper.made[0].float_workspace.data_ptr() != Wrapper.made[1].float_workspace.data_ptr()
    assert Wrapper.made[1].float_workspace.data_ptr() == Wrapper.made[2].float_workspace.data_ptr()


# The library itself


CUDA = torch.device("cuda")
SLOTS = 4096
SHAPES = {64: (4, 2), 128: (8, 2)}


@pytest.fixture(scope="module", params=[64, 128])
def executor(request: pytest.FixtureRequest) -> FlashInferExecutor:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("flashinfer")
    heads, kv_heads = SHAPES[request.param]
    return FlashInferExecutor(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=request.param, dtype=torch.bfloat16, device=CUDA
    )


def on_device(metadata: RaggedMetadata) -> RaggedMetadata:
    moved = {f.name: getattr(metadata, f.name) for f in fields(metadata)}
    return RaggedMetadata(**{k: v.to(CUDA) if isinstance(v, Tensor) else v for k, v in moved.items()})


@dataclass
class Batch:
    """A batch over random slots of two pools that hold the same: bfloat16 on the device, float32 on the CPU."""

    executor: FlashInferExecutor
    kv_lens: tuple[int, ...]
    q_lens: tuple[int, ...]
    tree: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        heads, dim = self.executor.num_kv_heads, self.executor.head_dim
        fill = FillPolicy("zeros")
        sizes: dict[str, Any] = {"num_layers": 1, "num_slots": SLOTS, "page_size": 1, "fill": fill}
        shape: dict[str, Any] = {"num_kv_heads": heads, "head_dim": dim}
        self.pool = MHAPool(**sizes, **shape, dtype=torch.bfloat16, device=CUDA)
        self.reference = MHAPool(**sizes, **shape, dtype=torch.float32)
        for here, there in ((self.pool.k[0], self.reference.k[0]), (self.pool.v[0], self.reference.v[0])):
            content = torch.randn(there.shape, generator=self.generator).bfloat16()
            here.copy_(content)
            there.copy_(content.float())
        starts = torch.tensor([0, *self.kv_lens]).cumsum(0)
        slots = torch.randperm(SLOTS, generator=self.generator)[: int(starts[-1])] + 1
        uniform = self.q_lens[0] if len(set(self.q_lens)) == 1 else None
        mask = mask_indptr = None
        if self.tree:
            rows = []
            for length, count in zip(self.kv_lens, self.q_lens, strict=True):
                own = random_tree(count, 2, self.generator)
                rows.append(torch.cat([torch.ones(count, length - count, dtype=torch.bool), own], dim=1).flatten())
            mask = torch.cat(rows)
            mask_indptr = torch.tensor([0, *(row.numel() for row in rows[:-1])]).cumsum(0)
        self.metadata = RaggedMetadata(
            kv_indptr=starts.int(),
            kv_indices=slots.int(),
            qo_indptr=torch.tensor([0, *self.q_lens]).cumsum(0).int(),
            q_len=uniform,
            causal=not self.tree,
            custom_mask=mask,
            mask_indptr=mask_indptr,
            kv_lens_host=self.kv_lens,
            q_lens_host=self.q_lens,
        )
        ends = zip(starts[1:].tolist(), self.q_lens, strict=True)
        self.loc = torch.cat([slots[end - count : end] for end, count in ends])
        heads = self.executor.num_heads
        qkv = torch.randn(self.loc.numel(), heads + 2 * shape["num_kv_heads"], dim, generator=self.generator)
        self.qkv = qkv.bfloat16()

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as slices of one tensor, as a model's fused projection gives them."""
        kv_heads = self.executor.num_kv_heads
        q, k, v = qkv.split([self.executor.num_heads, kv_heads, kv_heads], dim=1)
        return q, k, v

    def expected(self) -> Tensor:
        return TorchAttention(self.metadata, self.reference, self.loc)(0, *self.split(self.qkv.float()))

    def check(self, found: Tensor) -> None:
        torch.testing.assert_close(found.float().cpu(), self.expected(), atol=2e-2, rtol=2e-2)


BATCHES: dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]] = {
    "decode": ((1, 17, 511, 130, 64), (1,) * 5, False),
    "chain": ((4, 33, 260), (4,) * 3, False),
    "tree": ((9, 70, 300, 13), (9,) * 4, True),
    "prefill": ((40, 3, 700), (25, 3, 160), False),
}


@pytest.mark.gpu
@pytest.mark.parametrize("kind", BATCHES)
def test_the_library_attends_an_eager_batch(executor: FlashInferExecutor, kind: str) -> None:
    kv_lens, q_lens, tree = BATCHES[kind]
    batch = Batch(executor, kv_lens, q_lens, tree)
    attention = executor.bind(on_device(batch.metadata), batch.pool, batch.loc.to(CUDA))
    batch.check(attention(0, *batch.split(batch.qkv.to(CUDA))))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["decode", "chain", "tree"])
def test_a_captured_graph_follows_new_metadata_without_waiting_for_the_device(
    executor: FlashInferExecutor, kind: str
) -> None:
    kv_lens, q_lens, tree = BATCHES[kind]
    batch = Batch(executor, kv_lens, q_lens, tree)
    capacity = sum(kv_lens) + 64
    static = on_device(batch.metadata)
    kv_indices = torch.zeros(capacity, dtype=INT32, device=CUDA)
    changes: dict[str, Any] = {"kv_indices": kv_indices}
    if tree:
        changes["custom_mask"] = torch.ones(capacity * q_lens[0], dtype=torch.bool, device=CUDA)
    static = replace(static, **changes)
    count = len(q_lens)
    blank = replace(static, kv_lens_host=q_lens)
    static.kv_indptr.copy_(torch.tensor([0, *q_lens]).cumsum(0))
    if static.mask_indptr is not None:
        static.mask_indptr.copy_(torch.arange(count) * q_lens[0] ** 2)
    loc = torch.zeros(batch.loc.numel(), dtype=torch.int64, device=CUDA)
    qkv = torch.zeros(batch.qkv.shape, dtype=torch.bfloat16, device=CUDA)
    attention = executor.bind(blank, batch.pool, loc, graph=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        attention(0, *batch.split(qkv))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(0, *batch.split(qkv))
    for seed in (1, 2):
        lengths = tuple(max(length - seed * 5, q_lens[0]) for length in kv_lens)
        following = Batch(executor, lengths, q_lens, tree, seed)
        for pool, other in ((batch.pool.k[0], following.pool.k[0]), (batch.pool.v[0], following.pool.v[0])):
            pool.copy_(other)
        new = on_device(following.metadata)
        static.kv_indptr.copy_(new.kv_indptr)
        kv_indices[: new.kv_indices.numel()].copy_(new.kv_indices)
        if tree:
            assert static.custom_mask is not None
            assert static.mask_indptr is not None
            assert new.custom_mask is not None
            assert new.mask_indptr is not None
            static.custom_mask[: new.custom_mask.numel()].copy_(new.custom_mask)
            static.mask_indptr.copy_(new.mask_indptr)
        loc.copy_(following.loc)
        qkv.copy_(following.qkv)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            attention.replan(replace(static, kv_lens_host=lengths))
            graph.replay()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        following.check(out)


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_a_host_that_believes_in_more_keys_per_query_changes_nothing(executor: FlashInferExecutor, graph: bool) -> None:
    kv_lens, q_lens, tree = BATCHES["decode"]
    batch = Batch(executor, kv_lens, q_lens, tree)
    believed = replace(on_device(batch.metadata), kv_lens_host=tuple(length + 300 for length in kv_lens))
    attention = executor.bind(believed, batch.pool, batch.loc.to(CUDA), graph=graph)
    batch.check(attention(0, *batch.split(batch.qkv.to(CUDA))))
