"""What a request of SGLang's holds of the memory pools, by release."""

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
