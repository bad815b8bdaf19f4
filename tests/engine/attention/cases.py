"""Batches over a paged pool, and the attention they must give: dense, in float64, from what the test wrote.

A ``World`` holds sequences on scattered pages. Every slot that no sequence has committed is NaN, so metadata that
reaches one slot too far shows at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.config import EngineConfig
from specdebug.engine.kernels.cache_locs import assign_draft_cache_locs
from specdebug.engine.memory.arena import Arena, ArenaLayout, FillPolicy, Scratch
from specdebug.engine.memory.kv_pool import MLAPool
from specdebug.engine.textbook.attention.executor import TorchAttention
from specdebug.engine.textbook.attention.planner import (
    AttentionPlanner,
    DraftLayout,
    ExtendLayout,
    Metadata,
    RaggedMetadata,
    SequenceLayout,
    Workspace,
)
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from specdebug.engine.textbook.memory.req_to_token import ReqToToken

CPU = torch.device("cpu")
LAYERS, Q_HEADS, KV_HEADS, DIM = 2, 4, 2, 8
LATENT_DIM, KEY_PART, LATENT_SCALE = 32, 16, 0.2
"""Of latent attention, whose scale has nothing to do with the width of its rows."""
PlannerType = type[AttentionPlanner]
Declare = Callable[[AttentionPlanner, ArenaLayout], None]


@dataclass(frozen=True)
class Case:
    """One batch. ``lengths`` are committed lengths L; ``seed`` decides contents, slots and row numbers."""

    lengths: tuple[int, ...]
    page_size: int = 1
    topk: int = 1
    steps: int = 2
    seed: int = 0
    contiguous: bool = False
    dtype: torch.dtype = torch.float32
    latent: bool = False

    @property
    def scale(self) -> float | None:
        return LATENT_SCALE if self.latent else None

    @property
    def dim(self) -> int:
        """The width of queries and keys."""
        return LATENT_DIM + KEY_PART if self.latent else DIM

    @property
    def nodes(self) -> int:
        """T: all that two levels offer, so that trees have siblings and depth."""
        if self.topk == 1:
            return self.steps + 1
        return min(1 + self.topk + self.topk**2 * (self.steps - 1), 9)


@st.composite
def cases(draw: st.DrawFn, *, min_topk: int = 1, max_topk: int = 3, min_steps: int = 1) -> Case:
    """Lengths short, and near the ends of a page."""
    page = draw(st.sampled_from([1, 4, 16, 256]))
    length = st.integers(1, 24) | st.integers(max(page - 2, 1), page + 2)
    return Case(
        lengths=tuple(draw(st.lists(length, min_size=1, max_size=4))),
        page_size=page,
        topk=draw(st.integers(min_topk, max_topk)),
        steps=draw(st.integers(min_steps, 5)),
        seed=draw(st.integers(0, 10**6)),
        contiguous=draw(st.booleans()),
    )


@dataclass
class World:
    """Rows, a pool, and what its sequences committed: ``history[b]`` is k, v float64 [LAYERS, L, KV_HEADS, DIM], or of
    latent attention [LAYERS, L, 1, ..]."""

    case: Case
    config: EngineConfig
    req_to_token: ReqToToken
    pool: MHAPool | MLAPool
    rows: Tensor
    generator: torch.Generator
    history: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def seq_lens(self) -> Tensor:
        return torch.tensor(self.case.lengths)

    @property
    def layout(self) -> SequenceLayout:
        return SequenceLayout(self.rows, self.seq_lens, self.case.lengths)

    def chunks(self, extend_lens: list[int]) -> ExtendLayout:
        """The batch of these new tokens after each sequence."""
        extend = torch.tensor(extend_lens)
        return ExtendLayout(self.rows, self.seq_lens, extend, self.case.lengths, tuple(extend_lens))

    def draw(self, *shape: int) -> Tensor:
        """Normal float64 numbers that the case's dtype holds exactly."""
        return torch.randn(shape, generator=self.generator).to(self.case.dtype).double()

    def draw_kv(self, *counts: int) -> tuple[Tensor, Tensor]:
        """k and v of so many positions."""
        if not self.case.latent:
            return self.draw(*counts, KV_HEADS, DIM), self.draw(*counts, KV_HEADS, DIM)
        rows = self.draw(*counts, 1, self.case.dim)
        return rows, rows[..., :LATENT_DIM]

    def slots(self, b: int, start: int, stop: int) -> Tensor:
        return self.req_to_token.slots(int(self.rows[b]), start, stop)


def build(case: Case, *, room: int = 16) -> World:
    """Each row has cells for its length, a decode reservation and ``room`` more."""
    longest = max(case.lengths)
    options = {
        "page_size": case.page_size,
        "context_length": longest + room + 8,
        "speculative": {"num_steps": case.steps, "eagle_topk": case.topk, "num_draft_tokens": case.nodes},
    }
    config = EngineConfig.from_dict({**options, "memory": {"num_slots": 2**20}})
    page, generator = case.page_size, torch.Generator().manual_seed(case.seed)
    counts = [-(-(n + config.alloc_len_per_decode + room) // page) for n in case.lengths]
    total = sum(counts) + 3
    pool = make_pool(case, total * page)
    batch = len(case.lengths)
    req_to_token = ReqToToken(
        batch + 2, config.context_length + config.row_headroom, fill=FillPolicy("garbage"), guards=True
    )
    rows = torch.randperm(batch + 2, generator=generator)[:batch] + 1
    order = torch.arange(total) if case.contiguous else torch.randperm(total, generator=generator)
    world = World(case, config, req_to_token, pool, rows, generator)
    for b, pages in enumerate((order + 1).split([*counts, 3])[:-1]):
        cells = (pages.unsqueeze(1) * page + torch.arange(page)).flatten()
        req_to_token.write(int(rows[b]), 0, cells)
        world.history.append(commit(world, b, 0, case.lengths[b]))
    return world


def make_pool(case: Case, num_slots: int, device: torch.device = CPU) -> MHAPool | MLAPool:
    """A pool of NaN for the case's layout."""
    sizes: dict[str, Any] = {"num_layers": LAYERS, "num_slots": num_slots, "page_size": case.page_size}
    sizes |= {"dtype": case.dtype, "fill": FillPolicy("nan"), "device": device}
    if case.latent:
        return MLAPool(row_dim=case.dim, value_dim=LATENT_DIM, **sizes)
    return MHAPool(num_kv_heads=KV_HEADS, head_dim=DIM, **sizes)


def commit(world: World, b: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Write random KV of positions [start, stop) to every layer of the pool; returns it in float64."""
    k, v = world.draw_kv(LAYERS, stop - start)
    slots, dtype = world.slots(b, start, stop), world.case.dtype
    for layer in range(LAYERS):
        world.pool.write(layer, slots, k[layer].to(dtype), v[layer].to(dtype))
    return k, v


def dense(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float | None = None) -> Tensor:
    """q [n, Q_HEADS, D], k [m, Hkv, D], v [m, Hkv, Dv], visible bool [n, m], all float64 -> [n, Q_HEADS * Dv];
    ``scale`` is D ** -0.5 by default."""
    group = Q_HEADS // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("nhd,mhd->hnm", q, k) * (q.shape[2] ** -0.5 if scale is None else scale)
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    return torch.einsum("hnm,mhd->nhd", weights, v).flatten(1)


@dataclass
class Result:
    """Outputs [n, Q_HEADS * Dv] of each forward and layer, and what they must be."""

    dtype: torch.dtype
    found: list[Tensor] = field(default_factory=list)
    expected: list[Tensor] = field(default_factory=list)

    def check(self) -> None:
        assert self.found
        for found, expected in zip(self.found, self.expected, strict=True):
            assert found.dtype == self.dtype
            near = 2e-5 if self.dtype == torch.float32 else 3e-2
            torch.testing.assert_close(found.double(), expected, atol=near, rtol=near)


def eager(fill: str = "garbage") -> Workspace:
    return Scratch(FillPolicy(fill), CPU)  # type: ignore[arg-type]


def static(planner: AttentionPlanner, declare: Declare) -> tuple[Workspace, Arena]:
    """The planner's declared buffers in a guarded arena full of garbage."""
    layout = ArenaLayout(guards=True)
    declare(planner, layout)
    arena = layout.build(FillPolicy("garbage", seed=7), CPU)
    return arena, arena


def attend(
    world: World, metadata: Metadata, loc: Tensor, news: list[tuple[Tensor, Tensor]], queries: Tensor
) -> list[Tensor]:
    """Run every layer: ``news`` are the batch's k, v float64 [n, ..] per layer, queries [LAYERS, n, ..]."""
    attention, dtype = TorchAttention(metadata, world.pool, loc, world.case.scale), world.case.dtype
    return [attention(layer, queries[layer].to(dtype), k.to(dtype), v.to(dtype)) for layer, (k, v) in enumerate(news)]


def _drawn(world: World, rows: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    queries = world.draw(LAYERS, rows, Q_HEADS, world.case.dim)
    news = [world.draw_kv(rows) for _ in range(LAYERS)]
    return queries, news


def read_only(world: World, planner: AttentionPlanner) -> Result:
    """K queries a sequence over its committed positions, planned as the decoding of the last of them, and no new KV."""
    topk = world.case.topk
    rows, before = world.rows.repeat_interleave(topk), (world.seq_lens - 1).repeat_interleave(topk)
    plan = planner.extend_uniform(SequenceLayout(rows, before, tuple(before.tolist())), 1, eager())
    attention, queries = TorchAttention(plan, world.pool, None), world.draw(LAYERS, len(before), Q_HEADS, DIM)
    result = Result(world.case.dtype, [attention.attend(n, q.to(world.case.dtype)) for n, q in enumerate(queries)])
    for layer in range(LAYERS):
        parts = []
        for b, length in enumerate(world.case.lengths):
            k, v = (side[layer] for side in world.history[b])
            visible = torch.ones(topk, length, dtype=torch.bool)
            parts.append(dense(queries[layer][b * topk : (b + 1) * topk], k, v, visible))
        result.expected.append(torch.cat(parts))
    return result


def extend(
    world: World, plan: Callable[[ExtendLayout], Metadata], extend_lens: list[int], masks: list[Tensor] | None = None
) -> Result:
    """Each sequence gains ``extend_lens[b]`` positions after L; ``masks[b]`` bool [n, n] says which of the new
    ones each query sees (default: causally)."""
    lens = torch.tensor(extend_lens)
    queries, news = _drawn(world, int(lens.sum()))
    loc = torch.cat([world.slots(b, n, n + extra) for b, n, extra in _spans(world, extend_lens)])
    result = Result(world.case.dtype, attend(world, plan(world.chunks(extend_lens)), loc, news, queries))
    starts = (lens.cumsum(0) - lens).tolist()
    for layer, (k, v) in enumerate(news):
        parts = []
        for b, length, extra in _spans(world, extend_lens):
            rows = slice(starts[b], starts[b] + extra)
            past_k, past_v = (tensor[layer] for tensor in world.history[b])
            own = torch.ones(extra, extra, dtype=torch.bool).tril() if masks is None else masks[b]
            visible = torch.cat([torch.ones(extra, length, dtype=torch.bool), own], dim=1)
            keys, values = torch.cat([past_k, k[rows]]), torch.cat([past_v, v[rows]])
            parts.append(dense(queries[layer, rows], keys, values, visible, world.case.scale))
        result.expected.append(torch.cat(parts))
    return result


def _spans(world: World, extend_lens: list[int]) -> list[tuple[int, int, int]]:
    lengths = world.case.lengths
    return [(b, length, extra) for b, (length, extra) in enumerate(zip(lengths, extend_lens, strict=True))]


def prefill(planner_type: PlannerType, case: Case) -> Result:
    """Chunks of different lengths after cached prefixes, of which some are empty."""
    world = build(case)
    planner = planner_type(world.config, world.req_to_token)
    extra = torch.randint(1, 12, (len(case.lengths),), generator=world.generator).tolist()
    return extend(world, lambda chunks: planner.extend(chunks, eager()), extra)


def cold_prefill(planner_type: PlannerType, case: Case) -> Result:
    """No sequence has a prefix: what was its length is the length of its prompt."""
    world = build(case, room=max(case.lengths) + 1)
    planner = planner_type(world.config, world.req_to_token)
    world.case = replace(case, lengths=(0,) * len(case.lengths))
    world.pool.poison(torch.arange(case.page_size, world.pool.size))
    world.history = [(k[:, :0], v[:, :0]) for k, v in world.history]
    return extend(world, lambda chunks: planner.extend(chunks, eager()), list(case.lengths))


def uniform(planner_type: PlannerType, case: Case, q_len: int, *, graph: bool = False) -> Result:
    """Plain decode (q_len 1) and draft extend (q_len T)."""
    world = build(case)
    planner = planner_type(world.config, world.req_to_token)
    workspace, arena = eager(), None
    if graph:
        workspace, arena = static(planner, lambda p, layout: p.declare_extend(layout, len(case.lengths) + 1, q_len))
    result = extend(
        world, lambda _: planner.extend_uniform(world.layout, q_len, workspace), [q_len] * len(case.lengths)
    )
    assert arena is None or arena.check_guards() == []
    return result


def random_tree(nodes: int, topk: int, generator: torch.Generator) -> Tensor:
    """Ancestor mask bool [T, T] of a tree in which a parent comes before its children; a chain for topk 1."""
    mask = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        parent = node - 1 if topk == 1 else int(torch.randint(0, node, (1,), generator=generator))
        mask[node] |= mask[parent]
    return mask


def verify(planner_type: PlannerType, case: Case, *, graph: bool = False) -> Result:
    world = build(case)
    planner = planner_type(world.config, world.req_to_token)
    batch = len(case.lengths)
    masks = [random_tree(case.nodes, case.topk, world.generator) for _ in range(batch)]
    workspace, arena = eager(), None
    if graph:
        workspace, arena = static(planner, lambda p, layout: p.declare_verify(layout, batch + 1))
    result = extend(
        world, lambda _: planner.verify(world.layout, torch.stack(masks), workspace), [case.nodes] * batch, masks
    )
    assert arena is None or arena.check_guards() == []
    return result


def draft(planner_type: PlannerType, case: Case, *, graph: bool = False, padding: int = 0) -> Result:
    """The S - 1 forwards of a draft loop: every branch sees the prefix and its own steps so far.

    ``padding`` rows of nothing come after the live ones, as a graph runner pads; their outputs are left out.
    """
    world = build(case)
    planner = planner_type(world.config, world.req_to_token)
    layout, slots = draft_layout(world, padding)
    workspace, arena = eager(), None
    if graph:
        rows = len(case.lengths) + padding
        workspace, arena = static(planner, lambda p, arena_layout: p.declare_draft(arena_layout, rows))
    plans = planner.draft_decode(layout, workspace)
    assert len(plans) == case.steps - 1
    live = len(case.lengths) * case.topk
    own: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(LAYERS)]
    result = Result(case.dtype)
    for step, plan in enumerate(plans):
        queries, news = _drawn(world, slots.shape[0])
        result.found += [out[:live] for out in attend(world, plan, slots[:, step], news, queries)]
        for layer, new in enumerate(news):
            own[layer].append(new)
            parts = []
            for branch in range(live):
                past_k, past_v = (tensor[layer] for tensor in world.history[branch // case.topk])
                keys = torch.cat([past_k, *(k[branch : branch + 1] for k, _ in own[layer])])
                values = torch.cat([past_v, *(v[branch : branch + 1] for _, v in own[layer])])
                everything = torch.ones(1, keys.shape[0], dtype=torch.bool)
                parts.append(dense(queries[layer, branch : branch + 1], keys, values, everything, case.scale))
            result.expected.append(torch.cat(parts))
    assert arena is None or arena.check_guards() == []
    return result


def draft_layout(world: World, padding: int = 0) -> tuple[DraftLayout, Tensor]:
    """The batch as the draft loop lays it out, the prefix's tail page copied to every branch; slots [B * K, S]."""
    case, table = world.case, world.req_to_token.table
    locs = assign_draft_cache_locs(
        table, world.rows, world.seq_lens, topk=case.topk, num_steps=case.steps, page_size=case.page_size
    )
    if locs.dup_src is not None and locs.dup_tgt is not None:
        world.pool.move_kv_cache(locs.dup_tgt, locs.dup_src)
    none = torch.zeros(padding, dtype=torch.int64)
    slots = torch.cat([locs.out_cache_loc, none.new_zeros(padding * case.topk, case.steps)])
    seq_lens = torch.cat([world.seq_lens, none])
    layout = DraftLayout(
        req_pool_indices=torch.cat([world.rows, none]),
        seq_lens=seq_lens,
        positions=seq_lens.repeat_interleave(case.topk),
        out_cache_loc=slots,
        seq_lens_cpu=case.lengths + (0,) * padding,
    )
    return layout, slots


def check_equal_bits(first: Result, second: Result) -> None:
    first.check()
    assert all(torch.equal(a, b) for a, b in zip(first.found, second.found, strict=True))


def two_sequences(lengths: tuple[int, ...] = (4, 4)) -> World:
    """Something small to write metadata for by hand."""
    return build(Case(lengths, 4, topk=1))


def ragged_of(indptr: list[int], indices: Tensor) -> RaggedMetadata:
    """Lists for one query per sequence."""
    ends = torch.tensor(indptr, dtype=torch.int32)
    return RaggedMetadata(ends, indices, torch.arange(len(indptr), dtype=torch.int32), q_len=1)


FORWARDS: dict[str, Callable[[PlannerType, Case, bool], Result]] = {
    "prefill": lambda planner, case, graph: prefill(planner, case),
    "cold prefill": lambda planner, case, graph: cold_prefill(planner, case),
    "decode": lambda planner, case, graph: uniform(planner, case, 1, graph=graph),
    "extend": lambda planner, case, graph: uniform(planner, case, case.nodes, graph=graph),
    "verify": lambda planner, case, graph: verify(planner, case, graph=graph),
    "draft": lambda planner, case, graph: draft(planner, case, graph=graph, padding=case.seed % 3),
}
"""Every forward of a plan over a case; the last says whether its metadata lies in static buffers, if it ever does."""
every_forward = pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS.keys())
