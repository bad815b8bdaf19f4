"""Triton's lists: FlashInfer's with wider indices, and keys split for long sequences."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.attention.triton import TritonPlanner
from specdebug.engine.textbook.attention.planner import RaggedMetadata
from tests.engine.attention.cases import Case, build, draft, draft_layout, eager, uniform

PLANNER = TritonPlanner


def test_indices_are_wide_and_only_single_queries_are_split() -> None:
    """One split for every 512 keys begun, at most eight."""
    world = build(Case((3, 510, 511, 1500, 5000), 256, topk=2, steps=3), room=0)
    planner = PLANNER(world.config, world.req_to_token)
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
    uniform(PLANNER, case, 1).check()
    draft(PLANNER, case).check()
