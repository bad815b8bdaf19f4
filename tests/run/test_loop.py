"""The run loop over a stand-in engine: what it reports, in which order, and how a run stops."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdebug import async_probe
from specdebug.base.abilities import SHOWN
from specdebug.engine.errors import IllegalAddress, PlanAssertion, RequestRejected
from specdebug.events import AllServed, Event, Stepped
from specdebug.run.judge import Judge
from specdebug.run.loop import RunLoop, Stopped, WorkloadDriver
from specdebug.run.session_run import violation_of
from specdebug.scenario.workload import RequestSampling, Workload, WorkloadRequest
from tests.run.fakes import FakeEngine, FakeReference, FakeSession, ListSink, oracle_settings


@pytest.fixture(autouse=True)
def _probes_as_before() -> Iterator[None]:
    yield
    async_probe.configure("off")


def planned(rid: str, *, delay: int = 0, tokens: int = 4, abort_after: int | None = None) -> WorkloadRequest:
    group = rid.split(".")[0]
    sampling = RequestSampling(tokens)
    return WorkloadRequest(rid, group, (1, 2, 3, 4), sampling, delay=delay, abort_after=abort_after)


def loop_of(
    engine: FakeEngine, *requests: WorkloadRequest, max_steps: int = 1000, vocab: int = 50
) -> tuple[RunLoop, ListSink, Judge]:
    sink, session = ListSink(), FakeSession(engine, vocab)
    judge = Judge(
        oracle_settings(guards=True, probes=True, ends=False),  # the stand-in's accept lengths are made up
        session,
        FakeReference(),
        report=lambda violation: loop.report(violation),
        tie=lambda rid, tie: None,
        decode=lambda ids: "".join(map(str, ids)),
    )
    session.observers.add(judge)
    loop = RunLoop(
        session,
        WorkloadDriver(Workload(requests)),
        sink,
        judge,
        max_steps=max_steps,
        decode=lambda ids: "".join(map(str, ids)),
    )
    return loop, sink, judge


def signatures(sink: ListSink) -> list[str]:
    return [f"{event['kind']}@{event['site']}" for event in sink.of("violation")]


def test_a_whole_run_is_told_step_by_step() -> None:
    loop, sink, _ = loop_of(FakeEngine(), planned("a.0"), planned("b.0", delay=2))
    loop.run()
    assert [event["event"] for event in sink.events[:2]] == ["arrive", "step"]
    steps = sink.of("step")
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [step["rids"] for step in steps[1:4]] == [("a.0",), ("a.0", "b.0"), ("a.0", "b.0")]
    assert [token for step in steps for token in step["emitted"].get("a.0", [])] == [5, 6, 7, 8]
    assert sink.of("request")[0] == {
        "event": "request",
        "rid": "a.0",
        "finish_reason": "length",
        "text": "5678",
    }
    assert signatures(sink) == []


def test_the_cache_is_flushed_before_a_request_that_wants_that() -> None:
    engine = FakeEngine()
    flushed = replace(planned("b.0"), flush=True)
    loop, _, _ = loop_of(engine, planned("a.0"), flushed)
    loop.run()
    assert engine.flushed == 1
    assert (engine.requests["a.0"].cached_tokens, engine.requests["b.0"].cached_tokens) == (0, 0)


def test_an_abort_ends_a_request_with_what_it_had() -> None:
    loop, sink, _ = loop_of(FakeEngine(), planned("a.0", tokens=30, abort_after=2), planned("b.0"))
    loop.run()
    ended = {event["rid"]: event for event in sink.of("request")}
    assert (ended["a.0"]["finish_reason"], ended["a.0"]["text"]) == ("abort", "56")
    assert ended["b.0"]["finish_reason"] == "length"


def test_guards_probes_and_pools_are_read_after_each_step() -> None:
    engine = FakeEngine()

    class Guard(SimpleNamespace):
        def __str__(self) -> str:
            return "a overran by at least 8 bytes into b"

    def break_things(step: int) -> None:
        if step == 2:
            async_probe.maybe_detect_nan(torch.tensor([0.0, float("nan")]), "draft.logits")
            engine.guards = [Guard(buffer="a", victim="b", arena={"size": 9})]
            engine.pool_problems = ["ownership: slot 7 has 2 owners"]

    async_probe.configure("record")
    engine.before_step = break_things
    loop, sink, _ = loop_of(engine, planned("a.0"))
    loop.run()
    assert signatures(sink)[:3] == ["guard@a->b", "nan@draft.logits", "pools@ownership"]
    first = sink.of("violation")[:3]
    assert [event["step"] for event in first] == [2, 2, 2]
    assert first[0]["data"] == {"arena": {"size": 9}}
    assert first[1]["data"]["index"] == 1
    assert first[2]["detail"] == "slot 7 has 2 owners"


def test_an_exception_stops_the_run_after_what_the_step_had_recorded() -> None:
    engine = FakeEngine()

    def fail(step: int) -> None:
        if step == 3:
            async_probe.maybe_detect_oob(torch.tensor([-1]), 0, 9, "verify.input_ids")
            raise IllegalAddress("kernels.kv_indices", "row 4 of 4")

    async_probe.configure("record")
    engine.before_step = fail
    loop, sink, _ = loop_of(engine, planned("a.0"))
    with pytest.raises(Stopped):
        loop.run()
    assert signatures(sink) == ["oob@verify.input_ids", "illegal-address@kernels.kv_indices"]
    assert len(sink.of("step")) == 2


def test_a_run_without_end_is_stopped_and_says_so() -> None:
    loop, sink, _ = loop_of(FakeEngine(), planned("a.0", tokens=10_000), max_steps=20, vocab=10**6)
    with pytest.raises(Stopped):
        loop.run()
    assert sink.of("violation") == []
    assert [event["steps"] for event in sink.of("overrun")] == [20]


def test_an_engine_that_does_nothing_is_a_hang() -> None:
    engine = FakeEngine()
    engine.stuck = True
    loop, sink, _ = loop_of(engine, planned("a.0"))
    with pytest.raises(Stopped):
        loop.run()
    assert "did nothing for 64 steps" in sink.of("violation")[0]["detail"]


def test_a_token_outside_the_vocabulary_is_seen_whatever_the_sampling() -> None:
    loop, sink, _ = loop_of(FakeEngine(), planned("a.0"), vocab=7)
    loop.run()
    assert signatures(sink) == ["oob@request.output_ids"] * 2


def test_serving_cold_uses_an_empty_cache_and_leaves_no_trace() -> None:
    engine = FakeEngine()
    loop, sink, judge = loop_of(engine, planned("a.0"), planned("a.1", delay=6))
    loop.run()
    assert engine.requests["a.1"].accept_lengths == [1, 1, 1]
    judge.active = False
    before = len(sink.events)
    assert loop.serve_cold("a.1").accept_lengths == [2, 2, 2]
    assert engine.flushed == 1
    told = [event for event in sink.events[before:] if event != {"event": "alive"}]
    assert told == [{"event": "cold", "rid": "a.1", "accept_lengths": [2, 2, 2]}]
    assert len(told) < len(sink.events[before:]), "what takes its time says that it goes on"


def test_a_rejected_request_is_the_scenario_s_fault_and_a_broken_abort_the_engine_s() -> None:
    class Picky(FakeEngine):
        def add_request(self, rid: str, *args: Any, **options: Any) -> Any:
            if rid == "b.0":
                raise RequestRejected(rid, "is too long")
            return super().add_request(rid, *args, **options)

        def abort(self, rid: str) -> None:
            raise IllegalAddress("kernels.free", "x")

    loop, sink, _ = loop_of(Picky(), planned("a.0"), planned("b.0", delay=1))
    with pytest.raises(RequestRejected):
        loop.run()
    loop, sink, _ = loop_of(Picky(), planned("a.0", tokens=30, abort_after=2))
    with pytest.raises(Stopped):
        loop.run()
    assert signatures(sink) == ["illegal-address@kernels.free"]


def test_the_last_steps_failures_are_waited_for() -> None:
    loop, sink, _ = loop_of(FakeEngine(), planned("a.0"))
    loop.run()
    loop.settle()
    assert sink.of("violation") == []

    def fault() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    loop.session.waits = fault  # type: ignore[attr-defined]
    with pytest.raises(Stopped):
        loop.settle()
    assert signatures(sink) == ["illegal-address@engine"]
    assert sink.of("violation")[0]["step"] == 4
    assert loop.lost


def test_findings_that_have_not_arrived_by_the_end_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    late = async_probe.ProbeFinding("draft.logits", "nan", 4, 0, float("nan"), 1)
    monkeypatch.setattr(async_probe, "poll", list)
    monkeypatch.setattr(async_probe, "drain", lambda: [late])
    loop, sink, _ = loop_of(FakeEngine(), planned("a.0"))
    loop.session.waits = lambda: None  # type: ignore[attr-defined]
    loop.run()
    assert sink.of("violation") == []
    loop.settle()
    assert [(event["site"], event["step"]) for event in sink.of("violation")] == [("draft.logits", 4)]


def test_an_oracle_that_finds_the_device_gone_does_not_take_the_blame() -> None:
    class Gone(FakeEngine):
        def draft_kv(self, request: Any, start: int, stop: int) -> Any:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    loop, sink, _ = loop_of(Gone(), planned("a.0"))
    with pytest.raises(Stopped):
        loop.run()
    assert signatures(sink) == ["assert@engine"]


def look_on(judge: Judge, kind: type[Event], on: Callable[[Event], None]) -> None:
    """Have one more oracle hear of these events."""
    looking: Any = SimpleNamespace(hears=(kind,), on=on)
    judge.oracles.append(looking)
    judge.hears.add(kind)


@pytest.mark.parametrize(("when", "step"), [(Stepped, 1), (AllServed, 4), (None, 2)])
def test_a_device_that_is_found_lost_between_steps_ends_the_run_like_one_in_a_step(
    monkeypatch: pytest.MonkeyPatch, when: type[Event] | None, step: int
) -> None:
    def fault(_: object) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    seen = async_probe.ProbeFinding("draft.input_ids", "oob", 1, 0, 9, 1)
    monkeypatch.setattr(async_probe, "salvage", lambda: [seen])
    engine = FakeEngine()
    loop, sink, judge = loop_of(engine, planned("a.0", tokens=4, abort_after=2 if when is None else None))
    if when is None:
        monkeypatch.setattr(engine, "abort", fault)
    else:
        look_on(judge, when, fault)
    with pytest.raises(Stopped):
        loop.run()
    assert signatures(sink) == ["oob@draft.input_ids", "assert@engine"]
    assert [event["step"] for event in sink.of("violation")] == [1, step]
    assert loop.lost


def test_what_had_reached_the_host_comes_before_the_fault_that_lost_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(FakeEngine):
        def damage_seen(self) -> list[Any]:
            return [SimpleNamespace(buffer="draft.kv_indices", victim="draft.kv_indptr", arena={})]

        def check_guards(self) -> list[Any]:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    seen = async_probe.ProbeFinding("draft.plan.kv_indptr", "oob", 1, 0, 9, 1)
    monkeypatch.setattr(async_probe, "salvage", lambda: [seen])
    loop, sink, _ = loop_of(Lost(), planned("a.0"))
    with pytest.raises(Stopped):
        loop.run()
    assert signatures(sink) == [
        "guard@draft.kv_indices->draft.kv_indptr",
        "oob@draft.plan.kv_indptr",
        "illegal-address@engine",
    ]


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "signature"),
    [
        (PlanAssertion("attention.draft.plan", "too narrow"), "assert@attention.draft.plan"),
        (IllegalAddress("kernels.move", "x"), "illegal-address@kernels.move"),
        (IndexError("index 9 is out of bounds for dimension 0 with size 4"), "illegal-address@engine"),
        (RuntimeError("index 9 is out of bounds for dimension 0 with size 4"), "illegal-address@engine"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "oom"),
        (MemoryError(), "oom"),
        (AssertionError("no"), "assert@engine"),
        (ValueError("no"), "error@engine"),
        (RuntimeError("boom async probe nan@sampler.probs: x"), "nan@sampler.probs"),
    ],
)
def test_exceptions_have_signatures(error: Exception, signature: str) -> None:
    violation = violation_of(raised(error), 4)
    assert (violation.signature, violation.step) == (signature, 4)


def test_of_an_error_in_what_all_stages_share_it_is_told_who_called() -> None:
    from specdebug.engine.textbook.attention.planner import assert_fits
    from specdebug.engine.textbook.speculative.tree import TreeBuilder

    class TooWide:
        @property
        def draft_tokens(self) -> None:
            assert_fits(3, 2, "attention.draft.plan", "a row")

    candidates: Any = TooWide()
    with pytest.raises(PlanAssertion) as caught:
        TreeBuilder(topk=1, tree_size=2, device=torch.device("cpu")).build(candidates, torch.zeros(1), torch.zeros(1))
    violation = violation_of(caught.value, 1)
    assert violation.data == {"caller": "speculative.tree.TreeBuilder.build"}
    assert violation.detail.endswith("; called by speculative.tree.TreeBuilder.build")


def test_the_place_of_an_error_is_the_innermost_engine_function() -> None:
    from specdebug.engine.memory.arena import ArenaLayout

    layout = ArenaLayout(guards=False)
    layout.add("a", (1,), torch.int32)
    with pytest.raises(ValueError) as caught:
        layout.add("a", (1,), torch.int32)
    assert violation_of(caught.value, 1).signature == "error@memory.arena.ArenaLayout.add"
    assert not violation_of(caught.value, 1).data
    outside: Any = raised(KeyError("x"))
    assert violation_of(outside, 1).detail == "KeyError: 'x'"


class ByCompletion(FakeSession):
    """Serves whole requests: its abilities have no steps."""

    shows = frozenset(SHOWN) - {"steps"}

    def advance(self) -> Any:
        report = self.inside.step()
        emitted = {rid: list(tokens) for rid, tokens in report.emitted.items()}
        while not report.finished:
            report = self.inside.step()
            for rid, tokens in report.emitted.items():
                emitted.setdefault(rid, []).extend(tokens)
        return replace(report, emitted=emitted)


def test_without_steps_a_delay_counts_completed_requests_and_an_idle_session_is_not_waited_on() -> None:
    engine = FakeEngine()
    sink, session = ListSink(), ByCompletion(engine)
    judge = Judge(
        oracle_settings(lossless=False, draft_kv=False, pools=False), session, None, print, lambda rid, tie: None, str
    )
    requests = (planned("a.0"), planned("b.0", delay=1), planned("c.0", delay=700), planned("d.0", delay=2))
    driver = WorkloadDriver(Workload(requests))
    RunLoop(session, driver, sink, judge, max_steps=50, decode=str).run()
    order = [(event["event"], event.get("rid")) for event in sink.events if event["event"] in ("arrive", "request")]
    assert order == [
        *(("arrive", "a.0"), ("request", "a.0"), ("arrive", "b.0"), ("request", "b.0")),
        *(("arrive", "d.0"), ("request", "d.0"), ("arrive", "c.0"), ("request", "c.0")),
    ]
    assert len(sink.of("step")) == 4


def asked_for(rid, **facts):
    return WorkloadRequest(rid, rid.split(".")[0], (1, 2), RequestSampling(4), **facts)


def driver(*requests, after=None):
    return WorkloadDriver(Workload(tuple(requests), after or {}))


def arrivals(due):
    return [arrival.rid for arrival in due.arrivals]


def test_a_group_waits_for_all_of_another_and_counts_its_delay_from_there():
    walk = driver(asked_for("a.0"), asked_for("a.1"), asked_for("b.0", delay=1), after={"b": ("a",)})
    assert arrivals(walk.due(0, {})) == ["a.0", "a.1"]
    assert arrivals(walk.due(5, {"a.0": [7]})) == []
    done = {"a.0": [7], "a.1": [8]}
    assert arrivals(walk.due(6, done)) == []
    assert arrivals(walk.due(7, done)) == ["b.0"]


def test_a_round_gets_the_whole_history_as_soon_as_the_last_one_finished():
    walk = driver(
        asked_for("t.0.0"),
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
    walk = driver(asked_for("a.0", delay=2, abort_after=3))
    assert walk.due(2, {}).aborts == ()
    assert walk.due(4, {}).aborts == ()
    assert not walk.exhausted
    assert walk.due(5, {}).aborts == ("a.0",)
    assert walk.exhausted
    assert walk.due(6, {}).aborts == ()


def test_steps_do_not_go_back():
    walk = driver(asked_for("a.0", delay=9))
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
            requests.append(asked_for(rid, delay=delay, abort_after=abort, continues=continues))
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
