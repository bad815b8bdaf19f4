"""Every plan computes dense attention, eagerly and from the static buffers of graphs, and what each writes for that."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from specdebug.engine.attention.fa3 import FlashAttention3Planner
from specdebug.engine.attention.flashinfer_mla import FlashInferMLAPlanner
from specdebug.engine.attention.triton import TritonPlanner
from specdebug.engine.errors import PlanAssertion
from specdebug.engine.memory.arena import ArenaLayout, FillPolicy
from specdebug.engine.textbook.attention.flashinfer import FlashInferPlanner
from specdebug.engine.textbook.attention.planner import (
    AttentionPlanner,
    CascadeMetadata,
    Metadata,
    PagedMetadata,
    RaggedMetadata,
)
from tests.engine.attention.cases import (
    Case,
    World,
    build,
    cases,
    check_equal_bits,
    draft,
    draft_layout,
    eager,
    every_forward,
    random_tree,
    static,
    uniform,
)

Planner = type[AttentionPlanner]
every = pytest.mark.parametrize(
    "planner", [FlashInferPlanner, FlashAttention3Planner, TritonPlanner, FlashInferMLAPlanner]
)


def stored(planner: Planner, case: Case) -> Case:
    """The case as the planner's models store keys."""
    return replace(case, latent=planner is FlashInferMLAPlanner)


@every
@every_forward
@given(case=cases(max_topk=4, min_steps=2))
@settings(max_examples=12)
def test_every_forward_is_dense_attention_from_static_buffers_too(planner: Planner, forward: Any, case: Case) -> None:
    """Verifies over ancestors, drafts over their branches; padded rows must not change what live ones see."""
    case = stored(planner, case)
    check_equal_bits(forward(planner, case, False), forward(planner, case, True))


@every
@pytest.mark.parametrize("page_size", [1, 4])
def test_declared_buffers_hold_the_largest_batch_at_the_context_limit(planner: Planner, page_size: int) -> None:
    """K·ΣL + B·K·S entries a row: a width without K is what SGLang PR 27338 mends."""
    case = stored(planner, Case((50, 50, 50), page_size, topk=3, steps=4))
    world = build(case)
    made = planner(world.config, world.req_to_token)
    made.context_length = 50
    draft_space, draft_arena = static(made, lambda p, layout: p.declare_draft(layout, 3))
    made.draft_decode(draft_layout(world)[0], draft_space)
    space, arena = static(made, lambda p, layout: p.declare_verify(layout, 3))
    masks = torch.stack([random_tree(case.nodes, 3, world.generator) for _ in range(3)])
    made.verify(world.layout, masks, space)
    extend_space, extend_arena = static(made, lambda p, layout: p.declare_extend(layout, 3, 9))
    made.extend_uniform(world.layout, 9, extend_space)
    assert [a.check_guards() for a in (draft_arena, arena, extend_arena)] == [[], [], []]


def _planned(case: Case) -> tuple[World, FlashAttention3Planner]:
    world = build(case)
    return world, FlashAttention3Planner(world.config, world.req_to_token)


def _paged(plan: Metadata) -> PagedMetadata:
    assert isinstance(plan, PagedMetadata)
    assert plan.page_table.dtype == plan.cache_seqlens.dtype == plan.cu_seqlens_q.dtype == torch.int32
    return plan


def _cascade(plan: Metadata) -> tuple[PagedMetadata, PagedMetadata]:
    assert isinstance(plan, CascadeMetadata)
    assert not plan.prefix.causal
    assert not plan.expand.causal
    return _paged(plan.prefix), _paged(plan.expand)


def _pages(world: World, b: int, length: int) -> list[int]:
    page = world.case.page_size
    return [slot // page for slot in world.slots(b, 0, length).tolist()[::page]]


@pytest.mark.parametrize(("page_size", "tails"), [(1, [0, 0]), (4, [3, 2])])
def test_branches_share_whole_prefix_pages_and_expand_their_own(page_size: int, tails: list[int]) -> None:
    world, planner = _planned(Case((3, 6), page_size, topk=2, steps=4))
    layout, slots = draft_layout(world)
    plans = planner.draft_decode(layout, eager())
    assert len(plans) == 3
    for step, plan in enumerate(plans):
        prefix, expand = _cascade(plan)
        assert (prefix.q_len, expand.q_len, expand.page_size) == (2, 1, page_size)
        assert prefix.cache_seqlens.tolist() == [3 - tails[0], 6 - tails[1]]
        assert prefix.page_table[1].tolist() == _pages(world, 1, 6 - tails[1])
        assert expand.page_table.shape == (4, step + 2)
        assert expand.cache_seqlens.tolist() == [tail + step + 1 for tail in tails for _ in range(2)]
        for branch in range(4):
            pages = list(dict.fromkeys((slots[branch, : step + 1] // page_size).tolist()))
            assert expand.page_table[branch, : len(pages)].tolist() == pages


def test_a_tree_expands_each_node_to_its_ancestors_first() -> None:
    world, planner = _planned(Case((3, 6), 4, topk=2, steps=2))
    masks = torch.stack([random_tree(7, 2, world.generator) for _ in range(2)])
    prefix, expand = _cascade(planner.verify(world.layout, masks, eager()))
    assert (prefix.q_len, prefix.page_size, expand.q_len, expand.page_size) == (7, 4, 1, 1)
    assert prefix.cache_seqlens.tolist() == [3, 6]
    for node in range(14):
        b, own = node // 7, masks[node // 7, node % 7]
        length = world.case.lengths[b]
        expected = world.slots(b, length, length + 7)[own].tolist()
        assert int(expand.cache_seqlens[node]) == len(expected)
        assert expand.page_table[node, : len(expected)].tolist() == expected


def test_a_padded_branch_names_no_page_but_the_padding_page() -> None:
    """Its length spans several columns from the fifth step on; stale ones would name live or poisoned pages."""
    world, planner = _planned(Case((9, 14), page_size=4, topk=2, steps=8))
    layout, _ = draft_layout(world, padding=1)
    for metadata in planner.draft_decode(layout, eager()):
        assert isinstance(metadata, CascadeMetadata)
        assert metadata.expand.page_table[-2:].count_nonzero() == 0


def test_a_table_too_narrow_is_an_assertion() -> None:
    world, planner = _planned(Case((10, 12), 4, topk=1))
    layout = ArenaLayout(guards=False)
    layout.add("extend.page_table", (2, 3), torch.int32)
    layout.add("extend.cache_seqlens", (2,), torch.int32)
    space = layout.build(FillPolicy("zeros"), torch.device("cpu"))
    with pytest.raises(PlanAssertion, match=r"extend\.page_table: needs 4, the buffer holds 3") as caught:
        planner.extend_uniform(world.layout, 1, space)
    assert caught.value.site == "attention.plan"


def test_indices_are_wide_and_only_single_queries_are_split() -> None:
    """One split for every 512 keys begun, at most eight."""
    world = build(Case((3, 510, 511, 1500, 5000), 256, topk=2, steps=3), room=0)
    planner = TritonPlanner(world.config, world.req_to_token)
    decode = planner.extend_uniform(world.layout, 1, eager())
    drafts = planner.draft_decode(draft_layout(world)[0], eager())
    assert isinstance(decode, RaggedMetadata)
    assert decode.num_kv_splits is not None
    assert decode.num_kv_splits.tolist() == [1, 1, 2, 3, 8]
    for plan, splits in zip(drafts, ([1, 1, 2, 3, 8], [1, 2, 2, 3, 8]), strict=True):
        assert isinstance(plan, RaggedMetadata)
        assert plan.kv_indices.dtype == torch.int64
        assert plan.kv_indptr.dtype == torch.int32
        assert plan.num_kv_splits is not None
        assert plan.num_kv_splits.dtype == torch.int32
        assert plan.num_kv_splits.tolist() == [split for split in splits for _ in range(2)]
    several = planner.extend_uniform(world.layout, 2, eager())
    assert isinstance(several, RaggedMetadata)
    assert several.num_kv_splits is None


@pytest.mark.parametrize("lengths", [(3, 1100, 600), (1500,), (700, 700)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_split_sequences_are_dense_attention(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    case = Case(lengths, 16, topk=2, steps=3, dtype=dtype)
    uniform(TritonPlanner, case, 1).check()
    draft(TritonPlanner, case).check()


CPU = torch.device("cpu")


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_rows_are_as_many_as_forwards_and_hold_every_branch(steps: int) -> None:
    """A prefix is listed once for each branch (SGLang PR 27460)."""
    world = build(Case((9, 5), topk=3, steps=steps))
    planner = FlashInferMLAPlanner(world.config, world.req_to_token)
    layout = ArenaLayout(guards=False)
    planner.declare_draft(layout, 2)
    arena = layout.build(FillPolicy("garbage"), CPU)
    forwards = max(steps - 1, 1)
    assert tuple(arena["draft.kv_indices"].shape) == (forwards, 2 * 3 * planner.max_kv_len)
    assert tuple(arena["draft.kv_indptr"].shape) == (forwards, 7)


def test_a_row_too_short_for_the_batch_is_refused_before_it_is_overrun() -> None:
    world = build(Case((24, 24), topk=3, steps=3))
    planner = FlashInferMLAPlanner(world.config, world.req_to_token)
    layout = ArenaLayout(guards=False)
    layout.add("draft.kv_indices", (2, 100), torch.int32)
    layout.add("draft.kv_indptr", (2, 7), torch.int32)
    workspace = layout.build(FillPolicy("garbage"), CPU)
    with pytest.raises(PlanAssertion, match="a kv_indices row: needs 162, the buffer holds 100"):
        planner.draft_decode(draft_layout(world)[0], workspace)
