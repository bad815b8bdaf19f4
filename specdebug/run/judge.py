"""Stands between a session and the oracles: calls each when it may look, and counts the time that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, get_args

from specdebug.base.abilities import Ability
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings, Reference
from specdebug.run.oracles.registry import CannotShow, oracles_of
from specdebug.targets.base import Session, StepView
from specdebug.targets.serving import NotShown
from specdebug.verdict.device_errors import device_lost
from specdebug.verdict.outcome import Tie, Violation


class Judge:
    """A session's onlooker: runs the oracles and hands what they find to ``report``. Raises PluginError.

    ``shows``: the session's abilities. ``seconds`` is the time spent judging by ``clock``; it is not the engine's.
    """

    def __init__(
        self,
        settings: OracleSettings,
        reference: Reference | None,
        report: Callable[[Violation], None],
        tie: Callable[[str, Tie], None],
        decode: Callable[[Sequence[int]], str],
        clock: Callable[[], float] = time.perf_counter,
        shows: Collection[Ability] = get_args(Ability),
    ) -> None:
        self.clock = clock
        self.seconds = 0.0
        self.active = True

        def counted(violation: Violation) -> None:
            self._reported += 1
            report(violation)

        self._report = counted
        self._reported = 0
        self._condemned: set[str] = set()
        self.bench = Bench(settings, reference, counted, tie, decode)
        self.oracles: list[Oracle]
        self.cannot_show: list[CannotShow]
        """Oracles that were asked for and cannot look at such a session."""
        self.oracles, self.cannot_show = oracles_of(self.bench, shows)
        # forwards are many, and hardly an oracle hears of them
        self._hear_launches = [each for each in self.oracles if type(each).on_launched is not Oracle.on_launched]
        self._hear_drafts = [
            each for each in self.oracles if type(each).on_draft_forward is not Oracle.on_draft_forward
        ]

    @property
    def step(self) -> int:
        """The step that is being made."""
        return self.bench.step

    @step.setter
    def step(self, number: int) -> None:
        self.bench.step = number

    @property
    def looks(self) -> dict[str, int]:
        """By oracle: how often it compared something with the reference."""
        return self.bench.looks

    def notes(self) -> Iterator[str]:
        """The oracles' notes on the run, whatever its verdict."""
        for oracle in self.oracles:
            yield from oracle.notes()

    def on_draft_forward(self, engine: Any, forward: Any) -> None:
        """A forward of the draft loop was computed."""
        self._look([partial(oracle.on_draft_forward, engine, forward) for oracle in self._hear_drafts], "a draft")

    def on_launched(self, engine: Any, launch: Any) -> None:
        """A forward is launched."""
        self._look([partial(oracle.on_launched, engine, launch) for oracle in self._hear_launches], "a launch")

    def on_decided(self, engine: Any, decision: Any) -> None:
        """A verify has decided what is accepted."""
        self._look([partial(oracle.on_decided, engine, decision) for oracle in self.oracles], "a decision")

    def on_prefilled(self, engine: Any, request: Any) -> None:
        """The prompt has its KV in both pools."""
        self._look([partial(oracle.on_prefilled, engine, request) for oracle in self.oracles], request.rid)

    def on_finishing(self, engine: Any, request: Any) -> None:
        """The request is done, its slots not yet released."""
        self._look([partial(oracle.on_finishing, engine, request) for oracle in self.oracles], request.rid)

    def on_aborting(self, engine: Any, request: Any) -> None:
        """The request is about to be ended where it is."""
        self._look([partial(oracle.on_aborting, engine, request) for oracle in self.oracles], request.rid)

    def after_step(self, requests: Sequence[Any], emitted: Mapping[str, Sequence[int]]) -> None:
        """Note how far the requests have come."""
        self.bench.note(requests, emitted)

    def on_step(self, session: Session, report: StepView) -> None:
        """A step decided this."""
        self._look([partial(oracle.on_step, session, report) for oracle in self.oracles], "the step")

    def on_served(self, session: Session, rids: Sequence[str]) -> None:
        """The workload, these requests, is served."""
        self._look([partial(oracle.on_served, session, rids) for oracle in self.oracles], "the run")

    def look(self, engine: Any, requests: Sequence[Any], emitted: Mapping[str, Sequence[int]]) -> None:
        """With ``each_step``: judge requests that a step ``emitted`` tokens of and that go on, each until something is
        wrong with it. One that is prefilled in part has stored nothing, and may have output of an earlier life."""
        if not self.bench.settings.spec.each_step:
            return
        for request in requests:
            if request.rid in self._condemned or request.finish_reason is not None or not emitted.get(request.rid):
                continue
            before = self._reported
            self._look([partial(oracle.on_going, engine, request) for oracle in self.oracles], request.rid)
            if self._reported > before:
                self._condemned.add(request.rid)

    def inspect(self, session: Session, step: int, *, failed: bool, last: bool) -> Exception | None:
        """Have the oracles look at what a step left behind; returns the failure, if the engine failed only now."""
        failure: Exception | None = None
        for oracle in self.oracles:
            try:
                oracle.after_step(session, step, failed=failed, last=last)
            except Exception as error:
                failure = failure or error
                if device_lost(error):
                    break
        return failure

    def salvage(self, session: Session, step: int) -> None:
        """The device is lost: report what had reached the host before."""
        for oracle in self.oracles:
            oracle.salvage(session, step)

    def _look(self, looks: Sequence[Callable[[], None]], what: str) -> None:
        if not self.active:
            return
        began = self.clock()
        for look in looks:
            with self.bench.judging(what), suppress(NotShown):
                look()
        self.seconds += self.clock() - began
