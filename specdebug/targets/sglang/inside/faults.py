"""Faults in SGLang's scheduler process: our injector, told of the scheduler's batches as of our engine's steps.

A step is a batch that has a request of the harness. What is injected is told at once; the process may end next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from specdebug.base.trial import stream
from specdebug.events import BatchBegan, BatchEnded, BatchKind, StepBegan, StepOver
from specdebug.faults.injector import Injector
from specdebug.faults.model import Fault
from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.inside.words import tell
from specdebug.targets.inside.wrapping import wrap_method
from specdebug.targets.sglang.inside.batches import RUN
from specdebug.targets.sglang.inside.requests import held
from specdebug.targets.sglang.inside.view import SeenEngine, SeenRequest, own_rid

FAULTS = "what faults damage"


class _Ledger:
    """Tells the harness of each injection."""

    def emit(self, event: str, **fields: Any) -> None:
        tell(pid=os.getpid(), ledger=event, **fields)


def inject(faults: Sequence[Mapping[str, Any]], seed: int) -> Callable[[], None]:
    """Have faults (``Fault`` as plain data) act in this process's scheduler, if it has one; returns what tells of each
    that has not been injected why it was not. Raises NoSeat."""
    declared = [Fault(**{**each, "step": tuple(each["step"]) if each["step"] else None}) for each in faults]
    acting = _Acting(Injector(declared, seed, _Ledger(), stream))

    def run_batch(call: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **named: Any) -> Any:
        if not any(own_rid(request.rid) for request in batch.reqs):
            return call(batch, *args, **named)
        return acting.on_batch(scheduler, batch, lambda: call(batch, *args, **named))

    wrap_method(*RUN.find(), run_batch, EngineLook(FAULTS))
    return acting.tell_idle


class _Acting:
    """The injector of the one scheduler that this process has."""

    def __init__(self, injector: Injector) -> None:
        self._injector = injector
        self._view: SeenEngine | None = None
        self._step = 0

    def on_batch(self, scheduler: Any, batch: Any, run: Callable[[], Any]) -> Any:
        """Run a batch, with the faults that are due before, in and after it."""
        view = self._view or self._attached(scheduler)
        self._step += 1
        prefills = batch.forward_mode.is_extend()
        running = scheduler.running_batch.reqs if scheduler.running_batch is not None else ()
        view.running = [SeenRequest(each) for each in running if held(each).row is not None]
        tell = self._injector.on
        tell(StepBegan(self._step))
        kind: BatchKind = "prefill" if prefills else "speculative"
        tell(BatchBegan(kind, [SeenRequest(each) for each in batch.reqs]))
        try:
            answer = run()
        finally:
            tell(BatchEnded(kind))
        tell(StepOver())
        return answer

    def tell_idle(self) -> None:
        """Tell of each fault that was never injected why."""
        for number, why in self._injector.idle():
            tell(pid=os.getpid(), ledger="unfired", number=number, why=why)

    def _attached(self, scheduler: Any) -> SeenEngine:
        self._view = SeenEngine(scheduler)
        unheard = SimpleNamespace(add=lambda _: None, remove=lambda _: None)
        self._injector.attach(cast(Any, SimpleNamespace(view=self._view, observers=unheard)))
        return self._view
