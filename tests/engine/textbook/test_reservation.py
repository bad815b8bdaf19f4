"""What decoding takes beyond a committed length, against the layout of a row counted cell by cell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine import EngineConfig
from specdebug.engine.config import round_up
from specdebug.engine.textbook.scheduler import OverReservation, StepReservation, reservation_of


def config_of(page: int, steps: int, topk: int, worker: str = "v1") -> EngineConfig:
    nodes = steps + 1 if topk == 1 else min(1 + topk + topk * topk * (steps - 1), 40)
    spec = {"worker": worker, "num_steps": steps, "eagle_topk": topk, "num_draft_tokens": nodes}
    return EngineConfig.from_dict({"page_size": page, "context_length": 600, "speculative": spec})


def request_of(length: int, page: int, *, speculative: bool = True) -> Any:
    return SimpleNamespace(kv_len=length, kv_allocated=round_up(length, page), speculative=speculative)


def cells_of_a_draft(length: int, page: int, steps: int, topk: int) -> set[int]:
    """Every row cell that a branch drafts into, or keeps a copy of the prefix's tail in."""
    if topk == 1 or page == 1:
        return {length + branch * steps + step for branch in range(topk) for step in range(steps)}
    tail = length % page
    whole = -(-(tail + steps) // page) * page
    return {length - tail + branch * whole + cell for branch in range(topk) for cell in range(tail + steps)}


shapes = {
    "page": st.sampled_from([1, 2, 4, 16, 256]),
    "steps": st.integers(1, 9),
    "topk": st.integers(1, 6),
    "lengths": st.lists(st.integers(1, 600), min_size=1, max_size=4),
}


@given(**shapes)
@settings(max_examples=150)
def test_v1_borrows_what_its_drafts_and_then_its_verify_lack(
    page: int, steps: int, topk: int, lengths: list[int]
) -> None:
    config = config_of(page, steps, topk)
    assert config.speculative is not None
    drafting = verifying = 0
    for length in lengths:
        held = round_up(length, page)
        drafting += round_up(max(cells_of_a_draft(length, page, steps, topk)) + 1, page) - held
        verifying += round_up(length + config.speculative.tree_size, page) - held
    reservation = StepReservation(config)
    requests = [request_of(length, page) for length in lengths]
    assert reservation.borrowed([*requests, request_of(9, page, speculative=False)]) == max(drafting, verifying, 0)
    assert [reservation.held(request) for request in requests] == [0] * len(lengths)


@given(**shapes)
@settings(max_examples=150)
def test_what_v1_drafts_into_lies_in_its_row_and_an_admission_has_room_for_it(
    page: int, steps: int, topk: int, lengths: list[int]
) -> None:
    """Upstream's row has 4 + T cells behind the context (derived: too few with pages and topk above one)."""
    config = config_of(page, steps, topk)
    reservation = StepReservation(config)
    for length in lengths:
        ends = reservation.draft_end(length), reservation.verify_end(length)
        assert max(cells_of_a_draft(length, page, steps, topk)) < ends[0]
        assert max(round_up(end, page) for end in ends) <= config.context_length + config.row_headroom
        assert max(ends) <= length + reservation.admitted(request_of(length, page))


def test_v1_reserves_one_step_where_v2_reserves_two() -> None:
    first, second = config_of(256, 8, 5), config_of(256, 8, 5, "v2")
    assert (first.row_headroom, second.row_headroom) == (2560 + 255, 5120 + 255)
    assert isinstance(reservation_of(first), StepReservation)
    assert isinstance(reservation_of(second), OverReservation)


@pytest.mark.parametrize("speculative", [True, False])
def test_v2_holds_two_steps_and_borrows_nothing(speculative: bool) -> None:
    config = config_of(4, 3, 2, "v2")
    reservation, request = OverReservation(config), request_of(10, 4, speculative=speculative)
    held = 2 * (config.alloc_len_per_decode if speculative else 1)
    assert (reservation.held(request), reservation.admitted(request)) == (held, held)
    assert reservation.borrowed([request]) == 0


def test_a_request_without_drafts_holds_its_next_position_under_v1() -> None:
    reservation, request = StepReservation(config_of(4, 3, 2)), request_of(10, 4, speculative=False)
    assert (reservation.held(request), reservation.admitted(request), reservation.borrowed([request])) == (1, 1, 0)
