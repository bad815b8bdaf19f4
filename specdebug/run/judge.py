"""Stands between a session and the oracles: tells each of what it hears, and counts the time that takes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from specdebug.events import (
    AfterStep,
    AllServed,
    Decided,
    DeviceLost,
    DraftForward,
    Event,
    Going,
    Launched,
    OfRequest,
    Stepped,
)
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings, Reference
from specdebug.run.oracles.registry import oracles_of
from specdebug.targets.base import Session
from specdebug.targets.requests import NotShown
from specdebug.verdict.deaths import device_lost
from specdebug.verdict.outcome import Tie, Violation

_ABOUT = {
    DraftForward: "a draft",
    Launched: "a launch",
    Decided: "a decision",
    Stepped: "the step",
    AllServed: "the run",
}
"""The subjects of events that are of no one request."""


MAX_WITH_TREE = 8
"""Findings, the first ones, that are told with the tree of their step."""


class Judge:
    """A session's observer: runs the oracles and hands what they find to ``report``. Raises PluginError.

    ``seconds`` is the time spent judging by the session's clock; it is not the engine's.
    """

    def __init__(
        self,
        settings: OracleSettings,
        session: Session,
        reference: Reference | None,
        report: Callable[[Violation], None],
        tie: Callable[[str, Tie], None],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        def counted(violation: Violation) -> None:
            self._reported += 1
            report(self.bench.with_tree(violation) if self._reported <= MAX_WITH_TREE else violation)

        self.seconds, self.active = 0.0, True
        self._reported, self._condemned = 0, set[str]()
        self.bench = Bench(settings, session, reference, counted, tie, decode)
        self.oracles, self.cannot_show = oracles_of(self.bench)
        self.hears = {kind for oracle in self.oracles for kind in oracle.hears}

    def notes(self) -> Iterator[str]:
        """The oracles' notes on the run, whatever its verdict."""
        for oracle in self.oracles:
            yield from oracle.notes()

    def on(self, event: Event) -> None:
        """Tell the oracles that hear of this; what one of them fails of is reported."""
        if not self.active or type(event) not in self.hears:
            return
        clock = self.bench.session.clock
        began = clock()
        about = event.request.rid if isinstance(event, OfRequest) else _ABOUT.get(type(event), type(event).__name__)
        for oracle in self._hearing(event):
            with self.bench.judging(about), suppress(NotShown):
                oracle.on(event)
        self.seconds += clock() - began

    def stepped(self, report: Stepped) -> None:
        """A step decided this. With ``each_step``, requests that it gave tokens and that go on are judged, each until
        something is wrong with it. One that is prefilled in part has stored nothing, and may have output of an earlier
        life."""
        self.bench.note(report)
        self.on(report)
        if not self.bench.settings.spec.each_step:
            return
        for request in map(self.bench.session.request, filter(report.emitted.get, report.rids)):
            if request.rid in self._condemned or request.finish_reason is not None:
                continue
            before = self._reported
            self.on(Going(request))
            if self._reported > before:
                self._condemned.add(request.rid)

    def inspect(self, step: int, *, failed: bool = False, last: bool = False) -> Exception | None:
        """Have the oracles look at what a step left behind; returns the failure, if the engine failed only now."""
        failure: Exception | None = None
        event = AfterStep(step, failed, last)
        for oracle in self._hearing(event):
            try:
                oracle.on(event)
            except Exception as error:
                failure = failure or error
                if device_lost(error):
                    break
        return failure

    def salvage(self, step: int) -> None:
        """The device is lost: report what had reached the host before."""
        for oracle in self._hearing(event := DeviceLost(step)):
            oracle.on(event)

    def _hearing(self, event: Event) -> Iterator[Oracle]:
        return (oracle for oracle in self.oracles if type(event) in oracle.hears)
