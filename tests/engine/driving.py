"""Short ways to build an engine, run it to the end, look at what it did, and break it."""

import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.events import Stepped
from specdebug.targets.laws import broken_laws

MAX_STEPS = 3000


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` laid over it, block by block."""
    result = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = merged(base[key], value) if nested else value
    return result


def build(base: dict[str, Any], **changes: Any) -> Engine:
    return Engine(EngineConfig.from_dict(merged(base, changes)))


def greedy(max_new_tokens: int, **changes: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, **changes)


def run(engine: Engine, each_step: Callable[[Stepped], None] | None = None, *, steps: int = MAX_STEPS) -> list[Stepped]:
    """Step until nothing is left to do, at most ``steps`` times; memory must be in order after each."""
    reports = []
    while engine.has_work and len(reports) < steps:
        reports.append(engine.step())
        assert broken_laws(engine) == []
        assert engine.check_guards() == []
        if each_step is not None:
            each_step(reports[-1])
    assert steps < MAX_STEPS or not engine.has_work, "the engine does not come to an end"
    return reports


def serve(engine: Engine, prompts: Sequence[Sequence[int]], max_new_tokens: int, **sampling: Any) -> list[list[int]]:
    """Outputs of ``prompts`` served together; the request of prompt n is called "r<n>"."""
    params = SamplingParams(max_new_tokens=max_new_tokens, **sampling)
    requests = [engine.add_request(f"r{n}", prompt, params) for n, prompt in enumerate(prompts)]
    run(engine)
    return [request.output_ids for request in requests]


def plant(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str = "pass") -> None:
    """Put ``new`` in the place of ``old``, which stands once in the function ``name`` of a class or a module."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {name}"
    module = owner if inspect.ismodule(owner) else sys.modules[owner.__module__]
    scope: dict[str, Any] = {}
    exec(compile(source.replace(old, new), f"<{name} with a bug>", "exec", dont_inherit=True), vars(module), scope)
    monkeypatch.setattr(owner, name, scope[name])


def waits_of_decode_steps(served: Engine, steps: int) -> Counter[str]:
    """Calls that wait in so many decode steps, by name; what torch itself knows for a wait is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(steps):
                assert served.step().kind == "decode"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Counter(event.name for event in profile.events() if "Synchronize" in event.name)
