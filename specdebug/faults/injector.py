"""The worker's side of injection: it decides when faults are due.

The injector hears of an engine's steps and batches, listens at the probes' sites, and wraps the few public functions
that declared classes act on. An opportunity (a step, a site reached, a call) that a fault's address covers becomes a
``Shot`` for its class's function. Its damage is reported at once: the process may end next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from specdebug import async_probe
from specdebug.events import BatchBegan, BatchEnded, Event, RanksBegin, StepBegan, StepOver
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import Call, Fault, FaultClass, Injection, NotHere, Point, Shot

if TYPE_CHECKING:
    from specdebug.async_probe import SiteCall
    from specdebug.engine import Engine, Request


class InjectionSink(Protocol):
    """Takes reports of injections."""

    def emit(self, event: str, **fields: Any) -> None: ...


@dataclass
class _Armed:
    """A declared fault, its ``chances`` so far, and the reason (``why``) why the last was none."""

    number: int
    fault: Fault
    kind: FaultClass
    rng: random.Random
    left: int
    why: str = ""
    chances: int = 0

    def covers(self, point: Point, step: int, site: str | None) -> bool:
        """True if its address covers this opportunity."""
        if self.left <= 0 or self.kind.point != point:
            return False
        if site is not None and site != (self.fault.site or self.kind.sites[0]):
            return False
        return self.fault.step is None or self.fault.step[0] <= step <= self.fault.step[1]

    @property
    def missed(self) -> str:
        """Why it never fired."""
        if self.why:
            return self.why
        if self.chances:
            return "its probability never came up"
        place = ""
        if self.kind.point == "site":
            place = f"site {self.fault.site or self.kind.sites[0]} was not reached"
        elif self.kind.point not in ("before", "after"):
            place = "what it acts on was never called"
        if self.fault.step is None:
            return place or "no step was run"
        first, last = self.fault.step
        window = f"step {first}" if first == last else f"steps {first} to {last}"
        return f"{place} in {window}" if place else f"the run has no {window}"


@dataclass
class Injector:
    """Faults around one engine, which it observes. ``draw`` gives a seeded generator for a name."""

    hears = (RanksBegin, StepBegan, StepOver, BatchBegan, BatchEnded)

    faults: Sequence[Fault]
    seed: int
    sink: InjectionSink
    draw: Callable[..., random.Random]
    _armed: list[_Armed] = field(default_factory=list)
    _installed: list[Callable[[], None]] = field(default_factory=list)
    _after_gather: list[Callable[[], None]] = field(default_factory=list)
    _after_step: list[Callable[[], None]] = field(default_factory=list)
    _batches: list[Sequence[Request]] = field(default_factory=list)
    """Those that are computed, the innermost last."""
    _step: int = 0

    def __post_init__(self) -> None:
        for number, fault in enumerate(self.faults):
            seed = self.seed if fault.seed is None else fault.seed
            rng = self.draw(seed, "fault", number, fault.name)
            self._armed.append(_Armed(number, fault, CLASSES[fault.name], rng, fault.times))

    def attach(self, engine: Engine) -> None:
        """Act on ``engine`` from now on. Nothing is installed that no declared fault needs."""
        if not self.faults:
            return
        self._view = engine.view
        engine.observers.add(self)
        self._installed.append(lambda: engine.observers.remove(self))
        points = {armed.kind.point for armed in self._armed}
        if "site" in points:
            async_probe.on_site(lambda call: self._offer("site", self._batch, at_site=call))
        if "lengths" in points:
            # What a GPU drafts ahead it may drop, and then what was read early was not used.
            self._view.eagle.drafts_ahead = False
            self._wrap(self._view.state, "store_lengths", "lengths")
            gather = self._view.state.gather

            def gathered(*args: Any) -> Any:
                result = gather(*args)
                late, self._after_gather = self._after_gather, []
                for write in late:
                    write()
                return result

            self._install(self._view.state, "gather", gathered)
        from specdebug.engine.textbook.memory import mha_pool
        from specdebug.engine.textbook.speculative import worker as stages

        functions: dict[Point, tuple[object, str]] = {"readback": (stages, "Readback"), "move": (mha_pool, "move_kv")}
        methods: dict[Point, tuple[str, str]] = {
            "free": ("memory", "free"),
            "attach": ("cache", "attach"),
            "release": ("cache", "release"),
        }
        for point in points & functions.keys():
            self._wrap(*functions[point], point)
        for point in points & methods.keys():
            part, name = methods[point]
            self._wrap(getattr(self._view, part), name, point)

    def on(self, event: Event) -> None:
        match event:
            case RanksBegin(step):
                self._step = step
                self._offer("ranks", self._view.running)
            case StepBegan(step):
                self._step = step
                self._offer("before", self._view.running)
            case BatchBegan(_, requests):
                self._batches.append(requests)
            case BatchEnded():
                self._batches.pop()
            case StepOver(failed=False):
                undo, self._after_step = self._after_step, []
                for each in undo:
                    each()
                self._offer("after", self._view.running)

    def finish(self) -> None:
        """Say of every fault that never fired why it did not, and take away what was installed."""
        async_probe.on_site(None)
        for restore in reversed(self._installed):
            restore()
        self._installed = []
        for number, why in self.idle():
            self.sink.emit("unfired", number=number, why=why)

    def idle(self) -> Iterator[tuple[int, str]]:
        """Each fault that has never fired, and why it did not."""
        for armed in self._armed:
            if armed.left == armed.fault.times:
                yield armed.number, armed.missed

    @property
    def _batch(self) -> Sequence[Request]:
        return self._batches[-1] if self._batches else ()

    def _offer(
        self, point: Point, batch: Sequence[Request], *, at_site: SiteCall | None = None, call: Call | None = None
    ) -> None:
        """Give every fault that is due its opportunity."""
        site = None if at_site is None else at_site.site

        def report(injection: Injection) -> None:
            self.sink.emit("injected", **asdict(injection))

        for armed in self._armed:
            if not armed.covers(point, self._step, site):
                continue
            armed.chances += 1
            if armed.fault.probability < 1 and armed.rng.random() >= armed.fault.probability:
                continue
            place = (armed.fault, armed.number, self._step, self._view)
            shot = Shot(*place, armed.rng, report, batch, at_site, call)
            try:
                with torch.inference_mode():
                    armed.kind.act(shot)
            except NotHere as error:
                armed.why = str(error)
                continue
            armed.left -= 1
            self._after_gather += shot.after_gather
            self._after_step += shot.after_step
            if not shot.reported:
                shot.note("nothing", (), None, None)

    def _wrap(self, owner: Any, name: str, point: Point) -> None:
        function = getattr(owner, name)

        def wrapped(*args: Any, **options: Any) -> Any:
            call = Call(function, args, options)
            self._offer(point, self._batch, call=call)
            return call.result if call.made else function(*args, **options)

        self._install(owner, name, wrapped)

    def _install(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Put a function in another one's place, on a module, or on an object over its class's."""
        missing = object()
        own = vars(owner).get(name, missing)
        setattr(owner, name, function)
        self._installed.append(lambda: delattr(owner, name) if own is missing else setattr(owner, name, own))
