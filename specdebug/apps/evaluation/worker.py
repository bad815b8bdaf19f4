"""An evaluation inside its worker: a run of a session (``run/session_run.py``) that asks, and tells of each answer as
it comes. Questions go to a session token by token, or to a server as text, and are answered in any order.

Events are those of an arm (``verdict/ledger.py``), and ``answer`` and ``server``, which ``run.py`` reads.
"""

from __future__ import annotations

import asyncio
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdebug.base.errors import SpecDebugError
from specdebug.run.session_run import SessionRun
from specdebug.scenario.workload import RequestSampling
from specdebug.targets.base import Opening, Session
from specdebug.targets.registry import find_target
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.scenario.grammar import Scenario
    from specdebug.targets.http.session import HttpSession


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
        # what a server counts of accept lengths itself, and failures that it or its log names
        tells, server = "accept_lengths" in session.shows, session.server
        own = None if server is None else server.totals().get("avg_spec_accept_length")
        self._sink.emit("server", tells_accepts=tells, accept_length=own if isinstance(own, int | float) else None)
        for signature, text in () if server is None else server.findings():
            kind, _, site = signature.partition("@")
            self._sink.emit("violation", kind=kind, site=site, step=None, detail=text, count=1, data={})

    def _step(self) -> int:
        return 0 if self._asker is None else self._asker.step

    def _leave(self) -> None:
        if self._asker is not None:
            self._asker.close()

    def _open(self, scenario: Scenario, paper: Paper) -> tuple[Session, Asker]:
        arm = self._payload["arm"]
        target, options = find_target(scenario.target_of(arm)), scenario.engine_of(arm)
        opening = Opening(f"{scenario.name}-{arm}", self._say, self._busy, over_there=self._over_there())
        session = self._session = target.open(options, self._payload["seed"], opening)
        name, lacks = target.traits.name, target.traits.lacks
        self._sink.emit("target", name=name, lacks=lacks, looking=["eval"], cannot_show=[])
        asked = session.asked or target.asked(options)
        if asked.server:
            served: Any = session
            self._asker = ServerAsker(served, paper.max_new_tokens, odds=paper.odds)
        else:
            self._asker = SessionAsker(session, asked.model, paper.max_new_tokens, odds=paper.odds)
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


TOP = 100  # likeliest first tokens that are looked at; one of a choice's that is not among them is next to impossible


@dataclass(frozen=True)
class Put:
    """A question as it is put. ``place``: where it stands in its file."""

    number: int
    prompt: str
    place: str


@dataclass(frozen=True)
class Answered:
    """An answer. ``verifies``: tokens that each accepted; ``top``: the likeliest first tokens, where they were wanted.
    ``ids``: its tokens; of a server that tells only how many, zeros."""

    number: int
    text: str
    ids: Sequence[int]
    verifies: Sequence[int]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    top: Sequence[tuple[float, str]] = ()


class Asker(ABC):
    """Puts questions and waits for answers. ``step``: steps of the engine so far or, where it shows none, waits."""

    step = 0

    @abstractmethod
    def ask(self, put: Put) -> int | None:
        """Put a question; returns the tokens of its prompt where they are known. Raises SpecDebugError for one that
        cannot be served."""

    @abstractmethod
    def wait(self) -> Sequence[Answered]:
        """Answers that have come, after one step or one wait."""

    def close(self) -> None:  # noqa: B027 (a session goes with its worker)
        """Wait for nothing more."""


class SessionAsker(Asker):
    """Asks a session in this process; prompts are encoded by the target's own tokenizer."""

    def __init__(self, session: Session, model: str, max_new_tokens: int, *, odds: bool) -> None:
        from specdebug.apps.serve.text import ModelText
        from specdebug.targets.logprobs import LogprobRecorder

        if odds and session.inside is None:
            raise SpecDebugError("this target tells no log probabilities; ask by generation")
        self._session = session
        self._model = ModelText(model)
        self._sampling = RequestSampling(max_new_tokens, stop_token_ids=self._model.eos_ids)
        self._recorder = LogprobRecorder(session.inside) if odds else None
        self._top: dict[str, Sequence[tuple[float, int]]] = {}

    def ask(self, put: Put) -> int:
        rid = str(put.number)
        ids = self._model.encode(put.prompt)
        try:
            self._session.add(rid, ids, self._sampling, speculative=True)
        except SpecDebugError as error:
            raise _unserved(put, error) if error.exit_code == 2 else error from None
        if self._recorder is not None:
            self._recorder.want(rid, {"top": TOP, "ids": [], "start": None})
        return len(ids)

    def wait(self) -> Sequence[Answered]:
        report = self._session.advance()
        self.step += 1
        if self._recorder is not None:
            for rid, told in self._recorder.take(report.emitted).items():
                self._top[rid] = told["output"][0][1]
                self._recorder.forget(rid)  # of the first token alone
        return [self._answer(rid) for rid in report.finished]

    def _answer(self, rid: str) -> Answered:
        request = self._session.request(rid)
        matched = request.matched_stop
        ids = list(request.output_ids)
        shown = ids[:-1] if isinstance(matched, int) and ids[-1:] == [matched] else ids
        return Answered(
            int(rid),
            self._model.decode(shown),
            ids,
            tuple(request.accept_lengths) if "accept_lengths" in self._session.shows else (),
            str(request.finish_reason),
            len(request.prompt_ids),
            request.cached_tokens,
            [(value, self._model.decode([token], skip_special=False)) for value, token in self._top.pop(rid, ())],
        )


class ServerAsker(Asker):
    """Asks a server, which encodes the prompts: nothing of its model need be here."""

    def __init__(self, session: HttpSession, max_new_tokens: int, *, odds: bool) -> None:
        self._session = session
        self._more: dict[str, Any] = {"sampling_params": {"max_new_tokens": max_new_tokens, "temperature": 0}}
        if odds:
            self._more |= {
                "return_logprob": True,
                "logprob_start_len": -1,
                "top_logprobs_num": TOP,
                "return_text_in_logprobs": True,
            }
        self._odds = odds
        self._tasks: dict[asyncio.Task[Answered], Put] = {}

    def ask(self, put: Put) -> None:
        async def begin() -> asyncio.Task[Answered]:
            return asyncio.create_task(self._served(put))

        self._tasks[self._session.call(begin())] = put

    def wait(self) -> Sequence[Answered]:
        done, _ = self._session.call(asyncio.wait(list(self._tasks), return_when=asyncio.FIRST_COMPLETED))
        self.step += 1
        return [self._result(task) for task in list(self._tasks) if task in done]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _result(self, task: asyncio.Task[Answered]) -> Answered:
        from specdebug.targets.http.client import Declined

        put, error = self._tasks.pop(task), task.exception()
        if isinstance(error, Declined) and error.status in (400, 413, 422):
            raise _unserved(put, error)

        async def result() -> Answered:
            return await task

        return self._session.call(result())  # which names what became of the server

    async def _served(self, put: Put) -> Answered:
        from specdebug.targets.http.checked import MOST_ENTRIES, BadAnswer
        from specdebug.targets.http.request import accept_lengths_of

        answer = await self._session.generate({"text": put.prompt, **self._more})
        meta, text = answer["meta_info"], answer.get("text")
        if text is None:
            raise BadAnswer("/generate: text is missing")
        kind = meta.get("finish_reason", {}).get("type", "none")
        if kind not in ("stop", "length"):
            raise BadAnswer(f"/generate: ended by {kind}")
        ids = answer.get("output_ids")
        if ids is None:
            ids = [0] * min(meta.get("completion_tokens", 0), MOST_ENTRIES)
        return Answered(
            put.number,
            text,
            ids,
            accept_lengths_of(meta, len(ids)),
            kind,
            meta.get("prompt_tokens", 0),
            meta.get("cached_tokens", 0),
            _first_of(meta) if self._odds else (),
        )


def _first_of(meta: Mapping[str, Any]) -> list[tuple[float, str]]:
    """The likeliest first tokens of an answer. Raises BadAnswer."""
    from specdebug.targets.http.checked import BadAnswer

    best = meta.get("output_top_logprobs")
    if not best:
        raise BadAnswer("/generate: answers without the log probabilities that were asked for")
    return [(chance, text) for chance, _, text in best[0] if text is not None]


def _unserved(put: Put, error: Exception) -> SpecDebugError:
    return SpecDebugError(f"{put.place}: this question cannot be served: {error}; fewer shots make it shorter")
