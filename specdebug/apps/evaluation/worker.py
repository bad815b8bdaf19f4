"""An evaluation inside its worker: put the reverts in place, open the target, ask, tell of each answer as it comes.

Events are those of an arm (``verdict/ledger.py``), and ``answer`` and ``server``, which ``run.py`` reads. Nothing of
the engine is imported before the reverts are in place.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.base.content import shipped_root
from specdebug.base.errors import InvalidOption, SpecDebugError
from specdebug.run.arm import hits_of
from specdebug.targets.base import Opening, OverThere, Session
from specdebug.targets.registry import find_target
from specdebug.workers.device import DeviceUnavailable
from specdebug.workers.machine_failure import MachineFailed, machine_failure
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.apps.evaluation.askers import Answered, Asker, Put
    from specdebug.patching.toggles import Toggle
    from specdebug.scenario.grammar import Scenario


@dataclass(frozen=True)
class Paper:
    """All that is asked. ``odds``: log probabilities of first tokens are wanted."""

    puts: Sequence[Put]
    concurrency: int
    max_new_tokens: int
    odds: bool


def evaluate(payload: Mapping[str, Any], sink: Sink) -> None:
    """Run the evaluation that ``run.py`` packed."""
    try:
        _Evaluating(payload, sink).run()
    except DeviceUnavailable as error:
        sink.emit("usage", message=str(error), option=["device"], unavailable=True)
    except InvalidOption as error:
        sink.emit("usage", message=error.reason, option=list(error.key_path))
    except SpecDebugError as error:
        sink.emit("usage", message=str(error))


class _Evaluating:
    def __init__(self, payload: Mapping[str, Any], sink: Sink) -> None:
        self._payload = payload
        self._sink = sink
        self._sound = True
        self._stages: dict[str, float] = {}
        self._toggles: Sequence[Toggle] = ()
        self._session: Session | None = None
        self._asker: Asker | None = None

    def run(self) -> None:
        with self._stage("revert"):
            hits = self._revert()
        if hits is None:
            return
        try:
            with self._stage("build"):
                scenario: Scenario = pickle.loads(self._payload["scenario"])
                session, asker = self._open(scenario)
            with self._stage("ask"):
                self._ask_all(session, asker, pickle.loads(self._payload["paper"]))
            self._tell_server(session)
        except MachineFailed as error:
            self._sink.emit("machine", cause=error.failure.cause, line=error.failure.line)
        except SpecDebugError as error:
            if error.exit_code == 2:
                raise
            if error.exit_code == 125:
                self._sink.emit("impossible", reason=str(error), unavailable=True)
            else:
                self._fail(error)
        except Exception as error:
            self._fail(error)
        finally:
            self._sink.emit("coverage", reached={}, hits=hits())
            if self._asker is not None:
                self._asker.close()
            if self._session is not None:
                self._session.close(self._sound)
        self._sink.emit("done", stages_s=self._stages)

    def _revert(self) -> Callable[[], Mapping[str, Mapping[str, int]]] | None:
        """Put the fixes' reverts in place; returns a reader of how often each edit has run, by fix, or None when they
        cannot be put in place."""
        from specdebug.patching import PatchError, apply

        self._toggles = pickle.loads(self._payload["toggles"])
        if self._payload["elsewhere"]:  # the target itself has them reverted, where its engine runs
            self._sink.emit("reverts", hits={})
            return self._hits_elsewhere
        try:
            applied = apply([patch for toggle in self._toggles for patch in toggle.patches], "import")
        except PatchError as error:
            self._sink.emit("impossible", reason=str(error))
            return None
        hits = partial(hits_of, self._toggles, applied)
        self._sink.emit("reverts", hits=hits())
        return hits

    def _hits_elsewhere(self) -> Mapping[str, Mapping[str, int]]:
        server = None if self._session is None else self._session.server
        return {} if server is None else {number: dict(edits) for number, edits in server.hits().items()}

    def _open(self, scenario: Scenario) -> tuple[Session, Asker]:
        from specdebug.apps.evaluation.askers import asker_of

        arm, paper = self._payload["arm"], pickle.loads(self._payload["paper"])
        target, options = find_target(scenario.target_of(arm)), scenario.engine_of(arm)
        opening = Opening(f"{scenario.name}-{arm}", self._sink.emit, _Busy(self._sink), over_there=self._over_there())
        session = self._session = target.open(options, self._payload["seed"], opening)
        self._sink.emit(
            "target",
            name=target.traits.name,
            lacks=target.traits.lacks,
            looking=["eval"],
            cannot_show=[],
        )
        asked = session.asked or target.asked(options)
        self._asker = asker_of(session, asked, paper.max_new_tokens, odds=paper.odds)
        return session, self._asker

    def _over_there(self) -> OverThere:
        """The reverts, for a target whose engine runs elsewhere, and the folders that they are from."""
        if not self._payload["elsewhere"]:
            return OverThere()
        roots = {Path(each.path).resolve().parents[1] for each in self._toggles} - {shipped_root()}
        return OverThere(tuple(self._toggles), content=tuple(sorted(map(str, roots))))

    def _ask_all(self, session: Session, asker: Asker, paper: Paper) -> None:
        """Keep as many questions under way as may be, to the last answer."""
        self._sink.emit("setup", probes_enabled=0, requests=len(paper.puts))
        waiting, open_now, clock = iter(paper.puts), 0, session.clock()
        left = len(paper.puts)
        while left:
            while open_now < min(paper.concurrency, left):
                put = next(waiting)
                tokens = asker.ask(put)
                self._sink.emit("arrive", rid=str(put.number), group="questions", prompt_tokens=tokens or 0)
                open_now += 1
            for answer in asker.wait():
                now = session.clock()
                self._tell(answer, asker.step, now - clock)
                clock, open_now, left = now, open_now - 1, left - 1

    def _tell(self, answer: Answered, step: int, seconds: float) -> None:
        rid = str(answer.number)
        self._sink.emit(
            "step",
            step=step,
            kind="served",
            rids=[rid],
            emitted={rid: list(answer.ids)},
            accept={},
            verifies={rid: list(answer.verifies)},
            cached={rid: answer.cached_tokens},
            finished=[rid],
            retracted=[],
            s=round(seconds, 6),
        )
        self._sink.emit("request", rid=rid, text=answer.text, finish_reason=answer.finish_reason)
        self._sink.emit("answer", number=answer.number, prompt_tokens=answer.prompt_tokens, top=list(answer.top))

    def _tell_server(self, session: Session) -> None:
        """Tell what a server counts of accept lengths itself, and failures that it or its log names."""
        tells = "accept_lengths" in session.shows
        server = session.server
        own = None if server is None else server.totals().get("avg_spec_accept_length")
        self._sink.emit("server", tells_accepts=tells, accept_length=own if isinstance(own, int | float) else None)
        for signature, text in () if server is None else server.findings():
            kind, _, site = signature.partition("@")
            self._sound = False
            self._sink.emit("violation", kind=kind, site=site, step=None, detail=text, count=1, data={})

    def _fail(self, error: Exception) -> None:
        from specdebug.run.exceptions import beyond_the_machine, violation_of

        self._sound = False
        traceback.print_exc()
        machine = machine_failure(error)
        if machine is not None:
            self._sink.emit("machine", cause=machine.cause, line=machine.line)
        elif beyond := beyond_the_machine(error):
            self._sink.emit("impossible", reason=beyond, unavailable=True)
        else:
            step = 0 if self._asker is None else self._asker.step
            self._sink.emit("violation", **asdict(violation_of(error, step)))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._sink.emit("stage", name=name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._stages[name] = round(time.perf_counter() - began, 4)


class _Busy:
    """Passes on what keeps a session from answering."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def said(self, text: str) -> None:
        self._sink.emit("progress", text=text)

    def compiling(self, kernel: str) -> None:
        self.said(f"compiling {kernel}")

    def compiled(self) -> None:
        self.said("")
