"""Guards looked at from the device say what the host's look says."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.memory.arena import ArenaLayout, FillPolicy


def test_every_region_reports_its_first_last_and_number_of_damaged_bytes(device: torch.device) -> None:
    from specdebug.engine.kernels.triton.guards import look_at_guards

    memory = torch.full((400,), 7, dtype=torch.uint8, device=device)
    starts, stops = torch.tensor([3, 100, 300], device=device), torch.tensor([60, 111, 400], device=device)
    seen = torch.zeros((3, 3), dtype=torch.int64, device=device)
    memory[[0, 2, 60, 99, 111]] = 9  # next to regions, in none
    look_at_guards(memory, starts, stops, 7, 100, seen)
    assert seen.tolist() == [[0, 0, 0]] * 3
    memory[[3, 59, 105, 399]] = 0
    look_at_guards(memory, starts, stops, 7, 100, seen)
    assert seen.tolist() == [[0, 57, 2], [5, 6, 1], [99, 100, 1]]


@pytest.mark.gpu
def test_an_arena_on_a_gpu_leaves_what_it_saw_on_the_host() -> None:
    layout = ArenaLayout(guards=True)
    layout.add("first", (5,), torch.bool)
    layout.add("second", (3,), torch.int64)
    arena = layout.build(FillPolicy("garbage"), torch.device("cuda"))
    arena.watch_guards()
    torch.cuda.synchronize()
    assert arena.damage_seen() == []
    arena["first"].as_strided((7,), (1,), arena["first"].storage_offset())[5:] = False
    arena.watch_guards()
    torch.cuda.synchronize()
    (seen,) = arena.damage_seen()
    assert (seen.buffer, seen.victim, seen.first_byte, seen.overran, seen.damaged) == ("first", "second", 0, 2, 2)
    assert arena.damage_seen() == []
    assert [str(found) for found in arena.check_guards()] == [str(seen)]
    assert arena.check_guards() == []
