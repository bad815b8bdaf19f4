"""The due time of each planned request, given how the run goes. Pure logic: it never sees an engine.

A run asks for what is :meth:`WorkloadDriver.due` before every step, adds the arrivals to its engine and then aborts the
aborts; it ends when the engine has no work and the driver is exhausted. Steps are the run's own count, idle ones
included; they may jump forward but never go back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdebug.scenario.workload import RequestSampling, Workload, WorkloadRequest


@dataclass(frozen=True)
class Arrival:
    """A request that arrives now, with its whole prompt. ``flush``: the cache is to be flushed before."""

    rid: str
    group: str
    prompt_ids: tuple[int, ...]
    sampling: RequestSampling
    speculative: bool
    flush: bool = False


@dataclass(frozen=True)
class Due:
    """The requests to add before a step, in order, then those to abort."""

    arrivals: tuple[Arrival, ...]
    aborts: tuple[str, ...]


class WorkloadDriver:
    """Walks a workload. A request it has aborted counts as finished from the next call on."""

    def __init__(self, workload: Workload) -> None:
        self._after = workload.after
        self._waiting = {request.rid: request for request in workload.requests}
        self._unfinished: dict[str, set[str]] = {}
        for request in workload.requests:
            self._unfinished.setdefault(request.group, set()).add(request.rid)
        self._started = {group: 0 for group in self._unfinished if not self._after.get(group)}
        self._prompts: dict[str, tuple[int, ...]] = {}
        self._abort_at: dict[str, int] = {}
        self._step = 0

    @property
    def exhausted(self) -> bool:
        """Return True if nothing more will arrive or be aborted."""
        return not self._waiting and not self._abort_at

    def due(self, step: int, finished: Mapping[str, Sequence[int]]) -> Due:
        """The arrivals and aborts before ``step``; ``finished`` holds the output of every request finished so far."""
        if step < self._step:
            raise ValueError(f"step {step} comes after step {self._step}")
        self._step = step
        self._forget(finished)
        arriving = [request for request in self._waiting.values() if self._is_due(request, finished)]
        arrivals = tuple(self._arrive(request, finished) for request in arriving)
        aborts = tuple(rid for rid, at in self._abort_at.items() if at <= step)
        for rid in aborts:
            del self._abort_at[rid]
            for rids in self._unfinished.values():
                rids.discard(rid)
        return Due(arrivals, aborts)

    def _forget(self, finished: Mapping[str, Sequence[int]]) -> None:
        for rids in self._unfinished.values():
            for rid in [rid for rid in rids if rid in finished]:
                rids.discard(rid)
                self._abort_at.pop(rid, None)
        for group in self._unfinished:
            others = self._after.get(group, ())
            if group not in self._started and not any(self._unfinished[other] for other in others):
                self._started[group] = self._step

    def _is_due(self, request: WorkloadRequest, finished: Mapping[str, Sequence[int]]) -> bool:
        if request.continues is not None:
            return request.continues in finished
        start = self._started.get(request.group)
        return start is not None and self._step >= start + request.delay

    def _arrive(self, request: WorkloadRequest, finished: Mapping[str, Sequence[int]]) -> Arrival:
        del self._waiting[request.rid]
        prompt = request.new_ids
        if request.continues is not None:
            prompt = self._prompts.pop(request.continues) + tuple(finished[request.continues]) + prompt
        self._prompts[request.rid] = prompt
        if request.abort_after is not None:
            self._abort_at[request.rid] = self._step + request.abort_after
        return Arrival(request.rid, request.group, prompt, request.sampling, request.speculative, request.flush)
