"""Requests that end, or are set back, at a moment that is not of its own choice. An engine must survive all of it."""

from __future__ import annotations

from dataclasses import replace

from specdebug.faults.shot import NotHere, Shot, fault_class

FAMILY = "lifecycle"


@fault_class(FAMILY, "before", "benign")
def request_aborted(shot: Shot) -> None:
    """A request is aborted between two steps, wherever it is in its life."""
    live = [each for each in shot.view.engine.requests.values() if not each.finished]
    request = shot.pick(live, "no request is alive")
    before = request.status.value
    shot.view.engine.abort(request.rid)
    shot.note("status", (), before, request.status.value)


@fault_class(FAMILY, "before", "benign")
def request_retracted(shot: Shot) -> None:
    """A running request loses its slots and waits to come back, as when memory runs short."""
    if len(shot.batch) < 2:
        raise NotHere("fewer than two requests run")
    request = shot.pick()
    before = request.status.value
    shot.view.scheduler.retract(request)
    shot.note("status", (), before, request.status.value)


@fault_class(FAMILY, "before", "benign")
def request_finished(shot: Shot) -> None:
    """A request's next token is its last: it ends inside what the step accepts."""
    among = [each for each in shot.batch if len(each.output_ids) + 1 < each.sampling.max_new_tokens]
    request = shot.pick(among, "no request has more than one token to go")
    before = request.sampling.max_new_tokens
    request.sampling = replace(request.sampling, max_new_tokens=len(request.output_ids) + 1)
    shot.note("max_new_tokens", (), before, request.sampling.max_new_tokens)


@fault_class(FAMILY, "before", "benign", addressed_by=())
def cache_flushed(shot: Shot) -> None:
    """Every cached prefix that no request reads is dropped."""
    before = shot.view.cache.radix.evictable_size
    if not before:
        raise NotHere("nothing is cached that no request reads")
    shot.view.engine.flush_cache()
    shot.note("radix.evictable_size", (), before, shot.view.cache.radix.evictable_size)
