"""SGLang's scheduler, whose own loop runs in a thread, one iteration at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdebug.targets.sglang.inside.scheduler import PULL, RECEIVE

_LOOK_S = 0.05


class _Ended(BaseException):
    """The session is over; it ends the scheduler's thread."""


class Stepper:
    """Runs the scheduler's own loop in a thread, one iteration at a time; between two, that thread waits. ``watch`` is
    called again and again meanwhile, and may raise. ``leads``: of several ranks, requests arrive at this one."""

    def __init__(self, scheduler: Any, watch: Callable[[], None] | None, *, leads: bool) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._watch = watch
        # Each thread has a device of its own, by default the first; the scheduler was built in this one.
        self._device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self._arriving: Sequence[Any] = ()
        self._failure: BaseException | None = None
        self._begun = self._over = False
        self._thread = threading.Thread(target=self._run, args=(scheduler,), name="scheduler", daemon=True)
        owner, name = (RECEIVE if watch is None else PULL).find()
        pull = getattr(owner, name)

        def arrive(receiver: Any, *args: Any, **named: Any) -> Any:
            """A stage behind the first has them from the one before it, and any other rank from its leader."""
            return self._received() if leads else self._received() or pull(receiver, *args, **named)

        setattr(owner, name, arrive)

    def step(self, arriving: Sequence[Any]) -> None:
        """One iteration, at whose start these requests arrive. Raises what the scheduler raises."""
        if not self._thread.ident:
            self._thread.start()
        self._arriving = arriving
        self._go.release()
        while not self._done.acquire(timeout=None if self._watch is None else _LOOK_S):
            assert self._watch is not None  # for the type checker
            self._watch()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """End the thread, if it has begun."""
        self._over = True
        self._go.release()

    def _received(self) -> list[Any]:
        if self._begun:
            self._done.release()
        self._begun = True
        self._go.acquire()
        if self._over:
            raise _Ended
        return [*self._arriving]

    def _run(self, scheduler: Any) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)
        try:
            scheduler.run_event_loop()
            self._failure = RuntimeError("the scheduler's loop ended by itself")
        except _Ended:
            return
        except BaseException as error:
            self._failure = error
        self._done.release()
