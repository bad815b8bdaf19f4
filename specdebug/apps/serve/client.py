"""The front's side of the engine: requests go in, what comes of them is told to those that wait, its end is noticed.

An engine can end in three ways: its socket closes (it died, or said why it must end), it says nothing although it has
work (the watchdog kills it), or the front is told to end. Each ends every open request, with an error, and whatever
comes after finds the engine dead.
"""

import asyncio
import contextlib
import itertools
import json
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specdebug.apps.serve.process import ENDING, EngineFailure, EngineProcess, Launch, failure_of
from specdebug.apps.serve.requests import FairQueue, ServedRequest, Wish
from specdebug.base.engine_flags import flag_of
from specdebug.base.errors import SpecDebugError
from specdebug.verdict.outcome import Violation
from specdebug.workers.wire import LineReader

State = Literal["starting", "ready", "dead", "closed"]

DUMP_S = 0.3  # seconds that a hanging engine has to print where it is before it is killed
MAX_VIOLATIONS = 1000
ONE_TOKEN: Mapping[str, Any] = {"max_new_tokens": 1, "temperature": 0.0}
TICK_S = 0.25
"""Seconds between two looks at the clock, and what one look counts for at most: should this machine have been asleep,
the engine is not to blame."""
WINDOW_S = 5.0  # seconds over which the throughput is measured


@dataclass
class Totals:
    """The sums of what an engine has served, and its state after the last step; metrics and ``/server_info`` read them.
    ``heard`` is told of each latency in seconds: ``first_token``, ``inter_token`` and ``e2e``."""

    heard: Callable[[str, float], None] = lambda what, value: None
    vocab_size: int = 0
    steps: int = 0
    running: int = 0
    waiting: int = 0
    used: int = 0
    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    accepted: int = 0
    verifies: int = 0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def gauge(self, event: Mapping[str, Any]) -> None:
        """Take in how much is under way."""
        self.running, self.waiting, self.used = event["running"], event["waiting"], event["used"]

    def step(self, event: Mapping[str, Any], now: float) -> None:
        """Take in a step."""
        self.gauge(event)
        self.steps = event["step"]
        self.accepted += sum(event["accept"].values())
        self.verifies += len(event["accept"])
        self._recent.append((now, sum(map(len, event["emitted"].values()))))
        self._forget_before(now - WINDOW_S)

    def tokens(self, request: ServedRequest, count: int, now: float) -> None:
        """Take in tokens of a request."""
        self.generated_tokens += count
        if request.first is None:
            request.first = now
            self.prompt_tokens += len(request.wish.ids)
            self.cached_tokens += request.cached_tokens
            self.heard("first_token", now - request.began)
        elif request.last is not None:
            for _ in range(count):
                self.heard("inter_token", (now - request.last) / count)
        request.last = now

    def ended(self, request: ServedRequest) -> None:
        """Take in that a request has ended, and not by an error."""
        self.requests += 1
        self.aborted += request.finish_reason == "abort"
        self.heard("e2e", (request.ended or request.began) - request.began)

    @property
    def accept_length(self) -> float:
        """Tokens a verify, the bonus included; 0 before the first."""
        return self.accepted / self.verifies if self.verifies else 0.0

    @property
    def hit_rate(self) -> float:
        """The part of all prompt tokens that came out of the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def throughput(self) -> float:
        """Tokens a second, of the last seconds."""
        now = time.perf_counter()
        self._forget_before(now - WINDOW_S)
        if not self._recent:
            return 0.0
        return sum(count for _, count in self._recent) / max(now - self._recent[0][0], 1e-3)

    def _forget_before(self, when: float) -> None:
        while self._recent and self._recent[0][0] < when:
            self._recent.popleft()


class EngineClient:
    """One engine. ``most_running``: requests that it is given at a time; others wait here for their turn. ``say`` gets
    lines for the log, ``pass_on`` what the engine itself prints."""

    def __init__(
        self,
        launch: Launch,
        *,
        watchdog_s: float,
        most_running: int,
        say: Callable[[str], None],
        pass_on: Callable[[bytes], None],
        start: Callable[[Launch], EngineProcess] = EngineProcess,
    ) -> None:
        self.state: State = "starting"
        self.failure: EngineFailure | None = None
        self.refused: SpecDebugError | None = None  # why the engine cannot be built as asked, if so
        self.totals = Totals()
        self.stack: Mapping[str, Any] = {}
        self.violations: list[Violation] = []
        self.open: dict[str, ServedRequest] = {}
        self._by_key: dict[str, ServedRequest] = {}
        self._numbers = itertools.count()
        self.settled = asyncio.Event()  # set once the engine is ready, or never will be
        self._say, self._pass_on = say, pass_on
        self._watchdog_s = watchdog_s
        self._launch, self._start = launch, start
        self._machine: Mapping[str, Any] | None = None
        self._busy = ""
        self._owed_s = 0.0
        self._queue = FairQueue(most_running)
        self._generated = 0
        self._news = asyncio.Event()
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the engine's process and listen to it. Raises WorkerStartError or MachineFailed."""
        self._process = await asyncio.to_thread(self._start, self._launch)
        reader, self._writer = await asyncio.open_connection(sock=self._process.channel)
        log = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(log), self._process.log)

        async def read_log() -> None:
            while data := await log.read(1 << 16):
                self._process.take_log(data)
                self._pass_on(data)

        self._log_read = asyncio.create_task(read_log())
        self._tasks = [asyncio.create_task(self._listen(reader)), asyncio.create_task(self._watch())]

    async def close(self) -> None:
        """End the engine; open requests end with an error. Returns when its process is gone."""
        if self.state in ("starting", "ready"):
            self.state = "closed"
            self._fail_all(ENDING)
            self._writer.close()
        if self._tasks:
            await self._tasks[0]
            self._tasks[1].cancel()

    @property
    def pid(self) -> int:
        """The number of the engine's process."""
        return self._process.pid

    def submit(self, wishes: Sequence[Wish]) -> list[ServedRequest]:
        """Take in the requests of one body. Raises ValueError if one of a name is open."""
        requests = []
        for wish in wishes:
            if wish.rid in self.open:
                raise ValueError(f"a request with rid {wish.rid!r} is being served")
            request = ServedRequest(wish, str(next(self._numbers)))
            requests.append(request)
            if self.failure is not None or self.state == "closed":
                request.end(failure=self.failure or ENDING)
            else:
                self.open[wish.rid] = self._by_key[request.key] = request
        self._queue.add(requests)
        self._send_due()
        return requests

    def _send_due(self) -> None:
        """Send the engine as many requests as it runs at a time, and those that are due before one of them."""
        for request, gives_way in self._queue.to_send():
            self._send(request.wish.command(request.key, ahead=gives_way is not None))
            if gives_way is not None:
                self._send({"do": "put_back", "rid": gives_way.wish.rid, "key": gives_way.key})

    @property
    def waiting(self) -> int:
        """Requests that wait, here and in the engine."""
        return self.totals.waiting + len(self._queue)

    async def generates(self) -> None:
        """Return once the engine has generated a token, or is gone. It is asked for one where it has nothing to do."""
        before = self._generated
        while self.state == "ready" and self._generated == before:
            if not self.open:
                self.submit([Wish(f"HEALTH_CHECK_{next(self._numbers)}", [0], ONE_TOKEN)])
            await self._news.wait()

    def abort(self, rid: str) -> None:
        """End a request; one that is not open is left alone."""
        request = self.open.get(rid)
        if request is not None:
            if self._queue.has_sent(request):
                self._send({"do": "abort", "rid": rid, "key": request.key})
            self._end_one(request, reason="abort")
            self.totals.ended(request)

    async def flush(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while anything is served."""
        done = bool((await self._ask("flush", "flushed"))["done"])
        if done:
            self.totals.accepted = self.totals.verifies = 0  # the mean accept length begins anew
        return done

    async def coverage(self) -> dict[str, Any]:
        """How often each revert's edits and each probe's site ran."""
        return await self._ask("info", "coverage")

    async def _ask(self, what: str, answer: str) -> dict[str, Any]:
        """Ask the engine for an answer; one that has died, or dies before it, has an empty one."""
        if self.state != "ready":
            return {"done": False}
        if answer not in self._answers:  # those who ask meanwhile share it
            self._answers[answer] = asyncio.get_running_loop().create_future()
            self._send({"do": what})
        return await asyncio.shield(self._answers[answer])

    def _send(self, command: Mapping[str, Any]) -> None:
        if self.state in ("starting", "ready"):
            self._writer.write(json.dumps(command, separators=(",", ":")).encode() + b"\n")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Take in what the engine says until it is gone; then say why."""
        lines = LineReader()
        try:
            while data := await reader.read(1 << 20):
                self._owed_s = 0.0
                for event in lines.feed(data):
                    self._hear(event)
        except ConnectionError:
            pass
        except Exception as error:  # ours: what came of the requests is lost
            self._say("".join(traceback.format_exception(error)).rstrip())
        finally:
            await self._end()

    def _hear(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "step":
                self._on_step(event)
            case "gauges":
                self.totals.gauge(event)
            case "rejected":
                if (request := self._by_key.get(event["key"])) is not None:
                    self._end_one(request, rejected=event["why"])
            case "flushed" | "coverage" as name:
                if (asked := self._answers.pop(name, None)) is not None:
                    asked.set_result(dict(event))
            case "violation":
                violation = Violation(**{key: value for key, value in event.items() if key != "event"})
                if not any(each.signature == violation.signature for each in self.violations):
                    self._say(f"found {violation.signature} at step {violation.step}: {violation.detail}")
                if len(self.violations) < MAX_VIOLATIONS:  # the first name the failure, should there be one
                    self.violations.append(violation)
            case "machine":
                self._machine = event
            case "injected":
                self._say(f"injected {event.get('fault', event.get('name', ''))} at step {event.get('step')}")
            case "stack":
                self.stack = {key: value for key, value in event.items() if key != "event"}
            case "progress":
                self._busy = event["text"]
                if self._busy:
                    self._say(self._busy)
            case "refused":
                flag = flag_of(tuple(event["option"]))
                self.refused = SpecDebugError(f"{flag}: {event['message']}" if flag else event["message"])
                self.refused.exit_code = event["exit_code"]
            case "ready":
                self.totals.vocab_size = event["vocab_size"]
                if self.state == "starting":
                    self.state = "ready"
                    self.settled.set()

    def _on_step(self, event: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        self.totals.step(event, now)
        known = self._by_key  # without those that were aborted meanwhile
        for key in known.keys() & event["cached"].keys():
            known[key].cached_tokens = event["cached"][key]
        for key in event["retracted"]:
            if key in known:
                known[key].retractions += 1
        for key, emitted in event["emitted"].items():
            if (request := known.get(key)) is None:
                continue
            ids = [] if request.wish.silent else emitted
            if key in event["accept"]:
                request.accept.append(event["accept"][key])
            if (logprobs := event["logprobs"].get(key)) is not None:
                request.logprobs += logprobs["output"][: len(ids)]
                request.prompt_logprobs += logprobs["prompt"]
            request.output_ids += ids
            self.totals.tokens(request, len(ids), now)
            if key in event["finished"]:
                reason, request.matched = event["finished"][key]
                self._end_one(request, reason=reason)
                self.totals.ended(request)
            elif ids:
                request.news.set()
        self._queue.served(sum(map(len, event["emitted"].values())))
        self._send_due()
        self._generated += bool(event["emitted"])
        self._tell_news()

    def _tell_news(self) -> None:
        """Wake those who wait for something to happen."""
        self._news.set()
        self._news = asyncio.Event()

    def _end_one(self, request: ServedRequest, *, reason: str | None = None, rejected: str | None = None) -> None:
        del self.open[request.wish.rid], self._by_key[request.key]
        self._queue.ended(request)
        request.end(reason=reason, rejected=rejected)
        self._send_due()
        self._tell_news()

    async def _watch(self) -> None:
        """Kill an engine that says nothing although it has something to do."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            waiting = self.state == "ready" and (self.open or self._answers) and not self._busy
            self._owed_s = self._owed_s + min(time.monotonic() - before, 2 * TICK_S) if waiting else 0.0
            if self._owed_s > self._watchdog_s:
                self._process.dump()
                await asyncio.sleep(DUMP_S)
                self._process.give_up()
                return

    async def _end(self) -> None:
        """The engine is gone, or about to be: find out of what, and end what is open."""
        ended_by_us = self.state == "closed"
        self._writer.close()
        await asyncio.to_thread(self._process.gone)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._log_read, 1.0)
        if not ended_by_us and self.refused is None:
            self.failure = failure_of(
                self._process.worker_end(),
                self.violations,
                self._machine,
                step=self.totals.steps,
                stage="serve" if self.state == "ready" else "start",
                coredump=self.stack.get("coredump"),
            )
            self._say(str(self.failure))
        self.state = "closed" if ended_by_us else "dead"
        self._fail_all(self.failure or ENDING)
        self.settled.set()

    def _fail_all(self, failure: EngineFailure) -> None:
        for request in list(self.open.values()):
            request.end(failure=failure)
            self._queue.ended(request)
        for future in self._answers.values():
            future.set_result({"done": False})
        for each in (self.open, self._by_key, self._answers):
            each.clear()
        self._tell_news()
