"""How many tokens a request keeps, asked before it is told them; chunks of several requests laid out in one batch."""

from itertools import chain

import torch
from hypothesis import given
from hypothesis import strategies as st

from specdebug.engine.textbook.request import PrefillBatch, Request, SamplingParams
from tests.engine.parts import Parts, make_config

CPU = torch.device("cpu")


class Ends:
    """Stands for stop strings: the output's last two tokens are such a string."""

    def __init__(self, pair: tuple[int, int]) -> None:
        self.pair = pair

    def completed(self, output_ids: list[int]) -> str | None:
        return "pair" if tuple(output_ids[-2:]) == self.pair else None


@given(
    before=st.lists(st.integers(0, 3), max_size=4),
    offered=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    left=st.integers(1, 7),
    stops=st.lists(st.integers(0, 3), max_size=2),
    pair=st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_the_count_is_of_what_is_kept_and_changes_nothing(
    before: list[int], offered: list[int], left: int, stops: list[int], pair: tuple[int, int] | None
) -> None:
    sampling = SamplingParams(max_new_tokens=len(before) + left, stop_token_ids=tuple(stops))
    request = Request("r", [1], sampling, True, output_ids=list(before))
    request.stop_strings = None if pair is None else Ends(pair)  # type: ignore[assignment]
    count = request.count_kept(offered)
    assert (request.output_ids, request.finish_reason, request.matched_stop) == (before, None, None)
    assert request.accept_tokens(offered) == offered[:count]
    assert request.output_ids == [*before, *offered[:count]]


def test_chunks_lie_one_after_another() -> None:
    """Of each: tokens of the prompt, of them committed, of them in the chunk."""
    parts, chunks = Parts(make_config(num_slots=400, max_running_requests=8)), []
    for number, (total, done, length) in enumerate([(5, 2, 3), (6, 0, 4), (3, 1, 1)]):
        request = parts.request([100 * (number + 1) + n for n in range(total)])
        assert parts.admit(request)
        request.kv_len = done
        chunks.append((request, length))
    batch = PrefillBatch.build(chunks, parts.req_to_token, CPU)
    assert batch.requests == tuple(request for request, _ in chunks)
    slots = [parts.req_to_token.slots(r.row, r.kv_len, r.kv_len + n).tolist() for r, n in chunks]
    expected = {
        "prefix_lens": [2, 0, 1],
        "extend_lens": [3, 4, 1],
        "req_pool_indices": [request.row for request, _ in chunks],
        "input_ids": [102, 103, 104, 200, 201, 202, 203, 301],
        "positions": [2, 3, 4, 0, 1, 2, 3, 1],
        "out_cache_loc": list(chain.from_iterable(slots)),
        "next_prompt_ids": [0, 204, 302],
    }
    for name, values in expected.items():
        assert (getattr(batch, name).tolist(), getattr(batch, name).dtype) == (values, torch.int64), name
    assert (batch.final.tolist(), batch.final.dtype) == ([True, False, False], torch.bool)
    assert batch.last_rows().tolist() == [2, 6, 7]
    assert batch.rows_of([0, 2]).tolist() == [0, 1, 2, 7]


def test_a_request_that_comes_back_prefills_its_output_too() -> None:
    parts = Parts(make_config())
    request = parts.request([1, 2, 3])
    request.output_ids += [7, 8]
    assert parts.admit(request)
    batch = PrefillBatch.build([(request, 5)], parts.req_to_token, CPU)
    assert (batch.input_ids.tolist(), batch.final.tolist()) == ([1, 2, 3, 7, 8], [True])
    partly = PrefillBatch.build([(request, 3)], parts.req_to_token, CPU)
    assert (partly.final.tolist(), partly.next_prompt_ids.tolist()) == ([False], [7])
