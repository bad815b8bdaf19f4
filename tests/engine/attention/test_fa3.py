"""FlashAttention-3's page tables and lengths, number by number, and the attention they give."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.attention.fa3 import FlashAttention3Planner
from specdebug.engine.errors import PlanAssertion
from specdebug.engine.memory.arena import ArenaLayout, FillPolicy
from specdebug.engine.textbook.attention.planner import CascadeMetadata, Metadata, PagedMetadata
from tests.engine.attention.cases import Case, World, build, draft_layout, eager, random_tree

PLANNER = FlashAttention3Planner


def _planned(case: Case) -> tuple[World, FlashAttention3Planner]:
    world = build(case)
    return world, PLANNER(world.config, world.req_to_token)


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
