"""Requests on a server, all that may be under way at once, in asyncio: no steps, only what has been completed. The loop
runs while a caller waits; between, answers wait in the sockets."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from specdebug.base.abilities import Ability
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError
from specdebug.events import Finishing, Stepped
from specdebug.reference.config import read_config
from specdebug.targets.base import Asked, Opening, Session
from specdebug.targets.http.client import FAILURES, Declined, ServerClient, Silent
from specdebug.targets.http.request import HttpRequest, ServedTexts, sampling_params
from specdebug.targets.http.server import Host, HttpServerView, PlainText, ServerInfo, failure_of
from specdebug.targets.requests import CannotBeServed, RequestView, Sampling, within_context
from specdebug.targets.settings import AnyServer

T = TypeVar("T")

FLUSH_S = 10.0
"""Seconds in which a server that serves nothing must have flushed its cache."""
ABORT_S = 30.0
"""Seconds in which an aborted request must have ended."""
TICK_S = 0.5
"""Seconds between two reports that something comes of requests."""
_AGAIN_S = 0.1
_FULL_TIMES = 60
"""Times that a request is sent again to a server whose queue is full."""


class HttpSession(Session):
    """Serves requests on a server. ``info``: what it says of itself. ``host``: its process, if that was started here.
    Once a :data:`TICK_S` it is reported that something comes of requests."""

    def __init__(
        self,
        client: ServerClient,
        settings: AnyServer,
        asked: Asked,
        shows: frozenset[Ability],
        loop: asyncio.AbstractEventLoop,
        info: ServerInfo,
        opening: Opening,
        reference: PlainText | None = None,
        host: Host | None = None,
    ) -> None:
        self.shows = shows
        try:
            self.vocab_size = read_config(checkpoint_path(asked.model)).vocab_size
        except CheckpointError:
            self.vocab_size = 2**31  # any token id
        self._client = client
        self._settings = settings
        self.asked: Asked = asked
        self._info = info
        self._say = opening.say
        self._loop = loop
        self.reference: PlainText | None = reference
        self._host = host
        self._alive_at = 0.0
        self._noted: set[str] = set()
        self._step = 0
        self._run = uuid.uuid4().hex[:8]  # a server may remember the ids of other runs
        self._answers: dict[str, HttpRequest] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: list[str] = []
        self._to_judge: list[HttpRequest] = []
        self._texts = ServedTexts.of(info.told)
        self.server: HttpServerView = HttpServerView(client, self._loop, self._answers, host, self._texts, info)
        if reference is not None:
            reference.run = self.call

    @property
    def has_work(self) -> bool:
        return bool(self._tasks or self._ended)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the loop until something is done; what fails of the server raises SessionFailed."""
        try:
            return self._loop.run_until_complete(work)
        except FAILURES as error:
            raise failure_of(error, self._host, self._client.url) from error

    async def generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer of ``/generate`` to a body of the caller's own. Raises one of FAILURES."""
        return await _taken(lambda: self._client.post("/generate", body))

    def add(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, *, speculative: bool) -> None:
        if not speculative and self.asked.drafts and not self.server.switch:
            self._note_once("this server cannot leave out drafts for a request; all are served with them")
        sampling = within_context(prompt_ids, sampling, self.asked.context_length, self._note_once, "server")
        answer = HttpRequest(rid, tuple(prompt_ids), sampling, speculative)
        self._answers[rid] = answer
        self._texts.sent(answer)
        self._tasks[rid] = self._loop.create_task(self._serve(answer))

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._say("note", text=text)

    def abort(self, rid: str) -> None:
        """End a request, and wait until the server has. One that had ended by then is reported as any other."""
        answer, task = self._answers[rid], self._tasks.get(rid)
        if task is None or answer.aborting:
            return
        answer.aborting = True
        self.call(self._abort(rid, task))
        if answer.finish_reason == "abort":
            self._texts.ended(answer)
            self._tasks.pop(rid, None)
            self._ended = [each for each in self._ended if each != rid]

    def advance(self) -> Stepped:
        self.call(self._one_ended())
        rids, self._ended = tuple(self._ended), []
        for rid in rids:
            task = self._tasks.pop(rid)
            if error := task.exception():
                if isinstance(error, Declined) and error.status in (400, 413, 422):
                    raise CannotBeServed(rid, f"is declined by the server: {error}")
                if isinstance(error, FAILURES):
                    raise failure_of(error, self._host, self._client.url, rid) from error
                raise error
        ended = [self._answers[rid] for rid in rids]
        for answer in ended:
            self._texts.ended(answer)
            self._tell(answer)
        self._step += 1
        emitted = {each.rid: list(each.streamed) for each in ended}
        cached = {each.rid: each.cached_tokens for each in ended}
        return Stepped(self._step, "served", rids, emitted, cached=cached, finished=rids)

    def request(self, rid: str) -> RequestView:
        return self._answers[rid]

    def flush_cache(self) -> None:
        """Flush the cache, once what is under way has ended: a server that serves is not flushed."""
        if self._tasks:
            self.call(asyncio.wait(self._tasks.values()))
        self.call(flush(self._client))
        self._texts.flushed()

    def settle(self) -> bool:
        """Have requests judged that had to wait, because the server itself is asked what is right."""
        if self._to_judge and "cache_flush" in self.shows:
            self.flush_cache()
        waiting, self._to_judge = self._to_judge, []
        for answer in waiting:
            self.observers.tell(Finishing, answer)
        return False

    def close(self, sound: bool) -> None:
        async def ended() -> None:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._client.close()
            if self.reference is not None:
                await self.reference.close()
            await self._loop.shutdown_asyncgens()

        self._loop.run_until_complete(ended())
        self._loop.close()
        if self._host is not None:
            self._host.release(sound)

    def _tell(self, answer: HttpRequest) -> None:
        if not self.observers or answer.finish_reason == "abort":
            return
        if self.reference is not None and self.reference.same_server:
            self._to_judge.append(answer)  # asking now would change what is cached for those to come
        else:
            self.observers.tell(Finishing, answer)

    async def _one_ended(self) -> None:
        while not self._ended:
            if not self._tasks:
                return
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
            self._ended += [rid for rid, task in self._tasks.items() if task.done() and rid not in self._ended]

    async def _serve(self, answer: HttpRequest) -> None:
        body: dict[str, Any] = {
            "input_ids": list(answer.prompt_ids),
            "sampling_params": sampling_params(answer.sampling, seeded=self.server.own),
            "rid": f"{self._run}-{answer.rid}",
        }
        if not answer.speculative and self.server.switch:
            body["speculative"] = False
        if not self._info.ids:
            body |= {"return_logprob": True, "logprob_start_len": -1}
        await _taken(lambda: self._answered(answer, body))

    async def _answered(self, answer: HttpRequest, body: Mapping[str, Any]) -> None:
        if self._settings.stream:
            async with aclosing(self._client.stream("/generate", {**body, "stream": True})) as events:
                async for event in events:
                    answer.take(event, incremental=self._info.incremental)
                    if (now := self._loop.time()) - self._alive_at >= TICK_S:
                        self._alive_at = now
                        self._say("alive")
        else:
            answer.take(await self._client.post("/generate", body), incremental=False)
        answer.end()

    async def _abort(self, rid: str, task: asyncio.Task[None]) -> None:
        until = self._loop.time() + ABORT_S
        while not task.done():
            # It may not have come to the request yet, for which an abort of it is of one that is unknown.
            answer = await self._client.ask("POST", "/abort_request", {"rid": f"{self._run}-{rid}"})
            if answer.status_code >= 400:
                raise Declined(answer.status_code, f"/abort_request: {answer.text[:200]}")
            await asyncio.wait([task], timeout=_AGAIN_S)
            if self._loop.time() > until:
                raise Silent(f"request {rid} goes on {ABORT_S:g} s after its abort")


async def _taken(send: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What comes of a request that is sent again while the server's queue is full."""
    for _ in range(_FULL_TIMES - 1):
        try:
            return await send()
        except Declined as error:
            if error.status != 503 or error.retry_after_s is None:
                raise
            await asyncio.sleep(min(error.retry_after_s, 1.0))
    return await send()


async def flush(client: ServerClient) -> None:
    """Flush a server's cache; one that has just ended a request may not be idle yet. Raises one of FAILURES."""
    loop = asyncio.get_running_loop()
    until = loop.time() + FLUSH_S
    while True:
        answer = await client.ask("POST", "/flush_cache")
        if answer.status_code < 400:
            return
        if answer.status_code != 400 or loop.time() > until:
            raise Declined(answer.status_code, f"/flush_cache: {answer.text[:200]}")
        await asyncio.sleep(_AGAIN_S / 2)
