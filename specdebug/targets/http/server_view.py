"""What oracles may ask of a server (``serving.ServerView``), over HTTP and of who knows its process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from specdebug.base.errors import one_line
from specdebug.targets.base import RequestView
from specdebug.targets.http.checked import COMPLETED, BadAnswer
from specdebug.targets.http.client import FAILURES, Declined, ServerClient
from specdebug.targets.http.failures import Host, failure_of
from specdebug.targets.http.request import HttpRequest, sampling_params, told_tokens
from specdebug.targets.http.served_texts import ServedTexts
from specdebug.targets.http.server_info import ServerInfo, one_token, own_words, server_info
from specdebug.targets.serving import Lost, SessionFailed, ToldToken

_WITH_LOGPROBS = {"return_logprob": True, "top_logprobs_num": 4}
HEALTH = "server.health"
"""The site of what is wrong with a server that runs and does not answer that it is well."""
_NO_ROUTE = (404, 405, 501)
_OPENAI = "/v1/completions"


class HttpServerView:
    """One server, beside its requests. ``info``: its words before the run, whose violations are not told again.
    ``switch``: it can be asked to serve a request without drafts. ``own``: it is ours."""

    def __init__(
        self,
        client: ServerClient,
        loop: asyncio.AbstractEventLoop,
        answers: Mapping[str, HttpRequest],
        host: Host | None,
        texts: ServedTexts | None = None,
        info: ServerInfo | None = None,
    ) -> None:
        self._client = client
        self._loop = loop
        self._answers = answers
        self._host = host
        self._log = None if host is None else host.log
        self._texts = texts or ServedTexts()
        self.switch = info is not None and info.switch
        self.own = info is not None and bool(info.own)
        self._told = {each["signature"] for each in info.own.get("violations", ())} if info is not None else set[str]()

    def check_alive(self, *, generates: bool) -> SessionFailed | None:
        path, method, body = "/health_generate" if generates else "/health", "GET", None
        if generates and self._host is not None and not self.own:
            # the same of an engine that was started here, which looks only once a second whether it has answered that
            path, method, body = "/generate", "POST", one_token()
        try:
            answer = self._loop.run_until_complete(self._client.ask(method, path, body))
        except FAILURES as error:
            if self._host is not None and self._host.status() is not None:
                return failure_of(error, self._host, self._client.url)
            return SessionFailed(f"{path}: {error}", HEALTH)
        if answer.status_code == 200 or (generates and answer.status_code in _NO_ROUTE):
            return None
        return SessionFailed(f"{path} answers {answer.status_code} {one_line(answer.text, 200)}".rstrip(), HEALTH)

    def counted(self, rid: str) -> Mapping[str, Any]:
        return self._answers[rid].meta if self._answers[rid].finish_reason != "abort" else {}

    def revised(self, rid: str) -> str | None:
        return self._answers[rid].revised

    def owed(self, rid: str) -> int:
        return self._texts.owed(rid)

    def mean_accepted(self) -> float | None:
        return self._texts.mean if self.own else None

    def text(self, rid: str) -> str:
        return self._answers[rid].text

    def told(self, rid: str) -> Sequence[ToldToken]:
        return told_tokens(self._answers[rid].meta)

    def logprobs(self, request: RequestView) -> tuple[Sequence[int], Sequence[ToldToken]] | None:
        if not self.own:
            return None
        asked = sampling_params(request.sampling, seeded=True)
        body = {"input_ids": list(request.prompt_ids), "sampling_params": asked, **_WITH_LOGPROBS}
        try:
            answer = self._loop.run_until_complete(self._client.post("/generate", body))
            meta = answer["meta_info"]
            if not len(meta.get("output_top_logprobs", ())) == len(meta.get("output_token_logprobs", ())) > 0:
                raise BadAnswer("/generate: the answer lacks log probabilities that were asked for")
        except FAILURES as error:
            raise failure_of(error, self._host, self._client.url) from None
        return answer.get("output_ids", ()), told_tokens(meta)

    def pieces(self, request: RequestView) -> tuple[str, str] | None:
        asked = sampling_params(request.sampling)
        body = {"prompt": list(request.prompt_ids), "max_tokens": asked.pop("max_new_tokens"), **asked}
        try:
            return self._loop.run_until_complete(self._in_pieces(body))
        except FAILURES as error:
            if not self.own and isinstance(error, Declined) and error.status in (400, 422, *_NO_ROUTE):
                return None
            raise failure_of(error, self._host, self._client.url) from None

    async def _in_pieces(self, body: Mapping[str, Any]) -> tuple[str, str]:
        async with aclosing(self._client.stream(_OPENAI, {**body, "stream": True}, COMPLETED)) as events:
            streamed = "".join([each["text"] async for event in events for each in event["choices"]])
        whole = await self._client.post(_OPENAI, body, COMPLETED)
        return streamed, "".join(each["text"] for each in whole["choices"])

    def totals(self) -> Mapping[str, Any]:
        states: Sequence[Mapping[str, Any]] = self._understood_info().get("internal_states") or ({},)
        return states[0]

    def findings(self) -> Sequence[tuple[str, str]]:
        own = own_words(self._understood_info() if self.own else {}).get("violations", ())
        said = [(each["signature"], each["detail"]) for each in own]
        new: dict[str, str] = {}
        for signature, text in (*said, *(() if self._log is None else self._log.findings())):
            if signature not in self._told:
                new.setdefault(signature, text)
        self._told |= set(new)
        return list(new.items())

    def new_injections(self) -> Sequence[Mapping[str, Any]]:
        self._server_info()  # asked, an engine also tells its log of those that were not due yet
        return () if self._log is None else self._log.new_injections()

    def lost(self) -> Sequence[Lost]:
        return () if self._log is None else self._log.lost()

    def hits(self) -> Mapping[str, Mapping[str, int]]:
        hits = own_words(self._server_info()).get("reverts")  # asked, an engine also tells its log
        if isinstance(hits, Mapping):
            return hits
        return {} if self._log is None else self._log.hits()

    def reached(self) -> Mapping[str, int]:
        reached = own_words(self._server_info()).get("reached_sites")
        if isinstance(reached, Mapping):
            return reached
        return {} if self._log is None else self._log.reached()

    def _server_info(self) -> Mapping[str, Any]:
        """What the server says of itself; nothing, if it does not any more: that is told elsewhere."""
        try:
            return self._understood_info()
        except SessionFailed:
            return {}

    def _understood_info(self) -> Mapping[str, Any]:
        """The same. Raises SessionFailed where it cannot be understood."""
        try:
            return self._loop.run_until_complete(server_info(self._client))
        except BadAnswer as error:
            raise failure_of(error, self._host, self._client.url) from None
        except FAILURES:
            return {}
