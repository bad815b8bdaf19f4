"""What each verify of vLLM's accepted, request by request, and which requests it preempted: its scheduler, which counts
both for its own statistics, is listened to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specdebug.targets.inside.guard import EngineLook, Tap
from specdebug.targets.inside.wrapping import wrap_method

OnVerify = Callable[[str, int], None]
"""Told a request's own id, and how many of its drafts a verify accepted."""
OnPreemption = Callable[[str], None]
"""Told a request's own id."""


def on_verify(told: OnVerify) -> None:
    """Have something told of every verify from now on."""

    def counted(call: Callable[..., Any], _: Any, *args: Any, **named: Any) -> Any:
        told(named["request_id"], int(named["num_accepted_tokens"]))
        return call(*args, **named)

    _tap("make_spec_decoding_stats", counted)


def on_preemption(told: OnPreemption) -> None:
    """Have something told of every preemption from now on."""

    def preempted(call: Callable[..., Any], _: Any, request: Any, *args: Any, **named: Any) -> Any:
        told(request.request_id)
        return call(request, *args, **named)

    _tap("_preempt_request", preempted)


def _tap(name: str, tap: Tap) -> None:
    """Tap the scheduler's function; a release that has none is served without, and that is told."""
    from vllm.v1.core.sched.scheduler import Scheduler

    look = EngineLook("accept lengths")
    look.attempt(lambda: wrap_method(Scheduler, name, tap, look), None)
