"""Questions on their way: put to a session token by token, or to a server as text, and answered in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from specdebug.base.errors import SpecDebugError
from specdebug.scenario.workload import RequestSampling
from specdebug.targets.base import Asked, Session

if TYPE_CHECKING:
    from specdebug.targets.http.session import HttpSession

TOP = 100
"""Likeliest first tokens that are looked at; one of a choice's that is not among them is next to impossible."""


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


class Asker(Protocol):
    """Puts questions and waits for answers."""

    step: int
    """Steps so far, of the engine or, where it shows none, of waiting."""

    def ask(self, put: Put) -> int | None:
        """Put a question; returns the tokens of its prompt where they are known. Raises SpecDebugError for one that
        cannot be served."""

    def wait(self) -> Sequence[Answered]:
        """Answers that have come, after one step or one wait."""

    def close(self) -> None:
        """Wait for nothing more."""


class SessionAsker:
    """Asks a session in this process; prompts are encoded by the target's own tokenizer."""

    def __init__(self, session: Session, model: str, max_new_tokens: int, *, odds: bool) -> None:
        from specdebug.apps.serve.logprobs import LogprobRecorder
        from specdebug.apps.serve.text import ModelText

        if odds and session.inside is None:
            raise SpecDebugError("this target tells no log probabilities; ask by generation")
        self.step = 0
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

    def close(self) -> None:
        """Do nothing: the session goes with its worker."""


class ServerAsker:
    """Asks a server, which encodes the prompts: nothing of its model need be here."""

    def __init__(self, session: HttpSession, max_new_tokens: int, *, odds: bool) -> None:
        self.step = 0
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
        self._tasks[self._session.call(self._begun(put))] = put

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
        return self._session.call(_awaited(task))  # which names what became of the server

    async def _begun(self, put: Put) -> asyncio.Task[Answered]:
        return asyncio.create_task(self._served(put))

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


async def _awaited(task: asyncio.Task[Answered]) -> Answered:
    return await task


def _first_of(meta: Mapping[str, Any]) -> list[tuple[float, str]]:
    """The likeliest first tokens of an answer. Raises BadAnswer."""
    from specdebug.targets.http.checked import BadAnswer

    best = meta.get("output_top_logprobs")
    if not best:
        raise BadAnswer("/generate: answers without the log probabilities that were asked for")
    return [(chance, text) for chance, _, text in best[0] if text is not None]


def _unserved(put: Put, error: Exception) -> SpecDebugError:
    return SpecDebugError(f"{put.place}: this question cannot be served: {error}; fewer shots make it shorter")


def asker_of(session: Session, asked: Asked, max_new_tokens: int, *, odds: bool) -> Asker:
    """The asker for a session. ``odds``: log probabilities of first tokens are wanted. Raises SpecDebugError."""
    if asked.server:
        served: Any = session
        return ServerAsker(served, max_new_tokens, odds=odds)
    return SessionAsker(session, asked.model, max_new_tokens, odds=odds)
