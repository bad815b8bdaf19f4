"""Lives of real engines, sound and sabotaged: what was planted is reported, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from benchmarks.soak import draw, life
from benchmarks.soak.tally import WorkerTally
from specdebug import async_probe
from specdebug.base.random_streams import stream
from specdebug.engine.memory.arena import GuardViolation
from specdebug.faults.injector import Injector
from specdebug.faults.model import Fault
from specdebug.targets.embedded import TARGET, build_engine
from tests.run.fakes import ListSink

SEED = 0


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> Iterator[None]:
    life.prepare(None)
    yield
    TARGET.cool()
    async_probe.configure("off")


def told(steps: int, *, engine: int | None, build: life.Build = build_engine) -> tuple[WorkerTally, ListSink]:
    """What a worker tells of so many decode steps."""
    sink, tally = ListSink(), WorkerTally(0)
    life.run({"seed": SEED, "worker": 0, "steps": steps, "engine": engine}, sink, build)
    for event in sink.events:
        tally.fold(event)
    return tally, sink


def sabotaged(harm: Callable[[Any], None]) -> life.Build:
    """Engines that are built and then harmed."""

    def build(options: Mapping[str, Any], seed: int) -> Any:
        engine = build_engine(options, seed)
        harm(engine)
        return engine

    return build


def test_a_sound_engine_serves_and_nothing_is_said() -> None:
    tally, sink = told(1, engine=2)
    assert tally.done
    assert tally.alarms == []
    assert tally.counts["decode"] > 5
    assert tally.counts["requests"] >= 3
    assert len(tally.reached) > 30
    assert [event["event"] for event in sink.events] == ["begin", "workload", "coverage", "done"]


@pytest.mark.slow
def test_a_nan_in_the_cache_is_an_alarm_with_its_step_in_the_workload() -> None:
    injected: list[int] = []
    ended: list[int] = []

    class Sink:
        def emit(self, event: str, **fields: Any) -> None:
            injected.append(fields["step"])

    def harm(engine: Any) -> None:
        """From the second workload on."""
        injector = Injector([Fault("nan_kv_in_use")], SEED, Sink(), stream)
        injector.attach(engine)
        step, forget, made = engine.step, engine.forget_finished, iter(range(1, 10_000))
        now = 0

        def damaged() -> Any:
            nonlocal now
            now = next(made)
            if ended:
                injector.before_step(now)
            report = step()
            if ended:
                injector.after_step()
            return report

        def forgetting() -> None:
            ended.append(now)
            forget()

        engine.step, engine.forget_finished = damaged, forgetting

    tally, _ = told(1000, engine=2, build=sabotaged(harm))
    (alarm,) = tally.alarms
    assert alarm.scenario["name"] == "soak-0-2-1"
    assert alarm.first.kind == "nan"
    assert injected[0] <= ended[0] + (alarm.first.step or 0) <= injected[0] + 3


def test_a_wrong_token_is_an_alarm() -> None:
    assert told(1, engine=2)[0].alarms == []

    def harm(engine: Any) -> None:
        step = engine.step

        def wrong() -> Any:
            report = step()
            for request in engine.view.running:
                if request.sampling.greedy and len(request.output_ids) == 5:
                    request.output_ids[-1] ^= 1
            return report

        engine.step = wrong

    tally, _ = told(1, engine=2, build=sabotaged(harm))
    (alarm,) = tally.alarms
    # What is kept is not what was streamed, either.
    assert {violation.kind for violation in alarm.violations} == {"mismatch", "ends"}


def test_a_damaged_guard_is_an_alarm_and_its_engine_is_not_used_again() -> None:
    built = []

    def harm(engine: Any) -> None:
        built.append(engine)
        if len(built) == 1:
            damage = GuardViolation("draft.kv_indices", "draft.kv_indptr", 0, 4, 4)
            engine.check_guards = lambda: [damage]

    tally, sink = told(100, engine=None, build=sabotaged(harm))
    (alarm,) = tally.alarms
    assert (alarm.engine, alarm.first.signature) == (0, "guard@draft.kv_indices->draft.kv_indptr")
    assert tally.done, "the soak went on"
    served = [event["engine"] for event in sink.events if event["event"] == "begin"]
    assert served.count(0) == 1
    assert set(served) >= {0, 1}
    assert len(built) > life.ELDERS, "another engine took its place"


def test_slots_that_are_not_given_back_are_an_alarm() -> None:
    def harm(engine: Any) -> None:
        allocator = engine.view.memory.allocator
        free = allocator.free
        allocator.free = lambda slots: free(slots[allocator.page_size :])

    tally, _ = told(1, engine=2, build=sabotaged(harm))
    assert {alarm.first.kind for alarm in tally.alarms} == {"pools"}


@pytest.mark.slow
def test_a_worker_with_alarms_everywhere_stops() -> None:
    def harm(engine: Any) -> None:
        engine.check_pools = lambda: ["ownership: all wrong"]

        def step() -> Any:
            raise RuntimeError("planted")

        engine.step = step

    tally, _ = told(10_000, engine=None, build=sabotaged(harm))
    assert len(tally.alarms) == life.ENOUGH_ALARMS
    assert tally.done


@pytest.mark.slow
def test_the_command_of_an_alarm_serves_the_same_again() -> None:
    def harm(engine: Any) -> None:
        """It fails in the tenth step of its second workload."""
        step, forget, left = engine.step, engine.forget_finished, iter(range(10, 0, -1))
        ended = False

        def failing() -> Any:
            if ended and next(left) == 1:
                raise RuntimeError("planted")
            return step()

        def forgetting() -> None:
            nonlocal ended
            ended = True
            forget()

        engine.step, engine.forget_finished = failing, forgetting

    first, _ = told(1000, engine=2, build=sabotaged(harm))
    (alarm,) = first.alarms
    assert (alarm.scenario["name"], alarm.first.step) == ("soak-0-2-1", 10)
    again, _ = told(alarm.decoded + 1, engine=2, build=sabotaged(harm))
    (same,) = again.alarms
    assert (same.scenario, same.decoded, same.first) == (alarm.scenario, alarm.decoded, alarm.first)


def test_what_an_engine_still_holds_is_named() -> None:
    engine = build_engine(draw.engine(SEED, 0, 2), 0)
    view = engine.view
    assert life.left_behind(engine, flushed=True) == []
    view.cache.req_to_token.alloc_row()
    view.memory.alloc(view.config.page_size)
    rows, slots = life.left_behind(engine, flushed=True)
    assert rows == f"{view.config.max_running_requests - 1} of {view.config.max_running_requests} rows are free"
    assert slots.endswith("slots are free after a flush")
    assert life.left_behind(engine, flushed=False) == [rows]


def test_a_lock_that_nobody_holds_is_named() -> None:
    engine = build_engine(draw.engine(SEED, 0, 2), 0)
    radix = engine.view.cache.radix
    from specdebug.engine.memory.radix_cache import RadixKey

    page = radix.page_size
    added = radix.insert(RadixKey(list(range(page + 1)), 1), torch.arange(page, 2 * page), draft_written=True)
    radix.lock(added.node)
    assert f"{page} cached slots are locked, and nobody reads them" in life.left_behind(engine, flushed=False)


class Leaking:
    """Stands in for a life: forty steps a workload, and so many bytes that are never let go."""

    kept: list[bytearray]

    def __init__(self, leak: int) -> None:
        self.kept = []
        self.leak = leak
        self.decoded = 0

    def serve(self) -> bool:
        self.decoded += 40
        self.kept.append(bytearray(b"x" * self.leak))
        return True


@pytest.mark.slow
@pytest.mark.parametrize(("leak", "flat"), [(0, True), (2**20, False)])
def test_a_leak_is_seen_in_the_resident_memory(monkeypatch: pytest.MonkeyPatch, leak: int, flat: bool) -> None:
    """A MiB a workload, of which this process has some to spare before it asks the system for more."""
    lives = []

    def new(self: life.Worker, number: int) -> Leaking:
        lives.append(Leaking(leak))
        return lives[-1]

    monkeypatch.setattr(life.Worker, "_life", new)
    tally, _ = told(4000, engine=None)
    assert len(tally.rest) == 20
    assert tally.trend is not None
    assert tally.trend.flat is flat, tally.trend
