"""What each verify of vLLM's accepted, request by request, and which requests it preempted: its scheduler, which counts
both for its own statistics, is listened to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OnVerify = Callable[[str, int], None]
"""Told a request's own id, and how many of its drafts a verify accepted."""
OnPreemption = Callable[[str], None]
"""Told a request's own id."""


def on_verify(told: OnVerify) -> None:
    """Have something told of every verify from now on."""
    from vllm.v1.core.sched.scheduler import Scheduler

    count = Scheduler.make_spec_decoding_stats

    def make_spec_decoding_stats(self: Any, *args: Any, **named: Any) -> Any:
        told(named["request_id"], int(named["num_accepted_tokens"]))
        return count(self, *args, **named)

    Scheduler.make_spec_decoding_stats = make_spec_decoding_stats


def on_preemption(told: OnPreemption) -> None:
    """Have something told of every preemption from now on."""
    from vllm.v1.core.sched.scheduler import Scheduler

    preempt = Scheduler._preempt_request

    def _preempt_request(self: Any, request: Any, *args: Any, **named: Any) -> Any:
        told(request.request_id)
        return preempt(self, request, *args, **named)

    Scheduler._preempt_request = _preempt_request
