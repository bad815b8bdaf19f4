"""The lives of a soak's engines, inside a worker process that lives as long as the soak.

A worker keeps three engines for its whole life, one for each attention plan. In turn each serves a workload; then a new
engine is built, serves two, and goes. What is left is what the process needs at rest, and it should stay the same: its
resident memory is read there.

Engines are in their fixed state, with every probe recording and guard regions on, and are driven by the run loop of a
replay: after each step come guards, probes and the conservation laws of the pools. After each workload nothing may be
held any more.

Events: ``begin`` (a workload), ``violation`` as an arm emits it, ``workload`` (what it came to), ``rest``, ``coverage``
and ``done``.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.soak import draw
from specdebug import async_probe
from specdebug.base.corpus import heldout_text
from specdebug.run.dense import DenseReference, keep_weights
from specdebug.run.judge import Judge
from specdebug.run.loop import RunLoop, Stopped, WorkloadDriver
from specdebug.run.oracles.base import OracleSettings
from specdebug.run.session_run import violation_of
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.scenario.packs import activate
from specdebug.scenario.text import decoder, keep_tokenizer
from specdebug.scenario.workload import expand
from specdebug.targets.base import Asked
from specdebug.targets.embedded import TARGET, EmbeddedSession, build_engine
from specdebug.targets.laws import broken_laws
from specdebug.verdict.outcome import Tie, Violation
from specdebug.workers.system import rss_mb
from specdebug.workers.wire import Sink

ELDERS = len(draw.PLANS)
"""Engines that live as long as their worker."""
YOUNG_WORKLOADS = 2
"""How many workloads any other engine lives for; the second finds what the first left in the cache."""
ENOUGH_ALARMS = 10
"""Workloads with an alarm after which a worker stops: what is wrong then is wrong often."""

Build = Callable[[Mapping[str, Any], int], Any]


def prepare(_: None) -> None:
    """Called once, in the fork server: what every worker needs is loaded there."""
    # It remembers the words it has met, some MB of them; met here, they are no growth of a worker.
    keep_tokenizer(draw.TOKENIZER).encode(heldout_text(), add_special_tokens=False)
    for number in range(len(draw.WORKERS)):  # a block of engines: each worker has its turn
        options = draw.engine(0, 0, number)
        TARGET.warm(options)
        asked = TARGET.asked(options)
        keep_weights(asked.model, asked.draft_model, asked.algorithm)


def run(payload: Mapping[str, Any], sink: Sink, build: Build = build_engine) -> None:
    """Serve workloads until ``steps`` decode steps are made. ``payload`` also has ``seed`` and ``worker``, and
    ``engine``: the number of the only engine to serve, or None."""
    Worker(payload["seed"], payload["worker"], payload["steps"], sink, build).run(payload["engine"])


class Worker:
    """What one process does of a soak."""

    def __init__(self, seed: int, worker: int, steps: int, sink: Sink, build: Build) -> None:
        self._name = (seed, worker)
        self._steps = steps
        self._sink = sink
        self._build = build
        self._decoded = 0
        self._built = 0
        self._alarms = 0

    def run(self, only: int | None) -> None:
        activate(Library().packs(("default",)), "record")
        if only is None:
            self._serve_all()
        else:
            life = self._life(only)
            while self._goes_on and self._serve(life):
                pass
        self._tell_coverage()
        self._sink.emit("done")

    @property
    def _goes_on(self) -> bool:
        return self._decoded < self._steps and self._alarms < ENOUGH_ALARMS

    def _serve_all(self) -> None:
        elders = [self._next_life() for _ in range(ELDERS)]
        while self._goes_on:
            for place, elder in enumerate(elders):
                if self._goes_on and not self._serve(elder):
                    elders[place] = self._next_life()
            self._serve_young()
            resident = memory_at_rest()
            if resident:
                self._sink.emit("rest", steps=self._decoded, rss_mb=round(resident, 2))
            self._tell_coverage()

    def _tell_coverage(self) -> None:
        self._sink.emit("coverage", reached=sorted(async_probe.reached()))

    def _serve_young(self) -> None:
        young = self._next_life()
        for _ in range(YOUNG_WORKLOADS):
            if not (self._goes_on and self._serve(young)):
                return

    def _next_life(self) -> Life:
        self._built += 1
        return self._life(self._built - 1)

    def _life(self, number: int) -> Life:
        return Life(*self._name, number, self._sink, self._build)

    def _serve(self, life: Life) -> bool:
        """One workload; False when something was found, and the engine is not to be trusted any more."""
        decoded = life.decoded
        sound = life.serve()
        self._decoded += life.decoded - decoded
        self._alarms += not sound
        return sound


class Life:
    """One engine and the workloads it serves, each with a run loop and a judge of its own."""

    def __init__(self, seed: int, worker: int, number: int, sink: Sink, build: Build) -> None:
        self._name = (seed, worker, number)
        self._sink = sink
        options = draw.engine(*self._name)
        self._engine = build(options, seed)
        self._decode = decoder(keep_tokenizer(draw.TOKENIZER))
        self._served = 0
        self.decoded = 0
        """Decode steps so far."""

    def serve(self) -> bool:
        """The next workload. Whether it left everything as it should."""
        plain = draw.scenario(*self._name, self._served)
        self._sink.emit("begin", engine=self._name[2], decoded=self.decoded, scenario=plain)
        began = time.process_time()
        watch = Watch(self._sink)
        self._run(Scenario.from_dict(plain), watch)
        if not watch.alarms:
            self._look_back(watch, flush=self._served % 2 == 1)
        self._served += 1
        self.decoded += watch.counts["decode"]
        self._sink.emit("workload", seconds=round(time.process_time() - began, 4), counts=dict(watch.counts))
        return not watch.alarms

    def _run(self, scenario: Scenario, watch: Watch) -> None:
        workload = expand(scenario, keep_tokenizer(draw.TOKENIZER), scenario.seed)
        asked = TARGET.asked(draw.engine(*self._name))
        session = EmbeddedSession(self._engine, asked)
        judge = self._judge(scenario, session, asked, watch)
        session.observers.add(judge)
        loop = RunLoop(
            session,
            WorkloadDriver(workload),
            watch,
            judge,
            max_steps=scenario.limits.max_steps,
            decode=self._decode,
        )
        try:
            loop.run()
        except Stopped:
            return  # why has been reported
        finally:
            session.observers.remove(judge)  # or its reference would stay in memory

    def _judge(self, scenario: Scenario, session: EmbeddedSession, asked: Asked, watch: Watch) -> Judge:
        settings = OracleSettings(scenario.oracles, asked, probes=True)
        return Judge(
            settings,
            session,
            None if settings.reference is None else DenseReference(*settings.reference),
            report=lambda violation: watch.emit("violation", **asdict(violation)),
            tie=watch.tie,
            decode=self._decode,
        )

    def _look_back(self, watch: Watch, *, flush: bool) -> None:
        """Look for what the workload left behind, with ``flush`` without its cached prefixes, and forget it."""
        try:
            self._engine.forget_finished()
            if flush:
                self._engine.flush_cache()
            problems = [*broken_laws(self._engine), *left_behind(self._engine, flushed=flush)]
        except Exception as error:
            watch.emit("violation", **asdict(violation_of(error, watch.step)))
            return
        for problem in problems:
            watch.emit("violation", **asdict(Violation("pools", "left-behind", watch.step, problem)))


def left_behind(engine: Any, *, flushed: bool) -> list[str]:
    """What an engine without work still holds, a line each. Prefixes may be cached unless they were ``flushed``."""
    view = engine.view
    allocator, radix, table = view.memory.allocator, view.cache.radix, view.cache.req_to_token
    problems = []
    if engine.has_work or engine.requests:
        problems.append(f"requests that have not ended: {', '.join(engine.requests)}")
    if table.num_free_rows != engine.config.max_running_requests:
        problems.append(f"{table.num_free_rows} of {engine.config.max_running_requests} rows are free")
    if radix.protected_size:
        problems.append(f"{radix.protected_size} cached slots are locked, and nobody reads them")
    if flushed and allocator.num_free != allocator.num_slots:
        problems.append(f"{allocator.num_free} of {allocator.num_slots} slots are free after a flush")
    return problems


def memory_at_rest() -> float:
    """MB resident once garbage is collected, and the allocator, where it is glibc's, has been asked to return what it
    keeps free; 0 where the system does not tell.

    Pools of a gone engine leave holes between what other engines hold. Unasked, glibc keeps them: resident memory then
    climbs from one highest mark to the next, which says nothing of leaks, and a small one would not be seen on it.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return rss_mb(os.getpid())


class Watch:
    """The sink of one workload's run loop: counts what is ordinary, passes on what is not."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.step = 0
        self.counts = Counter[str]()
        self.alarms = 0

    def emit(self, event: str, **fields: Any) -> None:
        """Take an event of a run loop."""
        if event == "step":
            self.step = fields["step"]
            self.counts[fields["kind"]] += 1
            self.counts["retracted"] += len(fields["retracted"])
            self.counts["cached tokens"] += sum(fields["cached"].values())
            self.counts["tokens"] += sum(map(len, fields["emitted"].values()))
        elif event == "request":
            self.counts["requests"] += 1
            self.counts[fields["finish_reason"]] += 1
        elif event == "violation":
            self.alarms += 1
            if fields["kind"] in async_probe.KINDS:  # a probe knows the engine's own step, not the workload's
                fields["step"] = self.step + 1
            self._sink.emit(event, **fields)

    def tie(self, rid: str, tie: Tie) -> None:
        """A near-tie is no alarm."""
        self.counts["near-ties"] += 1
