"""The planner of models that store latents: FlashInfer's lists, in draft buffers of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.attention.flashinfer_mla import FlashInferMLAPlanner
from specdebug.engine.attention.workspace import ArenaWorkspace
from specdebug.engine.errors import PlanAssertion
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.memory.fill import FillPolicy
from tests.engine.attention.cases import Case, build, cases, check_equal_bits, draft, draft_layout, verify

CPU = torch.device("cpu")


@given(case=cases(max_topk=4, min_steps=2), padding=st.integers(0, 2))
@settings(max_examples=25)
def test_draft_branches_are_dense_attention_from_static_buffers_too(case: Case, padding: int) -> None:
    case = replace(case, latent=True)
    eager_result = draft(FlashInferMLAPlanner, case, padding=padding)
    check_equal_bits(eager_result, draft(FlashInferMLAPlanner, case, graph=True, padding=padding))


@given(case=cases())
@settings(max_examples=10)
def test_what_is_not_drafted_is_planned_as_for_other_models(case: Case) -> None:
    case = replace(case, latent=True)
    check_equal_bits(verify(FlashInferMLAPlanner, case), verify(FlashInferMLAPlanner, case, graph=True))


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
    workspace = ArenaWorkspace(layout.build(FillPolicy("garbage"), CPU))
    with pytest.raises(PlanAssertion, match="a kv_indices row: needs 162, the buffer holds 100"):
        planner.draft_decode(draft_layout(world)[0], workspace)
