"""FlashInfer's lists, number by number, and the attention they give."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from specdebug import async_probe
from specdebug.engine.errors import PlanAssertion
from specdebug.engine.memory.arena import ArenaLayout, FillPolicy
from specdebug.engine.textbook.attention.flashinfer import FlashInferPlanner
from specdebug.engine.textbook.attention.planner import Metadata, RaggedMetadata, Workspace
from tests.engine.attention.cases import Case, World, build, draft_layout, eager, random_tree


def _planned(case: Case) -> tuple[World, FlashInferPlanner]:
    world = build(case)
    return world, FlashInferPlanner(world.config, world.req_to_token)


def _ragged(plan: Metadata) -> RaggedMetadata:
    assert isinstance(plan, RaggedMetadata)
    assert plan.kv_indptr.dtype == plan.kv_indices.dtype == plan.qo_indptr.dtype == torch.int32
    assert plan.num_kv_splits is None
    return plan


def _lists(plan: RaggedMetadata) -> list[list[int]]:
    ends = plan.kv_indptr.tolist()
    return [plan.kv_indices[start:stop].tolist() for start, stop in pairwise(ends)]


def _small(name: str, shape: tuple[int, ...], *others: tuple[str, tuple[int, ...]]) -> Workspace:
    """A static workspace of int32 buffers of just these shapes; masks are booleans."""
    layout = ArenaLayout(guards=False)
    for buffer, size in ((name, shape), *others):
        layout.add(buffer, size, torch.bool if "custom_mask" in buffer else torch.int32)
    return layout.build(FillPolicy("zeros"), torch.device("cpu"))


def test_a_prefill_lists_prefix_and_chunk_of_each_row() -> None:
    world, planner = _planned(Case((3, 1), 4))
    plan = _ragged(planner.extend(world.chunks([2, 5]), eager()))
    assert (plan.q_len, plan.causal, plan.custom_mask) == (None, True, None)
    assert plan.qo_indptr.tolist() == [0, 2, 7]
    assert _lists(plan) == [world.slots(0, 0, 5).tolist(), world.slots(1, 0, 6).tolist()]


def test_a_chain_needs_no_mask_a_tree_has_one_bit_per_query_and_key() -> None:
    world, planner = _planned(Case((3, 1), 4, topk=1, steps=3))
    chain = _ragged(planner.verify(world.layout, torch.ones(2, 4, 4).bool().tril(), eager()))
    assert (chain.q_len, chain.causal, chain.custom_mask) == (4, True, None)
    world, planner = _planned(Case((3, 1), 4, topk=2, steps=2))
    masks = torch.stack([random_tree(7, 2, world.generator) for _ in range(2)])
    tree = _ragged(planner.verify(world.layout, masks, eager()))
    assert (tree.q_len, tree.causal) == (7, False)
    assert tree.mask_indptr is not None
    assert tree.custom_mask is not None
    assert tree.mask_indptr.tolist() == [0, 7 * 10]
    assert tree.custom_mask.numel() == 7 * 10 + 7 * 8
    assert _lists(tree) == [world.slots(0, 0, 10).tolist(), world.slots(1, 0, 8).tolist()]


@pytest.mark.parametrize("page_size", [1, 4])
def test_draft_forward_i_lists_the_prefix_and_i_plus_one_slots_of_every_branch(page_size: int) -> None:
    case = Case((3, 6), page_size, topk=2, steps=3)
    world, planner = _planned(case)
    layout, slots = draft_layout(world)
    plans = planner.draft_decode(layout, eager())
    assert len(plans) == 2
    for step, plan in enumerate(plans):
        expected = [
            world.slots(branch // 2, 0, case.lengths[branch // 2]).tolist() + slots[branch, : step + 1].tolist()
            for branch in range(4)
        ]
        assert _lists(_ragged(plan)) == expected
        assert plan.kv_indices.numel() == 2 * 9 + 4 * (step + 1) == int(plan.kv_indptr[-1])


def test_a_buffer_too_small_is_an_assertion_before_anything_is_written() -> None:
    world, planner = _planned(Case((10, 12), 1, topk=2, steps=3))
    layout, _ = draft_layout(world)
    indptr = ("draft.kv_indptr", (3, 5))
    planner.draft_decode(layout, _small("draft.kv_indices", (3, 2 * 22 + 4 * 3), indptr))
    small = _small("draft.kv_indices", (3, 2 * 22 + 4 * 3 - 1), indptr)
    with pytest.raises(PlanAssertion, match="a kv_indices row: needs 56, the buffer holds 55") as caught:
        planner.draft_decode(layout, small)
    assert caught.value.site == "attention.draft.plan"
    assert not bool(small.take("draft.kv_indices", (), torch.int32).any())
    nodes = world.case.nodes
    masks = torch.stack([random_tree(nodes, 2, world.generator)] * 2)
    others = (("verify.kv_indptr", (3,)), ("verify.kv_indices", (99,)), ("verify.mask_indptr", (2,)))
    needed = (22 + 2 * nodes) * nodes
    planner.verify(world.layout, masks, _small("verify.custom_mask", (needed,), *others))
    with pytest.raises(PlanAssertion, match=f"custom_mask: needs {needed}") as caught:
        planner.verify(world.layout, masks, _small("verify.custom_mask", (needed - 1,), *others))
    assert caught.value.site == "attention.verify.plan"
    short = _small("extend.kv_indices", (23,), ("extend.kv_indptr", (3,)))
    with pytest.raises(PlanAssertion, match=r"extend\.kv_indices: needs 24, the buffer holds 23") as caught:
        planner.extend_uniform(world.layout, 1, short)
    assert caught.value.site == "attention.plan"


def test_positions_that_do_not_agree_with_the_lengths_are_probed(recording: None) -> None:
    """kv_indptr comes from positions: stale ones on padded rows point past the lists (SGLang PR 10892)."""
    world, planner = _planned(Case((3, 6), 1, topk=2, steps=2))
    layout, _ = draft_layout(world, padding=1)
    stale = layout.positions.clone()
    stale[-1] = 5
    planner.draft_decode(layout, eager())
    assert async_probe.drain() == []
    planner.draft_decode(replace(layout, positions=stale), eager())
    assert [violation.signature for violation in async_probe.drain()] == ["oob@draft.plan.kv_indptr"]
