"""Which requests SGLang serves, and what each holds of the memory pools, by release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdebug.targets.sglang.inside.releases import installed, of_release


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


LAUNCHED = {"0.5.13": "cur_batch", "0.5.18": "cur_batch_for_debug"}
"""What the scheduler calls the batch that it has launched last, by the first release."""


def holders(scheduler: Any) -> list[Held]:
    """The requests that hold a row: of the batch that runs on, of the last one, and of the one that was launched last,
    which the others do not have while the results of the last are taken."""
    launched = getattr(scheduler, of_release(LAUNCHED, installed()))
    batches = (scheduler.running_batch, scheduler.last_batch, launched)
    requests = [request for batch in batches if batch is not None for request in batch.reqs]
    requests += [scheduler.chunked_req] if scheduler.chunked_req is not None else []
    every = [held(request) for request in {id(each): each for each in requests}.values()]
    return [each for each in every if each.row is not None]


def held(request: Any) -> Held:
    """What a request holds now."""
    found: Held = of_release({"0.5.13": _of_0_5_13, "0.5.18": _of_0_5_18, "0.5.23": _of_0_5_23}, installed())(request)
    return found


def _of_0_5_13(request: Any) -> Held:
    return Held(
        request.rid,
        request.req_pool_idx,
        request.cache_protected_len,
        request.kv_committed_len,
        request.kv_allocated_len,
        request.last_node,
    )


def _of_0_5_18(request: Any) -> Held:
    return Held(
        request.rid,
        request.req_pool_idx,
        request.cache_protected_len,
        request.kv_committed_len,
        0 if request.kv is None else request.kv.kv_allocated_len,
        request.last_node,
    )


def _of_0_5_23(request: Any) -> Held:
    kv, lock = request.kv, request.lock
    return Held(
        request.rid,
        kv.req_pool_idx,
        kv.cache_protected_len,
        kv.kv_committed_len,
        kv.kv_allocated_len,
        None if lock is None else lock.node,
    )
