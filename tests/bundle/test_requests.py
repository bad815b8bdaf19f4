"""Planned requests survive the trip, and only planned requests are read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.base.errors import ContentError
from specdebug.bundle.requests import read_requests, write_requests
from specdebug.scenario.workload import RequestSampling, Workload, WorkloadRequest

GOOD = {
    "rid": "g0.0",
    "group": "g0",
    "new_ids": "5 6 7",
    "sampling": {"max_new_tokens": 8, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 3},
}

stop_strings = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), min_size=1, max_size=5)
plans = st.builds(
    RequestSampling,
    max_new_tokens=st.integers(1, 2**20),
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0.01, 1),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple),
    stop=st.lists(stop_strings, max_size=3).map(tuple),
    seed=st.integers(0, 2**63 - 1),
)
requests = st.builds(
    WorkloadRequest,
    rid=st.integers(0, 10**6).map(lambda n: f"g0.{n}"),
    group=st.just("g0"),
    new_ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20).map(tuple),
    sampling=plans,
    speculative=st.booleans(),
    delay=st.integers(0, 10**9),
    abort_after=st.none() | st.integers(0, 10**6),
    flush=st.booleans(),
)


@given(st.lists(requests, min_size=1, max_size=5, unique_by=lambda request: request.rid))
def test_any_requests_survive(planned: list[WorkloadRequest]) -> None:
    text = write_requests(Workload(tuple(planned)))
    assert read_requests(text, "r", ["g0"]) == tuple(planned)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rid": "no number"}, "does not fit the form"),
        ({"group": "g1"}, "cannot be 'g1'"),
        ({"new_ids": ""}, "must not be empty"),
        ({"new_ids": "5 -6"}, "does not fit the form"),
        ({"new_ids": [5, 6]}, "must be text"),
        ({"new_ids": "9999999999"}, "has the token 9999999999"),
        ({"new_ids": "1 " * 2**20 + "1"}, "has 1048577 tokens"),
        ({"sampling": {}}, "lacks the key 'max_new_tokens'"),
        ({"sampling": {**GOOD["sampling"], "top_p": 2}}, "must be a number from 0 to 1"),  # type: ignore[dict-item]
        ({"delay": -1}, "must be a whole number"),
        ({"continues": "g0.7"}, "which is no request before it"),
        ({"code": "import os"}, "unknown key 'code'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value)[:30],
)
def test_what_is_no_request_is_said_with_its_line(change: dict[str, object], words: str) -> None:
    text = json.dumps({**GOOD, "rid": "g0.9"}) + "\n" + json.dumps({**GOOD, **change}) + "\n"
    with pytest.raises(ContentError) as caught:
        read_requests(text, "b.specdebug/requests.jsonl", ["g0"])
    assert words in str(caught.value)
    assert str(caught.value).startswith("b.specdebug/requests.jsonl:2:")
    assert "\n" not in str(caught.value)


def test_a_request_twice_and_none_at_all_are_refused() -> None:
    line = json.dumps(GOOD) + "\n"
    with pytest.raises(ContentError, match=r"repeats the request g0\.0"):
        read_requests(line * 2, "r", ["g0"])
    with pytest.raises(ContentError, match="holds no request"):
        read_requests("", "r", ["g0"])
