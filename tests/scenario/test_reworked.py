"""The same requests, served otherwise: who comes when, and what stays."""

from dataclasses import replace
from typing import Any

import pytest

from specdebug.base.features import Features
from specdebug.run.loop import WorkloadDriver
from specdebug.scenario.reworked import AGAIN, NEIGHBOUR, REWORKED, reworked
from specdebug.scenario.workload import RequestSampling, Workload, WorkloadRequest


def request(rid: str, group: str, **more: Any) -> WorkloadRequest:
    return WorkloadRequest(rid, group, (1, 2), RequestSampling(4), **more)


WORKLOAD = Workload(
    (
        request("a.0", "a", flush=True),
        request("a.1", "a", delay=3),
        request("t.0.0", "t"),
        request("t.0.1", "t", continues="t.0.0"),
        request("t.1.0", "t", delay=1),
        request("b.0", "b", delay=2),
    ),
    {"b": ("a",)},
)


def arrivals(workload: Workload, lasts: int = 4) -> list[tuple[int, str]]:
    """When each request comes, if each takes so many steps, or is aborted before."""
    driver, came, done = WorkloadDriver(workload), list[tuple[int, str]](), dict[str, list[int]]()
    ends: dict[str, int] = {}
    for step in range(400):
        done |= {rid: [9] for rid, end in ends.items() if end <= step}
        due = driver.due(step, done)
        for arrival in due.arrivals:
            came.append((step, arrival.rid))
            ends[arrival.rid] = step + lasts
        done |= {rid: [] for rid in due.aborts}
        if driver.exhausted and len(done) == len(ends):
            return came
    raise AssertionError(f"it does not end: {came}")


@pytest.mark.parametrize("how", REWORKED)
def test_every_request_is_served_and_asks_the_same(how: str) -> None:
    made = {each.rid: each for each in reworked(how, WORKLOAD).requests}
    for each in WORKLOAD.requests:
        mine = made[each.rid]
        assert (mine.new_ids, mine.sampling, mine.continues) == (each.new_ids, each.sampling, each.continues)
    assert {rid for _, rid in arrivals(reworked(how, WORKLOAD))} == set(made)


def test_one_by_one_and_each_to_an_empty_cache() -> None:
    for how in ("alone", "cold"):
        times = [step for step, _ in arrivals(reworked(how, WORKLOAD))]
        assert times == [0, 4, 8, 12, 16, 20]
    assert [each.flush for each in reworked("alone", WORKLOAD).requests] == [True] + [False] * 5
    assert all(each.flush for each in reworked("cold", WORKLOAD).requests)


def test_the_opposite_order() -> None:
    came = arrivals(reworked("order", WORKLOAD))
    assert [rid for _, rid in came] == ["t.1.0", "a.1", "t.0.0", "a.0", "t.0.1", "b.0"]
    assert {rid: step for step, rid in came}["a.0"] == 3
    assert [each.rid for each in reworked("order", WORKLOAD).requests if each.flush] == ["a.1"]


def test_a_second_time_begins_once_all_have_ended() -> None:
    came = arrivals(reworked("again", WORKLOAD))
    first = [(step, rid) for step, rid in came if not rid.startswith(AGAIN)]
    second = [(step, rid.removeprefix(AGAIN)) for step, rid in came if rid.startswith(AGAIN)]
    assert min(second)[0] >= max(first)[0] + 4
    assert [(step - second[0][0], rid) for step, rid in second] == first


def test_neighbours_come_first_and_are_aborted() -> None:
    made = reworked("interrupted", WORKLOAD).requests
    names = [each.rid for each in made]
    assert [each for each in names if each.startswith(NEIGHBOUR)] == [f"{NEIGHBOUR}{group}.0" for group in "atb"]
    assert names.index(f"{NEIGHBOUR}a.0") < names.index("a.0")
    assert [each.rid for each in made if each.flush] == [f"{NEIGHBOUR}a.0"]
    rest = [replace(each, flush=False) for each in made if not each.rid.startswith(NEIGHBOUR)]
    assert rest == [replace(each, flush=False) for each in WORKLOAD.requests]


def test_completions_that_come_one_by_one_are_requests_of_their_own() -> None:
    asking = RequestSampling(4, features=Features(n=2))
    both = Workload(tuple(WorkloadRequest(f"a.0.{n}", "a", (1, 2), asking) for n in range(2)))
    assert [each.sampling.features.n for each in reworked("alone", both).requests] == [1, 1]
    assert [each.sampling.features.n for each in reworked("interrupted", both).requests] == [1, 2, 2]
    assert reworked("order", both).requests == both.requests[::-1]
