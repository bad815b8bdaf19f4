"""A prefix hit whose draft KV nobody has written, under the policy ``zero_fill``."""

from __future__ import annotations

from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.request import Request


def prepare_cached_prefix(request: Request, pool: KVPool) -> None:
    """Zero the draft KV that a request's cached prefix lacks: unwritten memory may hold anything."""
    slots = request.unwritten_draft_slots
    if slots is not None and slots.numel():
        pool.zero(slots)
    request.unwritten_draft_slots = None
