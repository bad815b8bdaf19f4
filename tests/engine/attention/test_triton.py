"""x"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.attention.triton import TritonPlanner
from tests.engine.attention.cases import Case, cases, check_equal_bits, cold_prefill, draft, prefill, uniform, verify

PLANNER = TritonPlanner


@given(case=cases())
@settings(max_examples=15, deadline=None)
def test_prefill_after_prefixes_is_dense_attention(case: Case) -> None:
    prefill(PLANNER, case).check()


@given(case=cases())
@settings(max_examples=8, deadline=None)
def test_cold_prefill_is_dense_attention(case: Case) -> None:
    cold_prefill(PLANNER, case).check()


@given(case=cases(max_topk=1))
@settings(max_examples=15, deadline=None)
def test_plain_decode_is_dense_attention_from_static_buffers_too(case: Case) -> None:
    check_equal_bits(uniform(PLANNER, case, 1), uniform(PLANNER, case, 1, graph=True))


@given(case=cases())
@settings(max_examples=15, deadline=None)
def test_draft_extend_is_dense_attention_from_static_buffers_too(case: Case) -> None:
    check_equal_bits(uniform(PLANNER, case, case.nodes), uniform(PLANNER, case, case.nodes, graph=True))


@given(case=cases())
@settings(max_examples=15, deadline=None)
def test_verify_is_dense_attention_over_ancestors_from_static_buffers_too(case: Case) -> None:
    check_equal_bits(verify(PLANNER, case), verify(PLANNER, case, graph=True))


@given(case=cases(max_topk=4, min_steps=2), padding=st.integers(0, 2))
@settings(max_examples=25, deadline=None)
def test_draft_branches_are_dense_attention_from_static_buffers_too(case: Case, padding: int) -> None:
    """Padded rows ride along; they must not change what live ones see."""
    eager_result = draft(PLANNER, case, padding=padding)
    check_equal_bits(eager_result, draft(PLANNER, case, graph=True, padding=padding))
