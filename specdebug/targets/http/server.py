"""One server, beside its requests: what it says of itself, how it is judged, and how its failure is told."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError, one_line
from specdebug.logs.rule import Strength
from specdebug.logs.scan import Scan, name_of, scan_bytes
from specdebug.targets.http.checked import COMPLETED, MODEL_INFO, SERVER_INFO, BadAnswer, Check
from specdebug.targets.http.client import FAILURES, Declined, ServerClient, Silent, Unreachable
from specdebug.targets.http.request import HttpRequest, ServedTexts, sampling_params, told_tokens
from specdebug.targets.launch.log import ServerLog
from specdebug.targets.requests import NOMINAL_LOGIT, NoServer, RequestView, SessionFailed, ToldToken

ONE_TOKEN = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}}
"""A request for one token."""
MAX_DENSE_BYTES = 2 << 30
"""Weights that the dense reference, which computes in float32 on the CPU, is asked to load unless told."""
PRECISIONS = ("float32", "bfloat16", "float16")
MAX_WORDS = 80


class Host(Protocol):
    """A server that was started here: its process and its log."""

    @property
    def log(self) -> ServerLog: ...

    def status(self) -> int | None:
        """Its exit status; None while it runs. One that is about to end is waited for, a moment."""

    def release(self, sound: bool) -> None:
        """The run is over; ``sound``: nothing was found."""


def failure_of(error: Exception, host: Host | None, url: str, rid: str = "") -> SessionFailed:
    """What became of a server of which a call failed: by its process and its log where they are known, else by what it
    said last."""
    told = f"request {rid}: {error}" if rid else str(error)
    status = None if host is None else host.status()
    if host is not None and status is not None:
        log = host.log.scan_run()
        kind, site = split(name_of(log, status))
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        words = "" if log.main is None else f": {log.main.text}"
        about = f"request {rid}: " if rid else ""
        return SessionFailed(f"{about}the server ended ({how}){words}; its log is {host.log.path}", site, kind)
    named = said_in(str(error)) or (None if host is None else _main(host.log.scan_run(), Strength.EXCEPTION))
    if named is not None:
        kind, site = split(named)
        return SessionFailed(told, site, kind)
    if isinstance(error, Silent):
        return SessionFailed(f"{told}, of {url}", "", "hang")
    site = "http.answer" if isinstance(error, BadAnswer) else "http.connection"
    return SessionFailed(f"{told}, of {url}", f"http.{error.status}" if isinstance(error, Declined) else site)


def split(signature: str) -> tuple[str, str]:
    """Kind and site of a signature. What a log names by words, as ``assert:WORDS@PLACE``, ``error:TYPE:WORDS@PLACE`` or
    ``exit:1``, is a failed assertion of the server's at these words, or an error at its type and place."""
    head, _, place = signature.partition("@")
    kind, colon, words = head.partition(":")
    if kind in ("hang", "oom"):
        return kind, "" if kind == "hang" else place
    if not colon or kind == "crash":
        return head, place
    if kind == "error":
        words = ".".join(part for part in (kind, words.partition(":")[0], place) if part)
    elif kind != "assert":
        words = head.replace(":", ".")
    site = re.sub(r"[^\w.#]+", "-", words).strip("-")
    return "assert" if kind == "assert" else "error", f"server.{site[:MAX_WORDS]}"


def said_in(text: str) -> str | None:
    """The signature that some words hold, if any does that names more than an exception."""
    return _main(scan_bytes(text.encode() + b"\n", settings=False), Strength.HANG)


def _main(scan: Scan, weakest: Strength) -> str | None:
    main = scan.main
    return main.signature if main is not None and main.strength <= weakest else None


@dataclass(frozen=True)
class ServerInfo:
    """A server by its own words. ``switch``: it takes ``"speculative": false`` with a request. ``incremental``: its
    events hold what is new. ``told``: all of ``/server_info``."""

    model: str = ""
    version: str = "unknown"
    dtype: str | None = None
    speculative: bool = False
    switch: bool = False
    incremental: bool = False
    ids: bool = True
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> Mapping[str, Any]:
        """What only our own server says; another may say that it takes ``speculative_switch``, and nothing else."""
        own: Mapping[str, Any] = self.told.get("specdebug", {})
        return own if own.keys() - {"speculative_switch"} else {}


async def ask_server(client: ServerClient) -> ServerInfo:
    """Ask a server what it is, and for one token. Raises NoServer for one that says itself that it is not well, or one
    of FAILURES."""
    health = await client.ask("GET", "/health")
    if health.status_code != 200:
        raise NoServer(f"the server at {client.url} is not well: /health answers {health.status_code}")
    told = await server_info(client)
    model = await _first_of(client, MODEL_INFO, "/model_info", "/get_model_info")
    token = await client.post("/generate", ONE_TOKEN)
    dtype = told.get("dtype", "").removeprefix("torch.")
    return ServerInfo(
        model=model.get("model_path") or told.get("model_path") or "",
        version=one_line(told.get("version") or "unknown", 40),
        dtype=dtype if dtype in PRECISIONS else None,
        speculative=told.get("speculative_algorithm") not in (None, "", "none", "NONE"),
        switch=told.get("specdebug", {}).get("speculative_switch", False),
        incremental=bool(told.get("stream_output") or told.get("incremental_streaming_output")),
        ids="output_ids" in token,
        told=told,
    )


def no_server(error: Exception, url: str) -> NoServer:
    """What it means that a server which is said to be there failed what :func:`ask_server` asked."""
    if isinstance(error, Unreachable):
        return NoServer(f"no server answers at {url} ({error}); start one, or name the one that runs")
    status, hint = "", ""
    if isinstance(error, Declined):
        status = f"{error.status}, "
        hint = "; name the variable with its key as api_key" if error.status in (401, 403) else ""
    return NoServer(f"{url} is no server of SGLang's interface: {status}{error}{hint}")


async def server_info(client: ServerClient) -> dict[str, Any]:
    """The facts that a server tells of itself. Raises one of FAILURES."""
    return await _first_of(client, SERVER_INFO, "/server_info", "/get_server_info")


async def _first_of(client: ServerClient, check: Check, newer: str, older: str) -> dict[str, Any]:
    """The answer of the first of two names of a route that there is."""
    try:
        return await client.get_json(newer, check)
    except Declined as error:
        if error.status not in (404, 405):
            raise
    return await client.get_json(older, check)


def is_same_model(name: str, served: str) -> bool:
    """Return True if a scenario's word for a checkpoint and a server's mean the same one."""
    if not served:
        return False
    try:
        here = os.path.realpath(checkpoint_path(name))
    except CheckpointError:
        return name == served
    try:
        return here == os.path.realpath(checkpoint_path(served))
    except CheckpointError:  # of another machine
        return Path(served).name == Path(here).name


def can_be_dense(name: str) -> bool:
    """Return True if the dense reference can load a checkpoint: it is here, of its architecture, and small enough."""
    from specdebug.reference.config import read_config

    try:
        path = checkpoint_path(name)
        read_config(path)
    except CheckpointError:
        return False
    return 0 < sum(file.stat().st_size for file in path.glob("*.safetensors")) <= MAX_DENSE_BYTES


HEALTH = "server.health"
"""The site of what is wrong with a server that runs and does not answer that it is well."""
_NO_ROUTE = (404, 405, 501)
_OPENAI = "/v1/completions"


class HttpServerView:
    """A server, as oracles see it: what one cannot be asked for it does not show. ``info``: its words before the run,
    whose violations are not told again. ``switch``: it can be asked to serve a request without drafts. ``own``: it is
    ours."""

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
        info = info or ServerInfo()
        self.switch = info.switch
        self.own = bool(info.own)
        self._told = {each["signature"] for each in info.own.get("violations", ())}

    def check_alive(self, *, generates: bool) -> SessionFailed | None:
        """Ask it if it is well, by a request of its own if ``generates``; what is wrong, or None. Of one whose process
        is known to have ended, that is what it died of."""
        path, method, body = "/health_generate" if generates else "/health", "GET", None
        if generates and self._host is not None and not self.own:
            # the same of an engine that was started here, which looks only once a second whether it has answered that
            path, method, body = "/generate", "POST", ONE_TOKEN
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
        """Its ``meta_info`` of a request that has ended; empty of one that was aborted."""
        return self._answers[rid].meta if self._answers[rid].finish_reason != "abort" else {}

    def revised(self, rid: str) -> str | None:
        """How the stream of a request took back what it had said; None if it did not."""
        return self._answers[rid].revised

    def owed(self, rid: str) -> int:
        """The least of a request's prompt that must have come out of the cache; 0 where that is not known."""
        return self._texts.owed(rid)

    def mean_accepted(self) -> float | None:
        """The mean accept length that its totals must have; None where that is not known."""
        return self._texts.mean if self.own else None

    def text(self, rid: str) -> str:
        """The text of a request that has ended, its stream put together."""
        return self._answers[rid].text

    def told(self, rid: str) -> Sequence[ToldToken]:
        """The log probabilities that a request was answered with; empty if it did not ask for them."""
        return told_tokens(self._answers[rid].meta)

    def logprobs(self, request: RequestView) -> tuple[Sequence[int], Sequence[ToldToken]] | None:
        """Serve a request once more with log probabilities: its tokens, and a :data:`ToldToken` for each. None of a
        server that is not known to have them for drafts. Raises SessionFailed."""
        if not self.own:
            return None
        asked = sampling_params(request.sampling, seeded=True)
        body = {"input_ids": list(request.prompt_ids), "sampling_params": asked}
        try:
            work = self._client.post("/generate", {**body, "return_logprob": True, "top_logprobs_num": 4})
            meta = (answer := self._loop.run_until_complete(work))["meta_info"]
            if not len(meta.get("output_top_logprobs", ())) == len(meta.get("output_token_logprobs", ())) > 0:
                raise BadAnswer("/generate: the answer lacks log probabilities that were asked for")
        except FAILURES as error:
            raise failure_of(error, self._host, self._client.url) from None
        return answer.get("output_ids", ()), told_tokens(meta)

    def pieces(self, request: RequestView) -> tuple[str, str] | None:
        """Serve a request twice more, by OpenAI's route: the pieces of its streamed text put together, and its text as
        a whole. None of a server without that route. Raises SessionFailed."""
        asked = sampling_params(request.sampling)
        body = {"prompt": list(request.prompt_ids), "max_tokens": asked.pop("max_new_tokens"), **asked}

        async def in_pieces() -> tuple[str, str]:
            async with aclosing(self._client.stream(_OPENAI, {**body, "stream": True}, COMPLETED)) as events:
                streamed = "".join([each["text"] async for event in events for each in event["choices"]])
            whole = await self._client.post(_OPENAI, body, COMPLETED)
            return streamed, "".join(each["text"] for each in whole["choices"])

        try:
            return self._loop.run_until_complete(in_pieces())
        except FAILURES as error:
            if not self.own and isinstance(error, Declined) and error.status in (400, 422, *_NO_ROUTE):
                return None
            raise failure_of(error, self._host, self._client.url) from None

    def totals(self) -> Mapping[str, Any]:
        """Its counts of all requests so far, those of others included. Raises SessionFailed."""
        states: Sequence[Mapping[str, Any]] = self._info().get("internal_states") or ({},)
        return states[0]

    def findings(self) -> Sequence[tuple[str, str]]:
        """New failures that it or its log tells of: the signature, and the words. Raises SessionFailed."""
        own = self._info().get("specdebug", {}).get("violations", ()) if self.own else ()
        said = [(each["signature"], each["detail"]) for each in own]
        new: dict[str, str] = {}
        for signature, text in (*said, *(() if self._log is None else self._log.findings())):
            if signature not in self._told:
                new.setdefault(signature, text)
        self._told |= set(new)
        return list(new.items())

    def hits(self) -> Mapping[str, Mapping[str, int]]:
        """By fix that it was started without, how often each of its edits has run; empty where that is not known."""
        told: Mapping[str, Mapping[str, int]] = self._own_words().get("reverts") or {}
        return told

    def reached(self) -> Mapping[str, int]:
        """By probe site, how often it was passed; empty where that is not known."""
        told: Mapping[str, int] = self._own_words().get("reached_sites", {})
        return told

    def _own_words(self) -> Mapping[str, Any]:
        """What our own server says of itself; nothing, if it does not any more: that is told elsewhere."""
        try:
            words: Mapping[str, Any] = self._info().get("specdebug", {})
        except SessionFailed:
            return {}
        return words

    def _info(self) -> Mapping[str, Any]:
        """What it says of itself; nothing if it does not. Raises SessionFailed where that cannot be understood."""
        try:
            return self._loop.run_until_complete(server_info(self._client))
        except BadAnswer as error:
            raise failure_of(error, self._host, self._client.url) from None
        except FAILURES:
            return {}


TOP = 5
"""Log probabilities asked for at each position. A token that is not among them is no near-tie."""
MAX_QUESTIONS = 16
"""Requests about one text; what follows the last difference by then is taken as it is."""


class PlainText:
    """A reference for ``lossless`` alone: what a model says without drafts, asked of a server. ``same_server``: the one
    that is judged, asked to leave out drafts."""

    def __init__(self, client: ServerClient, *, same_server: bool) -> None:
        self._client = client
        self.same_server = same_server
        self.run: Callable[[Coroutine[Any, Any, Any]], Any]

    def judge(self, ids: Sequence[int], start: int) -> tuple[list[int], list[float], list[float]]:
        """As of the dense reference: the right tokens from position ``start`` on, how far each stands above the one
        given, and the size that a near-tie is measured by. The text goes on as it was emitted: where a token is not the
        right one, the next question begins after it. Raises SessionFailed."""
        choices: list[int] = []
        gaps: list[float] = []
        for _ in range(MAX_QUESTIONS):
            at = start + len(choices)
            if at == len(ids):
                break
            for given, (choice, top) in zip(ids[at:], self.run(self._ask(ids[:at], len(ids) - at)), strict=False):
                choices.append(choice)
                gaps.append(0.0 if choice == given else _gap(given, top))
                if choice != given:
                    break
        rest = list(ids[start + len(choices) :])
        return choices + rest, gaps + [0.0] * len(rest), [NOMINAL_LOGIT] * (len(ids) - start)

    async def close(self) -> None:
        if not self.same_server:
            await self._client.close()

    async def _ask(self, ids: Sequence[int], count: int) -> list[tuple[int, Mapping[int, float]]]:
        """By position the token of plain decoding, and the log probabilities of the best."""
        asked = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": list(ids), "sampling_params": asked, "return_logprob": True}
        body |= {
            "logprob_start_len": -1,
            "top_logprobs_num": TOP,
            **({"speculative": False} if self.same_server else {}),
        }
        meta = (await self._client.post("/generate", body))["meta_info"]
        told = told_tokens(meta)
        if not told or len(told) != len(meta.get("output_top_logprobs") or ()) or not all(top for _, _, top in told):
            raise BadAnswer(f"/generate: {self._client.url} answers without the log probabilities that were asked for")
        return [(token, top) for token, _, top in told]


def _gap(given: int, top: Mapping[int, float]) -> float:
    """How far a token's logit lies below the best."""
    best = max(top.values())
    return best - top[given] if given in top else best - min(top.values()) + NOMINAL_LOGIT
