"""Prefill batches: chunks of several requests laid out one after another, and parts of such a batch."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.textbook.request import PrefillBatch, Request
from tests.engine.parts import Parts, make_config

CPU = torch.device("cpu")


def _batch(shapes: list[tuple[int, int, int]]) -> tuple[Parts, list[tuple[Request, int]], PrefillBatch]:
    """``shapes``: tokens of the prompt, of them committed, of them in the chunk."""
    parts = Parts(make_config(num_slots=400, max_running_requests=8))
    chunks = []
    for number, (total, done, length) in enumerate(shapes):
        request = parts.request([100 * (number + 1) + n for n in range(total)])
        assert parts.admit(request)
        request.kv_len = done
        chunks.append((request, length))
    return parts, chunks, PrefillBatch.build(chunks, parts.req_to_token, CPU)


def test_chunks_lie_one_after_another() -> None:
    parts, chunks, batch = _batch([(5, 2, 3), (6, 0, 4), (3, 1, 1)])
    assert batch.requests == tuple(request for request, _ in chunks)
    assert batch.prefix_lens.tolist() == [2, 0, 1]
    assert batch.extend_lens.tolist() == [3, 4, 1]
    assert batch.req_pool_indices.tolist() == [request.row for request, _ in chunks]
    assert batch.input_ids.tolist() == [102, 103, 104, 200, 201, 202, 203, 301]
    assert batch.positions.tolist() == [2, 3, 4, 0, 1, 2, 3, 1]
    slots = [parts.req_to_token.slots(r.row, r.kv_len, r.kv_len + n).tolist() for r, n in chunks]
    assert batch.out_cache_loc.tolist() == list(chain.from_iterable(slots))
    assert batch.final.tolist() == [True, False, False]
    assert batch.next_prompt_ids.tolist() == [0, 204, 302]
    assert batch.last_rows().tolist() == [2, 6, 7]
    tensors = (batch.prefix_lens, batch.extend_lens, batch.req_pool_indices, batch.input_ids)
    assert all(tensor.dtype == torch.int64 for tensor in (*tensors, batch.positions, batch.out_cache_loc))
    assert batch.final.dtype == torch.bool


def test_a_request_that_comes_back_prefills_its_output_too() -> None:
    parts = Parts(make_config())
    request = parts.request([1, 2, 3])
    request.output_ids += [7, 8]
    assert parts.admit(request)
    batch = PrefillBatch.build([(request, 5)], parts.req_to_token, CPU)
    assert batch.input_ids.tolist() == [1, 2, 3, 7, 8]
    assert batch.final.tolist() == [True]
    partly = PrefillBatch.build([(request, 3)], parts.req_to_token, CPU)
    assert (partly.final.tolist(), partly.next_prompt_ids.tolist()) == ([False], [7])


@given(
    shapes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=30)
def test_a_part_of_a_batch_is_the_batch_of_that_part(shapes: list[tuple[int, int, int]], data: st.DataObject) -> None:
    parts, chunks, batch = _batch([(done + length + rest, done, length) for done, length, rest in shapes])
    keep = sorted(data.draw(st.sets(st.integers(0, len(shapes) - 1), min_size=1)))
    alone = PrefillBatch.build([chunks[i] for i in keep], parts.req_to_token, CPU)
    part = batch.select(keep)
    assert part.requests == alone.requests
    for name in ("prefix_lens", "extend_lens", "req_pool_indices", "input_ids", "positions", "out_cache_loc"):
        assert torch.equal(getattr(part, name), getattr(alone, name)), name
    assert torch.equal(part.final, alone.final)
    assert torch.equal(part.next_prompt_ids, alone.next_prompt_ids)
    assert torch.equal(batch.input_ids[batch.rows_of(keep)], alone.input_ids)


@pytest.mark.parametrize("keep", [[0], [1], [0, 1]])
def test_rows_of_a_part(keep: list[int]) -> None:
    _, _, batch = _batch([(3, 0, 3), (2, 0, 2)])
    assert batch.rows_of(keep).tolist() == [row for i in keep for row in ([0, 1, 2], [3, 4])[i]]
