"""What each verify of vLLM's accepted, request by request: its scheduler counts that for its own statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OnVerify = Callable[[str, int], None]
"""Told a request's own id, and how many of its drafts a verify accepted."""


def on_verify(told: OnVerify) -> None:
    """Have something told of every verify from now on."""
    from vllm.v1.core.sched.scheduler import Scheduler

    count = Scheduler.make_spec_decoding_stats

    def make_spec_decoding_stats(self: Any, *args: Any, **named: Any) -> Any:
        told(named["request_id"], int(named["num_accepted_tokens"]))
        return count(self, *args, **named)

    Scheduler.make_spec_decoding_stats = make_spec_decoding_stats
