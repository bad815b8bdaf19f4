"""Two pools add up: each law of the layers with a window holds of sound ones, and each way to break it is named."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.targets.sglang.inside.scheduler import booked, violated
from specdebug.targets.sglang.inside.windows import violated_windows
from tests.targets.sglang.inside.engine import PAGE, PAGES, Allocator, scheduler


def two_pools() -> Any:
    """Pages 1 to 4 of all layers are held, 5 to 8 free. Of the layers with a window pages 2 and 3 are of pages 3 and 4,
    pages 1 and 4 free."""
    leads = torch.zeros(PAGE * (PAGES + 1) + 1, dtype=torch.int64)
    leads[6:10] = torch.arange(4, 8)
    return SimpleNamespace(
        page_size=PAGE,
        full_attn_allocator=Allocator([5, 6, 7, 8], None),
        swa_attn_allocator=SimpleNamespace(size=4 * PAGE, free_pages=torch.tensor([1, 4]), release_pages=None),
        full_to_swa_index_mapping=leads,
    )


def told(pools: Any, cells: tuple[int, ...] = (2, 3, 4, 5, 6, 7), window: int = 2) -> list[str]:
    free = pools.full_attn_allocator.free_pages, pools.swa_attn_allocator.free_pages
    return list(violated_windows(pools, *free, [("a", torch.tensor(cells))], window))


def _free_keeps(pools: Any) -> None:
    pools.full_attn_allocator.free_pages = torch.tensor([4, 5, 6, 7, 8])


def _shared(pools: Any) -> None:
    pools.full_to_swa_index_mapping[9] = 4


def _listed(pools: Any) -> None:
    pools.swa_attn_allocator.free_pages = torch.tensor([1, 2, 4])


def _lost(pools: Any) -> None:
    pools.swa_attn_allocator.free_pages = torch.tensor([1])


def _taken_away(pools: Any) -> None:
    pools.full_to_swa_index_mapping[7] = 0


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_free_keeps, "slot 8 is free, and keeps slot 6 of the layers with a window"),
        (_shared, "slot 4 of the layers with a window is that of slots 6 and 9"),
        (_listed, "1 pages of the layers with a window have more than one owner (first: 2)"),
        (_lost, "1 pages of the layers with a window have no owner (first: 4)"),
        (_taken_away, "a position 5 of 6 is within the window, and its slot was taken away"),
    ],
)
def test_each_broken_law_is_named(spoil: Callable[[Any], None], expected: str) -> None:
    pools = two_pools()
    assert told(pools) == []
    spoil(pools)
    assert told(pools) == [f"windows: {expected}"]


def test_what_lies_before_the_window_may_be_gone_and_a_short_request_has_all() -> None:
    pools = two_pools()
    assert told(pools, (6, 7), window=9) == []
    assert told(pools, window=3) == ["windows: a position 3 of 6 is within the window, and its slot was taken away"]


def test_the_books_of_a_scheduler_with_two_pools_are_those_of_full_attention_and_of_windows() -> None:
    engine, pools = scheduler(), two_pools()
    engine.token_to_kv_pool_allocator, engine.tree_cache.sliding_window_size = pools, 2
    assert violated(engine) == []
    assert booked(engine, [])["free slots and rows"][0] == 4
    pools.full_to_swa_index_mapping[6:8] = 0
    pools.swa_attn_allocator.free_pages = torch.tensor([1, 2, 4])
    (broken,) = violated(engine)
    assert broken.startswith("windows: 0123abcd-a position ")
