"""The driver alone, against hand-written histories of finished requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.run.loop import WorkloadDriver
from specdebug.scenario.workload import RequestSampling, Workload, WorkloadRequest


def planned(rid, **facts):
    return WorkloadRequest(rid, rid.split(".")[0], (1, 2), RequestSampling(4), **facts)


def driver(*requests, after=None):
    return WorkloadDriver(Workload(tuple(requests), after or {}))


def arrivals(due):
    return [arrival.rid for arrival in due.arrivals]


def test_a_group_waits_for_all_of_another_and_counts_its_delay_from_there():
    walk = driver(planned("a.0"), planned("a.1"), planned("b.0", delay=1), after={"b": ("a",)})
    assert arrivals(walk.due(0, {})) == ["a.0", "a.1"]
    assert arrivals(walk.due(5, {"a.0": [7]})) == []
    done = {"a.0": [7], "a.1": [8]}
    assert arrivals(walk.due(6, done)) == []
    assert arrivals(walk.due(7, done)) == ["b.0"]


def test_a_round_gets_the_whole_history_as_soon_as_the_last_one_finished():
    walk = driver(
        planned("t.0.0"),
        WorkloadRequest("t.0.1", "t", (5,), RequestSampling(4), continues="t.0.0", delay=3),
        WorkloadRequest("t.0.2", "t", (6,), RequestSampling(4), continues="t.0.1"),
    )
    assert arrivals(walk.due(0, {})) == ["t.0.0"]
    second = walk.due(4, {"t.0.0": [8, 9]}).arrivals
    assert [(a.rid, a.prompt_ids) for a in second] == [("t.0.1", (1, 2, 8, 9, 5))]
    assert not walk.due(5, {"t.0.0": [8, 9]}).arrivals
    third = walk.due(6, {"t.0.0": [8, 9], "t.0.1": [7]}).arrivals
    assert third[0].prompt_ids == (1, 2, 8, 9, 5, 7, 6)
    assert walk.exhausted


def test_an_abort_comes_that_many_steps_after_the_arrival():
    walk = driver(planned("a.0", delay=2, abort_after=3))
    assert walk.due(2, {}).aborts == ()
    assert walk.due(4, {}).aborts == ()
    assert not walk.exhausted
    assert walk.due(5, {}).aborts == ("a.0",)
    assert walk.exhausted
    assert walk.due(6, {}).aborts == ()


def test_steps_do_not_go_back():
    walk = driver(planned("a.0", delay=9))
    walk.due(3, {})
    with pytest.raises(ValueError, match="step 2 comes after step 3"):
        walk.due(2, {})


@st.composite
def workloads(draw):
    """Up to five groups of up to three requests, each group after some of the earlier ones."""
    groups = draw(st.integers(1, 5))
    requests, after = [], {}
    for g in range(groups):
        after[f"g{g}"] = tuple(f"g{n}" for n in draw(st.sets(st.integers(0, g - 1)))) if g else ()
        turns = draw(st.booleans())
        for n in range(draw(st.integers(1, 3))):
            rid, before = f"g{g}.{n}", f"g{g}.{n - 1}"
            abort = None if turns else draw(st.none() | st.integers(0, 4))
            continues = before if turns and n else None
            delay = draw(st.integers(0, 6))
            requests.append(planned(rid, delay=delay, abort_after=abort, continues=continues))
    return Workload(tuple(requests), after)


@given(workloads(), st.data())
def test_any_workload_under_any_service_times_comes_to_an_end(workload, data):
    """Every request arrives once, after what it waits for; aborts hit only requests under way."""
    walk, running, finished, arrived = WorkloadDriver(workload), {}, {}, []
    plans = {request.rid: request for request in workload.requests}
    for step in range(300):
        due = walk.due(step, finished)
        for arrival in due.arrivals:
            plan = plans[arrival.rid]
            for other in workload.after[plan.group]:
                assert all(r.rid in finished for r in workload.requests if r.group == other)
            if plan.continues is not None:
                assert plan.continues in finished
            arrived.append(arrival.rid)
            running[arrival.rid] = data.draw(st.integers(1, 8), label=arrival.rid)
        for rid in due.aborts:
            del running[rid]  # KeyError: it had not arrived, or had finished
            finished[rid] = []
        if walk.exhausted and not running:
            break
        for rid in list(running):
            running[rid] -= 1
            if not running[rid]:
                del running[rid]
                finished[rid] = [7]
    assert sorted(arrived) == sorted(plans)
    assert set(finished) == set(plans)
