"""Torch operations on static buffers: what each reads and writes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from specdebug.kernel_memory.watch import Watch
from tests.kernel_memory import kernels

Act = Callable[[Tensor], object]
LEFT = 2
"""Elements of the buffer that a replay has not written, of six."""
TABLE = torch.arange(40.0).view(10, 4)


def none(_: str) -> None:
    return None


@pytest.fixture
def buffer(watch: Watch) -> Tensor:
    """Six elements of a replay before; the replay that is on has written the first four."""
    buffer = torch.zeros(6, dtype=torch.int64)
    watch.static.add("positions", buffer)
    watch.static.batch(1)
    watch.static.begin("draft", none)
    with watch.operations:
        buffer.fill_(3)
    watch.static.end()
    watch.static.begin("draft", none)
    with watch.operations:
        buffer[:-LEFT].copy_(torch.arange(4))
    return buffer


def counts(watch: Watch, act: Callable[[], object]) -> list[int]:
    with watch.operations:
        act()
    return [found.count for found in watch.poll()]


@pytest.mark.parametrize(
    "read",
    [
        lambda it: it + 1,
        lambda it: it.cumsum(0),
        lambda it: torch.cat((it, it.new_zeros(1))),
        lambda it: torch.nn.functional.embedding(it, TABLE),
        lambda it: TABLE[it],
        lambda it: it.view(3, 2)[1:].sum(),
        lambda it: torch.zeros(6, dtype=torch.int64).copy_(it),
        lambda it: it.add_(1),
        lambda it: it.to(torch.int32),
    ],
)
def test_an_operation_reads_all_that_it_is_given(watch: Watch, buffer: Tensor, read: Act) -> None:
    assert counts(watch, lambda: read(buffer)) == [LEFT]


@pytest.mark.parametrize(
    "look",
    [
        lambda it: it[:4] + 1,
        lambda it: it[torch.tensor([0, 3])],
        lambda it: it.index_select(0, torch.tensor([1, 2])),
        lambda it: it.gather(0, torch.tensor([0])),
        lambda it: it.view(2, 3).reshape(-1).contiguous().to(torch.int64).expand(6),
        lambda it: it.copy_(it),
        lambda it: it.zero_(),
        lambda it: it[4:].fill_(0),
        lambda it: torch.add(torch.ones(6, dtype=torch.int64), 1, out=it),
        lambda it: torch._foreach_copy_([it], [torch.ones(6, dtype=torch.int64)]),
    ],
)
def test_what_was_written_and_what_is_but_viewed_is_not_told(watch: Watch, buffer: Tensor, look: Act) -> None:
    assert counts(watch, lambda: look(buffer)) == []


def test_a_pick_reads_what_its_index_says(watch: Watch, buffer: Tensor) -> None:
    assert counts(watch, lambda: buffer[torch.tensor([0, 5])]) == [1]
    assert counts(watch, lambda: buffer.index_select(0, torch.tensor([4, 5, 1]))) == [2]


@pytest.mark.parametrize(
    "write",
    [
        lambda it: it.fill_(1),
        lambda it: it.copy_(torch.arange(6)),
        lambda it: it[4:].zero_(),
        lambda it: it.__setitem__(torch.tensor([4, 5]), torch.tensor([1, 2])),
        lambda it: it.scatter_(0, torch.tensor([4, 5]), torch.tensor([1, 2])),
        lambda it: it.masked_fill_(torch.arange(6) > 3, 0),
        lambda it: it.index_fill_(0, torch.tensor([4, 5]), 0),
        lambda it: it.index_copy_(0, torch.tensor([4, 5]), torch.tensor([1, 2])),
        lambda it: torch.add(torch.ones(6, dtype=torch.int64), 1, out=it),
        lambda it: torch._foreach_copy_([it], [torch.ones(6, dtype=torch.int64)]),
    ],
)
def test_what_a_replay_writes_it_may_read(watch: Watch, buffer: Tensor, write: Act) -> None:
    assert counts(watch, lambda: write(buffer)) == []
    assert counts(watch, lambda: buffer + 1) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda it: it.__setitem__(torch.tensor([4]), 1),
        lambda it: it.scatter_(0, torch.tensor([5]), 1),
        lambda it: it.masked_fill_(torch.arange(6) == 4, 0),
        lambda it: it.copy_(it),
    ],
)
def test_what_a_write_leaves_out_stays_stale(watch: Watch, buffer: Tensor, write: Act) -> None:
    assert counts(watch, lambda: write(buffer)) == []
    [left] = counts(watch, lambda: buffer + 1)
    assert 0 < left <= LEFT


def test_a_finding_names_runner_buffer_operation_and_line(watch: Watch, buffer: Tensor) -> None:
    with watch.operations:
        buffer.cumsum(0)
    [found] = watch.poll()
    assert found.signature == "stale@draft.positions"
    assert found.message(3).startswith(
        f"stale@draft.positions : load by torch's cumsum at {found.access.line}, 2 elements, the first [4] of "
    )
    assert found.access.line.startswith("kernel_memory/test_operations.py:")


def test_while_it_is_paused_and_while_a_kernel_runs_nothing_is_looked_at(watch: Watch, buffer: Tensor) -> None:
    watch.operations.pause()
    assert counts(watch, lambda: buffer + 1) == []
    watch.operations.go_on()
    out = torch.zeros(2, dtype=torch.int64)
    assert counts(watch, lambda: kernels.copy[(1,)](buffer, out, 0, 2, BLOCK=2)) == []
    assert counts(watch, lambda: buffer + 1) == [LEFT]


def test_in_inference_mode_it_is_the_same(watch: Watch, buffer: Tensor) -> None:
    with torch.inference_mode():
        assert counts(watch, lambda: buffer.reshape(2, 3).sum()) == [LEFT]
        assert counts(watch, lambda: buffer.fill_(0)) == []
        assert counts(watch, lambda: buffer.reshape(2, 3).sum()) == []
