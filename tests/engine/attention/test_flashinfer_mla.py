"""The planner of models that store latents: FlashInfer's lists, in draft buffers of its own."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.attention.flashinfer_mla import FlashInferMLAPlanner
from specdebug.engine.errors import PlanAssertion
from specdebug.engine.memory.arena import ArenaLayout, FillPolicy
from tests.engine.attention.cases import Case, build, draft_layout

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
