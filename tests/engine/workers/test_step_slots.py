"""Slots that a step of the worker v1 takes, against rows and books counted by hand."""

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.config import round_up
from specdebug.engine.textbook.request import Request
from specdebug.engine.workers.v1 import StepSlots
from tests.engine.parts import Parts, make_config


class Bench:
    """Requests of given lengths that hold whole pages of what they have committed."""

    def __init__(self, page: int, steps: int, topk: int, nodes: int, lengths: list[int]) -> None:
        spec = {"worker": "v1", "num_steps": steps, "eagle_topk": topk, "num_draft_tokens": nodes}
        config = make_config(page_size=page, num_slots=1024, speculative=spec)
        self.parts, self.page = Parts(config), page
        made: Any = SimpleNamespace(
            config=config,
            spec=config.speculative,
            memory=self.parts.memory,
            req_to_token=self.parts.req_to_token,
            device=torch.device("cpu"),
        )
        self.slots = StepSlots(made)
        self.requests: list[Request] = []
        for length in lengths:
            request = self.parts.request([1] * length)
            assert self.parts.admit(request)
            request.kv_len = length
            self.requests.append(request)
        self.rows = torch.tensor([request.row for request in self.requests])
        self.lens = torch.tensor(lengths)

    def row(self, request: Request) -> Tensor:
        return self.parts.req_to_token.table[request.row]

    def committed(self) -> list[list[int]]:
        return [self.row(request)[: request.kv_len].tolist() for request in self.requests]


benches = st.builds(
    lambda page, steps, topk, extra, lengths: Bench(
        page, steps, topk, steps + 1 if topk == 1 else min(1 + topk + topk * topk * (steps - 1), 2 + extra), lengths
    ),
    page=st.sampled_from([1, 2, 4, 16]),
    steps=st.integers(1, 4),
    topk=st.integers(1, 3),
    extra=st.integers(0, 6),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
)


@given(bench=benches)
@settings(max_examples=100)
def test_a_draft_gives_back_what_it_borrows_and_leaves_stale_ids_in_the_rows(bench: Bench) -> None:
    allocator, before = bench.parts.memory.allocator, bench.committed()
    free, held = allocator.free_slots(), [request.kv_allocated for request in bench.requests]
    with bench.slots.draft(bench.requests, bench.rows, bench.lens) as locs:
        drafted = locs.out_cache_loc.flatten().tolist()
        taken = set(free.tolist()) - set(allocator.free_slots().tolist())
    assert torch.equal(allocator.free_slots(), free)
    assert bench.committed() == before
    assert [request.kv_allocated for request in bench.requests] == held
    own = {slot for request in bench.requests for slot in bench.row(request)[: request.kv_allocated].tolist()}
    assert set(drafted) <= taken | own
    stale = {slot for request in bench.requests for slot in bench.row(request)[request.kv_allocated :].tolist()}
    assert taken <= stale, "the rows still name what is free"


@given(bench=benches, pick=st.integers(0, 2**16))
@settings(max_examples=100)
def test_what_is_kept_of_a_verify_is_in_front_and_the_rest_is_free(bench: Bench, pick: int) -> None:
    """Of single slots any nodes, of pages as many tokens as were accepted."""
    parts, nodes = bench.parts, bench.slots._parts.spec.tree_size
    before, free = bench.committed(), parts.memory.allocator.num_free
    taken = bench.slots.take(bench.requests, bench.rows, bench.lens)
    cells = [bench.row(each)[each.kv_len : each.kv_len + nodes].tolist() for each in bench.requests]
    assert taken.out_cache_loc.view(len(cells), nodes).tolist() == cells
    assert len({slot for slots in cells for slot in slots}) == nodes * len(cells)
    counts = [1 + (pick + b) % nodes for b in range(len(cells))]
    accepted = [[0, *range(nodes - count + 1, nodes)] for count in counts]
    if bench.page == 1:
        bench.slots.keep_nodes(bench.requests, bench.rows, taken, accepted)
    else:
        accepted = [list(range(count)) for count in counts]
        bench.slots.keep_pages(bench.requests, taken, counts)
    for request, count, slots, numbers in zip(bench.requests, counts, cells, accepted, strict=True):
        wanted = [slots[number] for number in numbers]
        assert bench.row(request)[request.kv_len : request.kv_len + count].tolist() == wanted
        request.kv_len += count
        assert request.kv_allocated == round_up(request.kv_len, bench.page)
    assert [slots[:length] for slots, length in zip(bench.committed(), bench.lens.tolist(), strict=True)] == before
    grown = sum(
        each.kv_allocated - round_up(length, bench.page)
        for each, length in zip(bench.requests, bench.lens.tolist(), strict=True)
    )
    assert parts.memory.allocator.num_free == free - grown
    assert parts.laws(*bench.requests) == []
