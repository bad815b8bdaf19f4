"""The executor believes its metadata: it reads what that names, no more, and is wrong when that is wrong."""

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.base.attention_plans import SHIPPED
from specdebug.engine.attention.backend import planner_class
from specdebug.engine.errors import IllegalAddress
from specdebug.engine.textbook.attention.executor import TorchAttention, prepare
from specdebug.engine.textbook.attention.flashinfer import FlashInferPlanner
from specdebug.engine.textbook.attention.planner import Metadata, PagedMetadata, RaggedMetadata
from tests.engine.attention.cases import (
    DIM,
    KV_HEADS,
    LAYERS,
    Q_HEADS,
    Case,
    attend,
    build,
    cases,
    cold_prefill,
    dense,
    draft,
    draft_layout,
    eager,
    prefill,
    ragged_of,
    random_tree,
    read_only,
    two_sequences,
    uniform,
    verify,
)
from tests.tolerance import rounding

PLANNERS = [planner_class(plan.name) for plan in SHIPPED]
LATENT_PLANNERS = [planner_class(plan.name, "mla") for plan in SHIPPED]
ATTENDING = [(planner, False) for planner in PLANNERS] + [(planner, True) for planner in LATENT_PLANNERS]
LENGTHS = (9, 5, 14)
INT32 = torch.int32


class Fixed:
    """One batch of one kind whose plan can be tampered with: same queries, same new KV, same pool every time."""

    def __init__(self, kind: str, planner_type: Any, *, page_size: int = 4, latent: bool = False) -> None:
        self.case = Case(LENGTHS, page_size, topk=2, steps=3, seed=5, latent=latent)
        self.world = build(self.case)
        batch = len(LENGTHS)
        planner, world = planner_type(self.world.config, self.world.req_to_token), self.world
        nodes = self.case.nodes
        per_sequence = {"decode": 1, "extend": nodes, "prefill": 3, "verify": nodes, "draft": self.case.topk}
        self.rows_each = per_sequence[kind]
        if kind == "draft":
            layout, slots = draft_layout(world)
            self.loc = slots[:, 0]
            self.plan: Metadata = planner.draft_decode(layout, eager())[0]
        else:
            self.loc = torch.cat([world.slots(b, n, n + self.rows_each) for b, n in enumerate(LENGTHS)])
            if kind == "prefill":
                self.plan = planner.extend(world.chunks([3] * batch), eager())
            elif kind == "verify":
                masks = torch.stack([random_tree(nodes, 2, world.generator) for _ in LENGTHS])
                self.plan = planner.verify(world.layout, masks, eager())
            else:
                self.plan = planner.extend_uniform(world.layout, self.rows_each, eager())
        total = batch * self.rows_each
        self.queries = world.draw(LAYERS, total, Q_HEADS, self.case.dim)
        self.news = [world.draw_kv(total) for _ in range(LAYERS)]
        self.buffers = [side for layer in range(LAYERS) for side in world.pool.kv_buffer(layer)]

    def run(self, plan: Metadata | None = None) -> list[Tensor]:
        """One output [rows, ...] per sequence, the layers side by side."""
        outs = attend(self.world, plan or self.plan, self.loc, self.news, self.queries)
        return list(torch.cat(outs, dim=1).split(self.rows_each))


def _changed(clean: list[Tensor], other: list[Tensor]) -> list[int]:
    pairs = zip(clean, other, strict=True)
    return [b for b, (x, y) in enumerate(pairs) if not torch.allclose(x, y, atol=1e-5, rtol=0)]


KINDS = ["decode", "extend", "prefill", "verify", "draft"]


@pytest.mark.parametrize(("planner", "latent"), ATTENDING)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_nan_inside_a_sequence_is_seen_by_it_and_by_nobody_else(
    planner: Any, latent: bool, kind: str, page_size: int
) -> None:
    fixed = Fixed(kind, planner, page_size=page_size, latent=latent)
    clean = fixed.run()
    assert not any(bool(out.isnan().any()) for out in clean)
    for b, position in ((0, 0), (1, 4), (2, 7)):
        slot = fixed.world.slots(b, position, position + 1)
        if kind == "draft" and page_size > 1 and position >= LENGTHS[b] - LENGTHS[b] % page_size:
            continue  # each branch has its own copy of the prefix's tail page
        saved = fixed.world.pool.read(slot)
        for buffer in fixed.buffers:
            buffer[slot] = float("nan")
        found = fixed.run()
        assert bool(found[b].isnan().all())
        assert _changed(clean, found) == [b]
        for layer in range(LAYERS):
            fixed.world.pool.write(layer, slot, saved[0][layer], saved[1][layer])
        assert _changed(clean, fixed.run()) == []


@pytest.mark.parametrize(("planner", "latent"), ATTENDING)
@pytest.mark.parametrize("kind", KINDS)
def test_garbage_outside_every_sequence_changes_no_bit(planner: Any, latent: bool, kind: str) -> None:
    """Slots past a sequence's end, padding, and unowned slots: NaN, infinity or a number, it is all the same."""
    fixed = Fixed(kind, planner, latent=latent)
    clean = fixed.run()
    live = [fixed.world.slots(b, 0, n) for b, n in enumerate(LENGTHS)]
    if kind == "draft":
        reserved = fixed.world.config.alloc_len_per_decode  # branches, and their copies of the tail page
        live += [fixed.world.slots(b, n, n + reserved) for b, n in enumerate(LENGTHS)]
    outside = torch.ones(fixed.world.pool.size, dtype=torch.bool)
    outside[torch.cat(live)] = False
    for value in (float("nan"), float("inf"), -1e30):
        for buffer in fixed.buffers:
            buffer[outside] = value
        assert all(torch.equal(x, y) for x, y in zip(clean, fixed.run(), strict=True))


def _tampered(plan: Metadata, b: int, slot: int) -> dict[str, Metadata]:
    """Plans with one number wrong in sequence ``b`` of the plan; ``slot`` is a live slot of another request."""
    if isinstance(plan, RaggedMetadata):
        indices, indptr = plan.kv_indices.clone(), plan.kv_indptr.clone()
        indices[indptr[b] + 1] = slot
        indptr[b + 1] -= 1
        shorter = {"kv_indptr": replace(plan, kv_indptr=indptr)} if plan.custom_mask is None else {}
        return {"kv_indices": replace(plan, kv_indices=indices), **shorter}
    if isinstance(plan, PagedMetadata):
        pages, seqlens = plan.page_table.clone(), plan.cache_seqlens.clone()
        pages[b, 0] = slot // plan.page_size
        seqlens[b] -= 1
        return {"page_table": replace(plan, page_table=pages), "cache_seqlens": replace(plan, cache_seqlens=seqlens)}
    prefixes = _tampered(plan.prefix, b, slot)
    branch = b * (plan.expand.page_table.shape[0] // plan.prefix.page_table.shape[0])
    expands = _tampered(plan.expand, branch, slot)
    return {
        **{f"prefix.{name}": replace(plan, prefix=wrong) for name, wrong in prefixes.items()},  # type: ignore[arg-type]
        **{f"expand.{name}": replace(plan, expand=wrong) for name, wrong in expands.items()},  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_one_wrong_number_in_the_metadata_is_wrong_attention(planner: Any, kind: str, page_size: int) -> None:
    fixed = Fixed(kind, planner, page_size=page_size)
    clean = fixed.run()
    alien = int(fixed.world.slots(0, 0, 1))
    branches = isinstance(fixed.plan, RaggedMetadata) and kind == "draft"
    wrongs = _tampered(fixed.plan, fixed.case.topk if branches else 1, alien)
    assert wrongs
    for name, plan in wrongs.items():
        changed = _changed(clean, fixed.run(plan))
        # a list's offset is where one sequence ends and the next begins
        assert changed == ([1, 2] if name == "kv_indptr" and kind != "draft" else [1]), name


def test_one_wrong_bit_of_the_mask_changes_one_node() -> None:
    fixed = Fixed("verify", FlashInferPlanner)
    clean = fixed.run()
    assert isinstance(fixed.plan, RaggedMetadata)
    assert fixed.plan.custom_mask is not None
    assert fixed.plan.mask_indptr is not None
    bits = fixed.plan.custom_mask.clone()
    width = LENGTHS[1] + fixed.case.nodes
    bits[fixed.plan.mask_indptr[1] + 2 * width] = False  # node 2 no longer sees the first position
    found = fixed.run(replace(fixed.plan, custom_mask=bits))
    assert _changed(clean, found) == [1]
    rows = (found[1] != clean[1]).any(dim=1).nonzero().flatten().tolist()
    assert rows == [2]


@pytest.mark.parametrize("planner", LATENT_PLANNERS)
@given(case=cases(min_steps=2))
@settings(max_examples=10)
def test_latents_are_attended_densely_in_every_forward(planner: Any, case: Case) -> None:
    """With the scale of the heads as projected, not of the packed rows."""
    case = replace(case, latent=True)
    for result in (prefill(planner, case), cold_prefill(planner, case), uniform(planner, case, 1, graph=True)):
        result.check()
    uniform(planner, case, case.nodes, graph=True).check()
    verify(planner, case, graph=True).check()
    draft(planner, case, graph=True, padding=1).check()


@pytest.mark.parametrize(("planner", "latent"), ATTENDING)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("topk", [1, 2])
def test_half_precision_stays_half_precision(planner: Any, latent: bool, dtype: torch.dtype, topk: int) -> None:
    """The result feeds a linear layer of the model's dtype, merged or not."""
    case = Case(LENGTHS, 4, topk=topk, steps=3, dtype=dtype, latent=latent)
    for result in (
        prefill(planner, case),
        cold_prefill(planner, case),
        uniform(planner, case, 1),
        uniform(planner, case, case.nodes),
        verify(planner, case),
        draft(planner, case),
    ):
        result.check()


@pytest.mark.parametrize("planner_type", PLANNERS)
@pytest.mark.parametrize("lengths", [(9, 1, 14), (6,), (7, 7)], ids=str)
def test_a_batch_without_slots_reads_what_is_there_and_writes_nothing(
    planner_type: Any, lengths: tuple[int, ...]
) -> None:
    world = build(Case(lengths, page_size=4, topk=3, steps=2, seed=3))
    before = [side.clone() for side in (*world.pool.k, *world.pool.v)]
    read_only(world, planner_type(world.config, world.req_to_token)).check()
    after = (*world.pool.k, *world.pool.v)
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("slots", [[10**6, 10**6 + 1], [-3, -2], [5, 10**6]])
@pytest.mark.parametrize("copies", [1, 2])
def test_slots_outside_the_pool_cannot_be_read(slots: list[int], copies: int) -> None:
    world = two_sequences()
    indptr = [2 * n for n in range(copies + 1)]
    plan = ragged_of(indptr, torch.tensor(slots * copies, dtype=INT32))
    attention = TorchAttention(plan, world.pool, torch.zeros(copies, dtype=torch.int64))
    one = torch.ones(copies, KV_HEADS, DIM)
    with pytest.raises(IllegalAddress, match=rf"attention\.kv_cache: .* of a pool of {world.pool.size}"):
        attention(0, torch.ones(copies, Q_HEADS, DIM), one, one)


def test_a_sequence_without_keys_attends_nothing() -> None:
    """Both ways a padded row can look: an empty list, and a length of zero."""
    world = two_sequences((3, 2))
    q, kv = torch.ones(2, Q_HEADS, DIM), torch.full((2, KV_HEADS, DIM), float("nan"))
    loc = torch.zeros(2, dtype=torch.int64)  # NaN goes to padding: nobody may see it
    ragged = ragged_of([0, 3, 3], world.slots(0, 0, 4).to(INT32))
    paged = PagedMetadata(
        torch.stack([world.slots(0, 0, 3), torch.zeros(3, dtype=torch.int64)]).to(INT32),
        torch.tensor([3, 0], dtype=INT32),
        torch.arange(3),
        1,
        page_size=1,
    )
    for plan in (ragged, paged):
        out = TorchAttention(plan, world.pool, loc)(0, q, kv, kv)
        assert not bool(out.isnan().any())
        assert bool((out[1] == 0).all())
        assert bool((out[0] != 0).any())


@given(splits=st.integers(1, 9), lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_splitting_the_keys_changes_nothing_but_rounding(splits: int, lengths: list[int], seed: int) -> None:
    world = build(Case(tuple(lengths), 1, seed=seed))
    indices = torch.cat([world.slots(b, 0, n) for b, n in enumerate(lengths)])
    indptr = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    batch = len(lengths)
    plan = replace(ragged_of(indptr, indices), num_kv_splits=torch.full((batch,), splits, dtype=INT32))
    q, kv = world.draw(batch, Q_HEADS, DIM), torch.zeros(batch, KV_HEADS, DIM)
    found = TorchAttention(plan, world.pool, torch.zeros(batch, dtype=torch.int64))(0, q.float(), kv, kv)
    for b, length in enumerate(lengths):
        k, v = (tensor[0] for tensor in world.history[b])
        expected = dense(q[b : b + 1], k, v, torch.ones(1, length, dtype=torch.bool))
        torch.testing.assert_close(found[b : b + 1].double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("indptr", "site"),
    [
        ([0, 4, 10**9], r"attention\.kv_indptr: a sequence of \d+ keys"),
        ([0, 4, 2000], r"attention\.kv_indptr: a sequence of \d+ keys"),
        ([-99, -95, -91], r"attention\.kv_indices"),
        ([8, 12, 16], r"attention\.kv_indices"),
        ([2**31 - 5, 2**31 - 1, 2**31 - 1], r"attention\.kv_indices"),
        ([8, 12], r"attention\.kv_indices"),
    ],
)
def test_lists_that_lie_elsewhere_are_an_illegal_address(indptr: list[int], site: str) -> None:
    world = two_sequences()
    with pytest.raises(IllegalAddress, match=site):
        TorchAttention(ragged_of(indptr, torch.zeros(8, dtype=INT32)), world.pool, world.rows[: len(indptr) - 1])


def test_a_list_too_short_is_read_on_in_the_allocation_behind_it() -> None:
    """As from a device pointer: what lies there is believed."""
    world = two_sequences((6,))
    storage = world.slots(0, 0, 6).to(INT32)
    q, kv, loc = world.draw(1, Q_HEADS, DIM).float(), torch.zeros(1, KV_HEADS, DIM), torch.zeros(1).long()
    k, v = (tensor[0, 2:6] for tensor in world.history[0])
    plan = ragged_of([2, 6], storage[:4])
    found = TorchAttention(plan, world.pool, loc)(0, q, kv, kv)
    expected = dense(q.double(), k, v, torch.ones(1, 4, dtype=torch.bool)).float()
    torch.testing.assert_close(found, expected, **rounding(DIM, 4))


def test_a_length_that_no_page_table_could_hold_is_an_illegal_address() -> None:
    world = two_sequences()
    plan = PagedMetadata(
        torch.ones((2, 3), dtype=INT32), torch.tensor([4, 99], dtype=INT32), torch.arange(3), 1, page_size=4
    )
    with pytest.raises(IllegalAddress, match=r"attention\.cache_seqlens: a sequence of 99 keys in .* 24"):
        TorchAttention(plan, world.pool, world.rows)
    long = replace(plan, cache_seqlens=torch.tensor([4, 20], dtype=INT32))
    with pytest.raises(IllegalAddress, match=r"attention\.page_table"):
        TorchAttention(long, world.pool, world.rows)


@pytest.mark.parametrize(("q_len", "kept"), [(5, 1), (1000, 0)])
def test_the_mask_of_a_whole_prompt_is_not_kept(q_len: int, kept: int) -> None:
    """An engine that serves for long meets prompts of every length."""
    slots = torch.arange(2 * q_len, dtype=INT32)
    ends = torch.tensor([0, 2 * q_len], dtype=INT32)
    for _ in range(2):
        made = prepare(RaggedMetadata(ends, slots, torch.tensor([0, q_len], dtype=INT32), q_len))
        assert made.mask is not None
        assert made.mask.shape == (1, 1, q_len, 2 * q_len)
        assert made.mask[0, 0].isinf().sum() == q_len * (q_len - 1) / 2
        del made
    width = -(-2 * q_len // 512) * 512
    masks = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.shape == (1, 1, q_len, width)]
    assert len(masks) == kept
