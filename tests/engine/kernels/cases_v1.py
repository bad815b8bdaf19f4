"""Batches as the worker v1 allocates for them, and where each slot belongs, counted cell by cell."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

WIDTH = 96


@dataclass(frozen=True)
class DraftCase:
    """table: int32 [R + 1, WIDTH], cells without a slot are -1. slots: by request, in the order of the batch."""

    table: Tensor
    rows: Tensor
    seq_lens: Tensor
    held_lens: Tensor
    slots: list[list[int]]
    shape: dict[str, int]

    @property
    def offsets(self) -> Tensor:
        return torch.tensor([0, *(len(each) for each in self.slots)]).cumsum(0)

    @property
    def out_cache_loc(self) -> Tensor:
        return torch.tensor([slot for each in self.slots for slot in each], dtype=torch.int64)

    def expected_rows(self) -> Tensor:
        """The table with every slot in its row."""
        table = self.table.clone()
        for row, held, slots in zip(self.rows.tolist(), self.held_lens.tolist(), self.slots, strict=True):
            table[row, held : held + len(slots)] = torch.tensor(slots, dtype=torch.int32)
        return table

    def expected_branches(self) -> list[list[int]]:
        """The slots of each branch, from the rows."""
        topk, steps, page = (self.shape[name] for name in ("topk", "num_steps", "page_size"))
        table, found = self.expected_rows(), []
        for row, length in zip(self.rows.tolist(), self.seq_lens.tolist(), strict=True):
            holey = topk > 1 and page > 1
            tail = length % page if holey else 0
            apart = -(-(tail + steps) // page) * page if holey else steps
            for branch in range(topk):
                first = length - tail + branch * apart + tail
                found.append(table[row, first : first + steps].tolist())
        return found


def draft_case(lengths: list[int], topk: int, steps: int, page: int, seed: int) -> DraftCase:
    """Each request holds whole pages of its committed length, and gets what its draft lacks."""
    generator = torch.Generator().manual_seed(seed)
    pages = (torch.randperm(len(lengths) * WIDTH, generator=generator) + 1).tolist()

    def whole(cells: int) -> int:
        return -(-cells // page) * page

    def take(cells: int) -> list[int]:
        mine = [pages.pop() for _ in range(cells // page)]
        return [number * page + i for number in mine for i in range(page)]

    table = torch.full((len(lengths) + 1, WIDTH), -1, dtype=torch.int32)
    rows = torch.arange(len(lengths), 0, -1)  # the order of the batch is not that of the rows
    held, slots = [], []
    for row, length in zip(rows.tolist(), lengths, strict=True):
        held.append(whole(length))
        table[row, : held[-1]] = torch.tensor(take(held[-1]), dtype=torch.int32)
        tail = length % page
        end = length + topk * steps if topk == 1 or page == 1 else length - tail + topk * whole(tail + steps)
        slots.append(take(max(whole(end) - held[-1], 0)))
    shape = {"topk": topk, "num_steps": steps, "page_size": page}
    return DraftCase(table, rows, torch.tensor(lengths), torch.tensor(held), slots, shape)


draft_cases = st.builds(
    draft_case,
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    topk=st.integers(1, 4),
    steps=st.integers(1, 5),
    page=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 99),
)
UPSTREAM = draft_case([5, 6, 7], topk=2, steps=3, page=4, seed=3)
"""A batch that upstream's v1 may pack wrongly: programs write where ones of lower numbers have yet to read."""
