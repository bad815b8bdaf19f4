"""One request as the front sees it, and the order in which requests go to the engine.

Each client's body gets its share, however much another asks for: weighted fair queueing (Demers, Keshav and Shenker,
1989), with tokens for bits. A request is due when a server that gave all waiting bodies an equal part would be done
with it. A short one overtakes the long ones that wait, a batch of thousand is passed by all that come behind it, and
nothing waits for ever. Where long ones hold every place, the one that is due last gives up its own to one that is due
earlier, once it has had its turn; the engine has its KV cached and goes on with it when a place is free.
"""

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from specdebug.apps.serve.process import EngineFailure

TURN = 32  # tokens that a request puts out before another may have its place: shorter outputs are never put back

TokenLogprobs = tuple[float, list[tuple[float, int]], list[float]]
"""The token's own, the greatest of its position with their tokens, and those of the tokens asked for."""


@dataclass(frozen=True)
class LogprobWish:
    """Log probabilities of each token that comes out; of each position, too, the ``top`` greatest and those of ``ids``.
    ``start``: of the prompt's tokens behind this one as well; they are computed and not taken from the cache."""

    top: int = 0
    ids: Sequence[int] = ()
    start: int | None = None


@dataclass(frozen=True)
class Wish:
    """A request as the engine gets it. ``sampling``: fields of the engine's ``SamplingParams``. ``logprobs``: the
    log probabilities that are wanted, None where there are none to be. ``silent``: what comes out is dropped."""

    rid: str
    ids: Sequence[int]
    sampling: Mapping[str, Any]
    speculative: bool = True
    logprobs: LogprobWish | None = None
    silent: bool = False

    @property
    def most_tokens(self) -> int:
        """Tokens of the prompt and output, at most."""
        return len(self.ids) + int(self.sampling.get("max_new_tokens", 1))

    def command(self, key: str, *, ahead: bool) -> dict[str, Any]:
        """The line that adds it under the front's ``key``, behind all others or ``ahead`` of them."""
        own = {"key": key, "rid": self.rid, "ids": list(self.ids), "sampling": dict(self.sampling)}
        logprobs = None if self.logprobs is None else asdict(self.logprobs)
        return {"do": "add", **own, "speculative": self.speculative, "logprobs": logprobs, "ahead": ahead}


@dataclass(eq=False)
class ServedRequest:
    """A request that was sent to the engine.

    Attributes:
        key: what engine and front call it: its name may be used again as soon as it has ended here.
        output_ids: tokens so far; ``logprobs`` has an entry for each, where they are wanted.
        prompt_logprobs: of the prompt, an entry for each token behind the one from which they are wanted.
        accept: tokens that each verify accepted, the bonus included.
        finish_reason: stop, length or abort, once it has ended.
        matched: the token or text that stopped it.
        rejected: why the engine does not take it, if so.
        failure: the engine died, or is being ended, before it was done.
        began, first, last, ended: times by ``time.perf_counter``.
        news: set when more has come of it; several requests may share one.
    """

    wish: Wish
    key: str
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    accept: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    retractions: int = 0
    finish_reason: str | None = None
    matched: int | str | None = None
    rejected: str | None = None
    failure: EngineFailure | None = None
    began: float = field(default_factory=time.perf_counter)
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> bool:
        """Return True if nothing more will come of it."""
        return self.ended is not None

    async def changed(self) -> None:
        """Wait until more has come of it since the last call."""
        await self.news.wait()
        self.news.clear()

    def end(
        self, *, reason: str | None = None, rejected: str | None = None, failure: EngineFailure | None = None
    ) -> None:
        """It has ended, in one of these ways; what comes after is ignored."""
        if self.done:
            return
        self.finish_reason, self.rejected, self.failure = reason, rejected, failure
        self.ended = time.perf_counter()
        self.news.set()

    def meta_info(self, *, tree_size: int | None, weight_version: str) -> dict[str, Any]:
        """SGLang's ``meta_info``. ``tree_size``: of an engine that speculates."""
        reason: dict[str, Any] | None = None
        if self.finish_reason == "length":
            reason = {"type": "length", "length": len(self.output_ids)}
        elif self.finish_reason == "stop":
            reason = {"type": "stop", "matched": self.matched}
        elif self.finish_reason is not None:
            reason = {"type": "abort", "message": "Aborted"}
        meta: dict[str, Any] = {
            "id": self.wish.rid,
            "finish_reason": reason,
            "prompt_tokens": len(self.wish.ids),
            "weight_version": weight_version,
            "num_retractions": self.retractions,
            "completion_tokens": len(self.output_ids),
            "cached_tokens": self.cached_tokens,
            "e2e_latency": (self.ended or time.perf_counter()) - self.began,
        }
        return meta if tree_size is None else meta | self._speculation(tree_size)

    def _speculation(self, tree_size: int) -> dict[str, Any]:
        verifies = len(self.accept)
        if not verifies:
            return {"spec_verify_ct": 0}
        accepted, drafted = sum(self.accept) - verifies, verifies * (tree_size - 1)
        times = Counter(length - 1 for length in self.accept)
        return {
            "spec_verify_ct": verifies,
            "spec_accept_length": len(self.output_ids) / verifies,
            "spec_accept_rate": accepted / drafted,
            "spec_accept_token_num": accepted,
            "spec_draft_token_num": drafted,
            "spec_accept_histogram": [times[drafts] for drafts in range(max(times) + 1)],
        }


@dataclass
class _Sent:
    """A request that the engine has. ``due``: when, in the queue's tokens. ``since``: tokens of its output as it last
    came to the engine, or gave up its place."""

    request: ServedRequest
    due: float
    since: int = 0


class FairQueue:
    """Requests that wait to be sent, and those that were, no more than ``places`` of which the engine runs at a time.
    Of those that wait and have ended meanwhile nothing is counted."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: list[tuple[float, int, ServedRequest]] = []
        self._sent: dict[ServedRequest, _Sent] = {}
        self._numbers = count()
        self._now = 0.0  # tokens that each of them would have had by now

    def add(self, requests: Sequence[ServedRequest]) -> None:
        """Take in the requests of one body."""
        due = self._now
        for each in requests:
            due += each.wish.most_tokens
            heapq.heappush(self._waiting, (due, next(self._numbers), each))

    def to_send(self) -> Iterator[tuple[ServedRequest, ServedRequest | None]]:
        """The requests that are to be sent now, in order, each with the one that gives up its place to it; None where
        a place is free."""
        while self._waiting:
            due, _, request = self._waiting[0]
            if request.done:
                heapq.heappop(self._waiting)
                continue
            last = None
            if len(self._sent) >= self._places and (last := self._give_way(due)) is None:
                return
            heapq.heappop(self._waiting)
            self._sent[request] = _Sent(request, due)
            self.served(len(request.wish.ids))
            yield request, last

    def served(self, tokens: int) -> None:
        """The engine has served so many tokens, of whichever requests."""
        self._now += tokens / max(len(self._sent) + len(self._waiting), 1)

    def _give_way(self, due: float) -> ServedRequest | None:
        """The request that is due last, and later than that, of those that have had their turn."""
        had = [each for each in self._sent.values() if len(each.request.output_ids) - each.since >= TURN]
        last = max(had, key=lambda each: each.due, default=None)
        if last is None or last.due <= due:
            return None
        last.since = len(last.request.output_ids)
        return last.request

    def has_sent(self, request: ServedRequest) -> bool:
        """Return True if the engine has it."""
        return request in self._sent

    def ended(self, request: ServedRequest) -> None:
        """Nothing more will come of a request."""
        self._sent.pop(request, None)

    def __len__(self) -> int:
        return sum(not request.done for _, _, request in self._waiting)
