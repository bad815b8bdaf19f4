"""Stand-ins for the engine, the reference model and the worker pool."""

import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from specdebug.events import Finishing, Observers, Prefilled, Stepped
from specdebug.report.parts import Report
from specdebug.report.terminal import console, drawn
from specdebug.run.oracles.base import OracleSettings
from specdebug.scenario.grammar import OracleSpec
from specdebug.scenario.workload import Workload
from specdebug.targets.base import Asked
from specdebug.targets.embedded import EmbeddedSession
from specdebug.targets.laws import WATCHED
from specdebug.workers.job import WorkerEnd


def oracle_settings(
    *,
    probes: bool = False,
    dtype: str = "float32",
    drafts: bool = True,
    zero_fill: bool = False,
    guards: bool = False,
    graphs: tuple[int, ...] = (),
    **spec: Any,
) -> OracleSettings:
    """What oracles are asked, by words of the scenario's ``oracles:`` and of what the arm asks of its target. The
    stand-ins below store no drafts, decide by nothing and have no odds, so oracles of those are off."""
    made = {"drafts": drafts, "draft_model": "draft", "zero_fill": zero_fill, "guards": guards, "graphs": graphs}
    target = Asked("tiny", dtype=dtype, **made)
    return OracleSettings(
        OracleSpec(**{"draft_state": False, "acceptance": False, "sampling": False, **spec}), target, probes
    )


@dataclass
class FakeRequest:
    rid: str
    prompt_ids: list[int]
    sampling: Any
    speculative: bool = True
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    cached_tokens: int = 0
    hit_len: int = 0
    accept_lengths: list[int] = field(default_factory=list)
    kv_len: int = 0

    @property
    def all_ids(self) -> list[int]:
        return self.prompt_ids + self.output_ids


class FakeReference:
    """Says that every token is its predecessor plus one; draft KV of position p is p everywhere."""

    margin = 5.0
    chained = False

    def judge(self, ids: Sequence[int], start: int) -> tuple[list[int], list[float], list[float]]:
        choices = [ids[position - 1] + 1 for position in range(start, len(ids))]
        gaps = [0.0 if c == g else self.margin for c, g in zip(choices, ids[start:], strict=True)]
        return choices, gaps, [10.0] * len(choices)

    def draft_kv(
        self, ids: Sequence[int], stop: int, zeroed: torch.Tensor | None = None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [self.target_kv(ids, stop)]

    def target_kv(self, ids: Sequence[int], stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        k = torch.arange(1, stop + 1, dtype=torch.float32)[:, None, None].expand(stop, 2, 4).clone()
        return k, -k


class FakeEngine:
    """Prefills in one step, then gives every request one token (its predecessor plus one) a step."""

    def __init__(self) -> None:
        self.requests: dict[str, FakeRequest] = {}
        self.observers = Observers()
        self.steps = 0
        self.live: list[str] = []
        self.before_step: Callable[[int], None] = lambda step: None
        self.guards: list[Any] = []
        self.pool_problems: list[str] = []
        WATCHED[self] = SimpleNamespace(check=lambda _: self.pool_problems)
        self.flushed = 0
        self.cache_warm = False
        self.stuck = False

    @property
    def has_work(self) -> bool:
        return bool(self.live)

    def add_request(self, rid: str, prompt_ids: list[int], sampling: Any, speculative: bool = True) -> FakeRequest:
        request = FakeRequest(rid, list(prompt_ids), sampling, speculative)
        if self.cache_warm:
            request.cached_tokens = len(prompt_ids) // 2
        self.cache_warm = True
        self.requests[rid] = request
        self.live.append(rid)
        return request

    def abort(self, rid: str) -> None:
        self.requests[rid].finish_reason = "abort"
        self.live.remove(rid)

    def step(self) -> Stepped:
        self.steps += 1
        self.before_step(self.steps)
        if self.stuck or not self.live:
            return Stepped(self.steps, "idle")
        report = Stepped(self.steps, "decode", tuple(self.live))
        finished = []
        for rid in list(self.live):
            request = self.requests[rid]
            if not request.output_ids:
                report = replace(report, kind="prefill")
                report.cached[rid] = request.cached_tokens
            request.output_ids.append(request.all_ids[-1] + 1)
            request.kv_len = len(request.all_ids) - 1
            report.emitted[rid] = [request.output_ids[-1]]
            if len(request.output_ids) > 1:
                length = 1 if request.cached_tokens else 2
                request.accept_lengths.append(length)
                report.accept_lengths[rid] = length
            else:
                self.observers.tell(Prefilled, request)
            if len(request.output_ids) == request.sampling.max_new_tokens:
                request.finish_reason = "length"
                self.observers.tell(Finishing, request)
                self.live.remove(rid)
                finished.append(rid)
        return replace(report, finished=tuple(finished))

    def flush_cache(self) -> None:
        self.flushed += 1
        self.cache_warm = False

    def damage_seen(self) -> list[Any]:
        return []

    def check_guards(self) -> list[Any]:
        found, self.guards = self.guards, []
        return found

    def draft_kv(self, request: FakeRequest, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = FakeReference().target_kv(request.all_ids, stop)
        return k[None, start:], v[None, start:]

    def target_kv(self, request: FakeRequest, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        return FakeEngine.draft_kv(self, request, start, stop)


class FakeSession(EmbeddedSession):
    """The embedded session around a stand-in engine. ``waits``: what settling does; None: nothing to wait for."""

    def __init__(self, engine: FakeEngine, vocab_size: int = 50, waits: Callable[[], None] | None = None) -> None:
        self.inside, self.observers = engine, engine.observers
        self.vocab_size = vocab_size
        self.clock = time.perf_counter
        self.waits = waits

    def settle(self) -> bool:
        if self.waits is not None:
            self.waits()
        return self.waits is not None


class ListSink:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


class FakePool:
    """Plays back a script for each job: its events, then its end. ``interrupt_at`` stops before that job; ``answers``:
    whether each probe of a device finds it."""

    limit = 2

    def __init__(
        self,
        script: Callable[[Any], tuple[list[dict[str, Any]], WorkerEnd]],
        interrupt_at: str | None = None,
        answers: Sequence[bool] = (),
    ) -> None:
        self.script = script
        self.answers = list(answers)
        self.probe: Any = None
        self.interrupt_at = interrupt_at
        self.jobs: list[Any] = []
        self.prepared: list[str] = []

    def prepare(self, target: str, argument: Any) -> None:
        self.prepared.append(target)

    def run(self, jobs: Sequence[Any], listener: Any) -> None:
        for job in jobs:
            if not job.may_start():
                continue
            self.jobs.append(job)
            listener.started(job)
            if job.name == self.interrupt_at:
                listener.ended(job, WorkerEnd("interrupted", -9, 0.1, 1.0, ""))
                raise KeyboardInterrupt
            events, end = self.script(job)
            for event in events:
                listener.event(job, event)
            listener.ended(job, end)

    def launch(self, job: Any) -> None:
        self.probe = job

    def turn(self, listener: Any) -> None:
        if self.answers.pop(0):
            listener.event(self.probe, {"event": "answers"})
        listener.ended(self.probe, WorkerEnd("done", 0, 0.1, 1.0, ""))


class FakeLibrary:
    def workload(self, scenario: Any, arm: str, seed: int) -> Workload:
        return Workload(())

    def packs(self, names: Sequence[str]) -> tuple[Any, ...]:
        return tuple(SimpleNamespace(name=name) for name in names)

    def toggles(self, numbers: Sequence[int], target: Any = None) -> tuple[Any, ...]:
        return tuple(SimpleNamespace(pr=number) for number in dict.fromkeys(numbers))


def good_run(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
    facts: dict[str, Any] = {"rids": ["g0.0"], "cached": {}, "finished": ["g0.0"], "retracted": []}
    facts |= {"step": 1, "kind": "decode", "emitted": {"g0.0": [4]}, "accept": {"g0.0": 1}, "s": 0.1}
    events: list[dict[str, Any]] = [
        {"event": "setup", "probes_enabled": 1, "requests": 1},
        {"event": "arrive", "rid": "g0.0", "group": "g0", "prompt_tokens": 2},
        {"event": "step", **facts},
        {"event": "coverage", "reached": {"x.y": 1}, "hits": {}},
        {"event": "done", "stages_s": {}, "peak_rss_mb": 1.0},
    ]
    return events, WorkerEnd("done", 0, 0.5, 10.0, "")


def text_of(renderable: Any) -> str:
    """A report, or what else rich can draw, as it is written to a log; COLUMNS is taken away."""
    stream, shown = io.StringIO(), drawn(renderable.parts) if isinstance(renderable, Report) else renderable
    with mock.patch.dict(os.environ):
        os.environ.pop("COLUMNS", None)
        console(stream).print(shown, crop=False, overflow="ignore")
    return stream.getvalue()
