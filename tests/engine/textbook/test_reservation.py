"""What decoding takes beyond a committed length, against the layout of a row counted cell by cell."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine import EngineConfig
from specdebug.engine.config import round_up
from specdebug.engine.textbook.scheduler import Reservation


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


@given(
    page=st.sampled_from([1, 2, 4, 16, 256]),
    steps=st.integers(1, 9),
    topk=st.integers(1, 6),
    lengths=st.lists(st.integers(1, 600), min_size=1, max_size=4),
)
@settings(max_examples=200)
def test_v1_borrows_what_its_drafts_and_then_its_verify_lack_and_has_room_for_it(
    page: int, steps: int, topk: int, lengths: list[int]
) -> None:
    """Upstream's row has 4 + T cells behind the context (derived: too few with pages and topk above one)."""
    config = config_of(page, steps, topk)
    assert config.speculative is not None
    reservation, drafting, verifying = Reservation(config), 0, 0
    requests = [request_of(length, page) for length in lengths]
    for length, request in zip(lengths, requests, strict=True):
        held, last = round_up(length, page), max(cells_of_a_draft(length, page, steps, topk))
        drafting += round_up(last + 1, page) - held
        verifying += round_up(length + config.speculative.tree_size, page) - held
        ends = reservation.draft_end(length), reservation.verify_end(length)
        assert last < ends[0]
        assert max(round_up(end, page) for end in ends) <= config.context_length + config.row_headroom
        assert max(ends) <= length + reservation.admitted(request)
    assert reservation.borrowed([*requests, request_of(9, page, speculative=False)]) == max(drafting, verifying, 0)


@pytest.mark.parametrize(
    ("worker", "speculative", "held", "admitted"),
    [("v1", True, 0, 16), ("v1", False, 1, 1), ("v2", True, 32, 32), ("v2", False, 2, 2)],
)
def test_each_worker_holds_what_its_steps_in_flight_take(
    worker: str, speculative: bool, held: int, admitted: int
) -> None:
    """Of two branches of three steps in pages of four, which take 16 cells."""
    config = config_of(4, 3, 2, worker)
    reservation, request = Reservation(config), request_of(10, 4, speculative=speculative)
    assert config.alloc_len_per_decode == 16
    assert (reservation.held(request), reservation.admitted(request)) == (held, admitted)
    assert (reservation.borrowed([request]) > 0) == (worker == "v1" and speculative)


def test_v1_reserves_one_step_where_v2_reserves_two() -> None:
    first, second = config_of(256, 8, 5), config_of(256, 8, 5, "v2")
    assert (first.row_headroom, second.row_headroom) == (2560 + 255, 5120 + 255)
