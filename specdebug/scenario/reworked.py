"""The requests of a workload served otherwise, in ways that must not matter: one by one, turned round, a second time,
beside others that are aborted, with an empty cache. What each asks stays as it is."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from specdebug.scenario.workload import Workload, WorkloadRequest

AGAIN, NEIGHBOUR = "again:", "neighbour:"
"""Prefixes of the ids of requests served a second time, and of those that are there to be aborted."""
ABORTED_AFTER = 4
"""Steps: a neighbour's prompt is computed by then, and it decodes beside the others."""
SET_BACK = "retracted"
"""The way in which the requests stay as they are, and the engine is asked to set one back."""


def _one_by_one(workload: Workload, *, cold: bool = False) -> Workload:
    """Each request comes once the one before it has ended. ``cold``: to an empty cache."""
    after: dict[str, tuple[str, ...]] = {}
    requests: list[WorkloadRequest] = []
    for request in workload.requests:
        if requests:
            after[request.rid] = (requests[-1].rid,)
        alone = replace(request.sampling, features=replace(request.sampling.features, n=1))
        requests.append(replace(request, group=request.rid, delay=0, flush=cold or request.flush, sampling=alone))
    return Workload(tuple(requests), after)


def _turned(workload: Workload) -> Workload:
    """Of each group, and of those that come at one time, the last comes first."""
    delays: dict[str, list[int]] = {}
    for request in workload.requests:
        delays.setdefault(request.group, []).append(request.delay)
    flushed = {request.group for request in workload.requests if request.flush}
    turned = []
    for request in reversed(workload.requests):
        first = request.group in flushed and request.continues is None
        flushed -= {request.group} if first else set()
        delay = min(delays[request.group]) + max(delays[request.group]) - request.delay
        turned.append(replace(request, delay=delay, flush=first))
    return Workload(tuple(turned), workload.after)


def _again(workload: Workload) -> Workload:
    """All of them, and then all of them again."""
    groups = tuple(dict.fromkeys(request.group for request in workload.requests))
    second = [
        replace(
            request,
            rid=AGAIN + request.rid,
            group=AGAIN + request.group,
            continues=None if request.continues is None else AGAIN + request.continues,
        )
        for request in workload.requests
    ]
    waits = {AGAIN + group: tuple(AGAIN + each for each in workload.after.get(group, ())) or groups for group in groups}
    return Workload((*workload.requests, *second), workload.after | waits)


def _interrupted(workload: Workload) -> Workload:
    """Before the first request of each group another comes that asks the same and is aborted."""
    groups: set[str] = set()

    def requests() -> Iterator[WorkloadRequest]:
        for request in workload.requests:
            if request.group not in groups:
                groups.add(request.group)
                name = NEIGHBOUR + request.group
                alone = replace(request.sampling, features=replace(request.sampling.features, n=1))
                yield replace(request, rid=f"{name}.0", group=name, abort_after=ABORTED_AFTER, sampling=alone)
                request = replace(request, flush=False)
            yield request

    after = {NEIGHBOUR + group: waits for group, waits in workload.after.items()}
    return Workload(tuple(requests()), workload.after | after)


_HOW: dict[str, Callable[[Workload], Workload]] = {
    "": lambda workload: workload,
    SET_BACK: lambda workload: workload,
    "alone": _one_by_one,
    "cold": lambda workload: _one_by_one(workload, cold=True),
    "order": _turned,
    "again": _again,
    "interrupted": _interrupted,
}
REWORKED = tuple(_HOW)


def reworked(how: str, workload: Workload) -> Workload:
    """The workload, served in one of the ways of :data:`REWORKED`."""
    return _HOW[how](workload)
