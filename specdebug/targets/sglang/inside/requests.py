"""Which requests SGLang serves, and what each holds of the memory pools, wherever a release keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdebug.targets.sglang.inside.seats import Seat

_BATCH, _SCHEDULER = "srt.managers.schedule_batch", "srt.managers.scheduler:Scheduler"
HELD = "what requests hold"
NEEDED = (
    *(
        Seat(HELD, (f"{_BATCH}:ReqKvInfo.{name}", f"{_BATCH}:Req.{name}"))
        for name in ("req_pool_idx", "cache_protected_len", "kv_committed_len", "kv_allocated_len")
    ),
    Seat(HELD, (f"{_BATCH}:Req.lock", f"{_BATCH}:Req.last_node")),
    Seat(HELD, (f"{_SCHEDULER}.cur_batch_for_debug", f"{_SCHEDULER}.cur_batch")),
    *(Seat(HELD, (f"{_SCHEDULER}.{name}",)) for name in ("running_batch", "last_batch", "chunked_req")),
)
"""The fields that are read, by the names that they have had."""


_MICRO_BATCHES = ("mbs", "running_mbs", "last_mbs")
"""Of a scheduler that is a stage of a pipeline; others have none."""


@dataclass(frozen=True)
class Held:
    """``row``: of ``req_to_token``, None where the request holds nothing. Of its positions, the first ``protected`` are
    the tree's, ``committed`` have KV, and ``allocated`` have slots. ``node``: of the radix tree, the last that it
    locks."""

    rid: str
    row: Any
    protected: int
    committed: int
    allocated: int
    node: Any


def holders(scheduler: Any) -> list[Held]:
    """The requests that hold a row: of the batch that runs on, of the last one, and of the one that was launched last,
    which the others do not have while the results of the last are taken; in a pipeline those of all micro-batches."""
    launched = scheduler.cur_batch if hasattr(scheduler, "cur_batch") else scheduler.cur_batch_for_debug
    batches = [scheduler.running_batch, scheduler.last_batch, launched]
    for name in _MICRO_BATCHES:
        batches += getattr(scheduler, name, ())
    requests = [request for batch in batches if batch is not None for request in batch.reqs]
    requests += [scheduler.chunked_req] if scheduler.chunked_req is not None else []
    every = [held(request) for request in {id(each): each for each in requests}.values()]
    return [each for each in every if each.row is not None]


def held(request: Any) -> Held:
    """Return the slots that a request holds now. Raises AttributeError where a release keeps it elsewhere."""
    own = request if hasattr(request, "req_pool_idx") else request.kv
    return Held(
        request.rid,
        own.req_pool_idx,
        own.cache_protected_len,
        own.kv_committed_len,
        _allocated(request),
        getattr(request.lock, "node", None) if hasattr(request, "lock") else request.last_node,
    )


def _allocated(request: Any) -> int:
    """Positions with slots: some releases know of a request that holds none by its having no ``kv``."""
    if hasattr(request, "kv_allocated_len"):
        return int(request.kv_allocated_len)
    return 0 if request.kv is None else int(request.kv.kv_allocated_len)
