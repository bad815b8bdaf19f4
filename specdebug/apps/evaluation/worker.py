"""An evaluation inside its worker: a run of a session (``run/session_run.py``) that asks, and tells of each answer as
it comes.

Events are those of an arm (``verdict/ledger.py``), and ``answer`` and ``server``, which ``run.py`` reads.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdebug.run.session_run import SessionRun
from specdebug.targets.base import Opening, Session
from specdebug.targets.registry import find_target
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.apps.evaluation.askers import Answered, Asker, Put
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
    _Evaluating(payload, sink).run()


class _Evaluating(SessionRun):
    _asker: Asker | None = None

    def _work(self, scenario: Scenario) -> None:
        paper: Paper = pickle.loads(self._payload["paper"])
        with self._stage("build"):
            session, asker = self._open(scenario, paper)
        with self._stage("ask"):
            self._ask_all(session, asker, paper)
        self._tell_server(session)

    def _step(self) -> int:
        return 0 if self._asker is None else self._asker.step

    def _leave(self) -> None:
        if self._asker is not None:
            self._asker.close()

    def _open(self, scenario: Scenario, paper: Paper) -> tuple[Session, Asker]:
        from specdebug.apps.evaluation.askers import asker_of

        arm = self._payload["arm"]
        target, options = find_target(scenario.target_of(arm)), scenario.engine_of(arm)
        opening = Opening(f"{scenario.name}-{arm}", self._say, self._busy, over_there=self._over_there())
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
            self._sink.emit("violation", kind=kind, site=site, step=None, detail=text, count=1, data={})
