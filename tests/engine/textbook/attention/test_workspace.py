"""Where metadata goes: fresh memory of the asked size, or whatever was declared."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.memory.fill import FillPolicy, Scratch
from specdebug.engine.textbook.attention.workspace import ArenaWorkspace, EagerWorkspace

CPU = torch.device("cpu")


def test_eager_memory_is_fresh_and_holds_what_the_policy_says() -> None:
    workspace = EagerWorkspace(Scratch(FillPolicy("garbage"), CPU))
    first = workspace.take("x", (3, 4), torch.int32)
    second = workspace.take("x", (3, 4), torch.int32)
    assert first.shape == (3, 4)
    assert first.dtype == torch.int32
    assert first.data_ptr() != second.data_ptr()
    assert bool(first.any())
    assert not torch.equal(first, second)
    zeros = EagerWorkspace(Scratch(FillPolicy("zeros"), CPU)).take("x", (5,), torch.bool)
    assert zeros.tolist() == [False] * 5


def test_static_memory_is_the_declared_buffer_whatever_is_asked_for() -> None:
    layout = ArenaLayout(guards=False)
    layout.add("x", (4, 8), torch.int32)
    arena = layout.build(FillPolicy("zeros"), CPU)
    workspace = ArenaWorkspace(arena)
    for shape in ((4, 8), (1, 2), (99, 99)):
        taken = workspace.take("x", shape, torch.int32)
        assert taken.shape == (4, 8)
        assert taken.data_ptr() == arena["x"].data_ptr()
    with pytest.raises(KeyError, match="undeclared"):
        workspace.take("undeclared", (1,), torch.int32)
