"""What every plan's metadata must give: dense attention, from fresh buffers and from static ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from specdebug.engine.attention.fa3 import FlashAttention3Planner
from specdebug.engine.attention.flashinfer_mla import FlashInferMLAPlanner
from specdebug.engine.attention.triton import TritonPlanner
from specdebug.engine.textbook.attention.flashinfer import FlashInferPlanner
from specdebug.engine.textbook.attention.planner import AttentionPlanner
from tests.engine.attention.cases import (
    Case,
    build,
    cases,
    check_equal_bits,
    draft_layout,
    every_forward,
    random_tree,
    static,
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
