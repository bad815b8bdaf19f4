"""The scheduler: who is admitted, in which chunks, who makes room, and that all get their own tokens."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.errors import EngineError
from specdebug.engine.textbook.request import Request, Status
from tests.engine.machine import Machine, output_of
from tests.engine.parts import make_config

# --- prefill ---


def test_prompts_are_prefilled_together_first_come_first_served() -> None:
    machine = Machine()
    for length in (5, 3, 7):
        machine.add([length] * length)
    assert machine.step() == ("prefill", ("r1", 5), ("r2", 3), ("r3", 7))
    assert machine.step() == ("decode", (), ("r1", "r2", "r3"))
    machine.add([9, 9])
    assert machine.step() == ("prefill", ("r4", 2)), "prefill goes before decode"
    machine.run()
    assert all(r.output_ids == output_of(r.prompt_ids, 4) for r in machine.requests)


def test_chunks_share_the_budget_and_only_the_last_of_a_batch_is_cut() -> None:
    machine = Machine(chunked_prefill_size=4)
    machine.add([1] * 10)
    machine.add([2] * 3)
    machine.add([3] * 3)
    steps = [machine.step() for _ in range(5)]
    assert steps == [
        ("prefill", ("r1", 4)),
        ("prefill", ("r1", 4)),
        ("prefill", ("r1", 2), ("r2", 2)),
        ("prefill", ("r2", 1), ("r3", 3)),
        ("decode", (), ("r1", "r2", "r3")),
    ]
    assert [machine.requests[0].status, machine.requests[1].status] == [Status.RUNNING] * 2


# --- retraction ---


def _crowded(**options: Any) -> tuple[Machine, list[Request]]:
    """Three requests in 24 slots: 5 + 4 + 3 tokens and two slots each leave six to grow into, two steps."""
    machine = Machine(**{"num_slots": 24, "radix_cache": False, **options})
    requests = [machine.add([5 - n] * (5 - n), new=9) for n in range(3)]
    assert machine.step()[0] == "prefill"
    return machine, requests


def test_the_latest_is_retracted_first_and_waits_until_somebody_finishes() -> None:
    machine, (first, second, third) = _crowded()
    steps = [machine.step() for _ in range(4)]
    assert [step[1] for step in steps] == [(), (), (), (third.rid,)]
    assert (third.status, third.row, third.retractions) == (Status.WAITING, 0, 1)
    kept = list(third.output_ids)
    assert len(kept) == 4
    late = machine.add([7])
    order = []
    while not first.finished:
        order.append(machine.step())
        assert {third.status, late.status} == {Status.WAITING}
    assert all(step[0] == "decode" for step in order)
    assert machine.step()[0] == "prefill"
    assert third.status is Status.RUNNING
    machine.run()
    for request in (first, second, third):
        assert request.output_ids == output_of(request.prompt_ids, 9)
    assert third.output_ids[:4] == kept


def test_a_half_prefilled_request_is_the_first_to_go() -> None:
    """Slots run out while a long prompt is between chunks; the last chunk can no longer grow."""
    machine = Machine(num_slots=32, radix_cache=False, chunked_prefill_size=8)
    runner = machine.add([1] * 4, new=20)
    machine.step()
    long = machine.add([2] * 20)
    assert machine.step() == ("prefill", ("r2", 8))
    taken = machine.parts.memory.alloc(machine.parts.num_free - 1)
    assert taken is not None
    assert machine.scheduler.next_prefill() == []
    assert machine.scheduler.prepare_decode() == [long]
    assert long.status is Status.WAITING
    assert machine.scheduler.running == [runner]
    machine.parts.memory.free(taken)
    assert machine.step()[0] == "decode", "there is room again, but nobody has finished"
    while not runner.finished:
        machine.step()
    assert machine.step() == ("prefill", ("r2", 8))


def test_one_request_that_outgrows_the_pool_alone_is_an_error() -> None:
    machine = Machine(num_slots=10, radix_cache=False)
    machine.add([1] * 6, new=20)
    with pytest.raises(EngineError, match=r"'r1' alone does not fit in 10 KV slots; raise memory\.num_slots"):
        machine.run()


# --- abort ---


def test_abort_in_every_status_gives_everything_back() -> None:
    machine = Machine(chunked_prefill_size=4, max_running_requests=2)
    running = machine.add([1] * 4)
    machine.step()
    prefilling, waiting = machine.add([2] * 9), machine.add([3] * 2)
    machine.step()
    assert [r.status for r in (running, prefilling, waiting)] == [Status.RUNNING, Status.PREFILLING, Status.WAITING]
    for request in (prefilling, waiting, running):
        machine.abort(request)
        assert request.finished
        assert (request.row, request.kv_allocated) == (0, 0)
    assert not machine.scheduler.has_work
    machine.parts.cache.flush()
    assert machine.parts.num_free == machine.config.usable_slots
    assert machine.parts.req_to_token.num_free_rows == 2
    assert machine.step() == ("idle",)


def test_one_that_is_put_back_gives_its_place_to_one_that_goes_ahead() -> None:
    machine = Machine(max_running_requests=1, num_slots=64)
    long, waiting = machine.add([5] * 5, new=12), machine.add([6], new=2)
    for _ in range(3):
        machine.step()
    kept = len(long.output_ids)
    short = machine.add([7], new=1, ahead=True)
    machine.put_back(long)
    assert list(machine.scheduler.waiting) == [short, waiting, long]
    assert machine.step() == ("prefill", (short.rid, 1))
    assert (long.retractions, len(long.output_ids)) == (1, kept)
    machine.run()
    assert all(each.output_ids == output_of(each.prompt_ids, each.sampling.max_new_tokens) for each in machine.requests)
    assert ("prefill", (long.rid, 1)) in machine.log, "only its newest token had no KV"


def test_one_that_is_put_back_ends_the_hold() -> None:
    machine, (first, _, third) = _crowded()
    while third.retractions == 0:
        machine.step()
    short = machine.add([7], new=1, ahead=True)
    machine.put_back(first)
    assert machine.step()[1] == (short.rid, 1)


# --- anything goes ---

ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 12),  # step
        st.lists(st.integers(1, 2), min_size=1, max_size=14),  # prompt
        st.integers(1, 8),  # max_new_tokens
        st.booleans(),  # speculative
        st.one_of(st.none(), st.none(), st.integers(0, 20)),  # step of its abort
        st.one_of(st.none(), st.none(), st.integers(0, 20)),  # step in which it is put back
    ),
    min_size=1,
    max_size=7,
)


def _play(arrivals: list[tuple[int, list[int], int, bool, int | None, int | None]], options: dict[str, Any]) -> Machine:
    machine, step = Machine(**options), 0
    due = [(at, number) for number, (at, *_) in enumerate(arrivals)]
    started: dict[int, Request] = {}
    while due or machine.scheduler.has_work:
        for _, number in sorted(item for item in due if item[0] <= step):
            _, prompt, new, speculative, *_ = arrivals[number]
            spec = speculative and machine.config.speculative is not None
            started[number] = machine.add(prompt, new=new, speculative=spec)
        due = [item for item in due if item[0] > step]
        for number, request in started.items():
            if arrivals[number][4] == step:
                machine.abort(request)
            if arrivals[number][5] == step:
                machine.put_back(request)
        idle = machine.step() == ("idle",)
        assert not idle or not machine.scheduler.has_work, "stuck"
        step += 1
        assert step < 600, "does not end"
    return machine


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"num_steps": 2},
        {"num_steps": 2, "eagle_topk": 2, "num_draft_tokens": 4},
        {"num_steps": 2, "worker": "v1"},
        {"num_steps": 2, "eagle_topk": 2, "num_draft_tokens": 4, "worker": "v1"},
    ],
)
@given(
    arrivals=ARRIVALS,
    chunk=st.sampled_from([None, 3, 8]),
    slack=st.integers(0, 24),
    cache=st.booleans(),
    running=st.integers(1, 4),
)
@settings(max_examples=15)
def test_every_request_ends_with_its_own_tokens_however_tight_memory_is(
    page_size: int,
    spec: dict[str, Any] | None,
    arrivals: list[Any],
    chunk: int | None,
    slack: int,
    cache: bool,
    running: int,
) -> None:
    """The pool just holds one request of the longest kind; laws and KV are checked after every step."""
    options = {
        "page_size": page_size,
        "context_length": 22,
        "chunked_prefill_size": chunk,
        "radix_cache": cache,
        "max_running_requests": running,
        "speculative": spec,
    }
    options["num_slots"] = 22 + make_config(**options, num_slots=500).row_headroom + slack
    machine = _play(arrivals, options)
    aborted = {number for number, arrival in enumerate(arrivals) if arrival[4] is not None}
    by_rid = sorted(range(len(arrivals)), key=lambda number: (arrivals[number][0], number))
    for request, number in zip(machine.requests, by_rid, strict=True):
        whole = output_of(request.prompt_ids, request.sampling.max_new_tokens)
        assert request.finished
        assert request.output_ids == whole[: len(request.output_ids)]
        assert number in aborted or request.output_ids == whole
    machine.parts.cache.flush()
    assert machine.parts.num_free == machine.config.usable_slots
    assert machine.parts.req_to_token.num_free_rows == running


@given(arrivals=ARRIVALS, chunk=st.sampled_from([None, 3, 8]))
@settings(max_examples=15)
def test_with_memory_to_spare_first_tokens_come_in_order_of_arrival_and_nobody_is_retracted(
    arrivals: list[Any], chunk: int | None
) -> None:
    calm = [(*arrival[:4], None, None) for arrival in arrivals]
    machine = _play(calm, {"num_slots": 600, "chunked_prefill_size": chunk, "context_length": 22})
    finals: list[str] = []
    total = {r.rid: len(r.prompt_ids) for r in machine.requests}
    for did in machine.log:
        if did[0] == "prefill":
            assert chunk is None or sum(length for _, length in did[1:]) <= chunk
            finals += [rid for rid, _ in did[1:]]
        assert did[0] != "decode" or did[1] == ()
    order = sorted(finals, key=lambda rid: int(rid[1:]))
    assert finals == order
    assert set(finals) == set(total)
