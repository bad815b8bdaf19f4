"""One request as the front sees it: what has come of it so far, and when."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specdebug.apps.serve.failure import EngineFailure


@dataclass(frozen=True)
class LogprobWish:
    """Log probabilities of each token that comes out; of each position, too, the ``top`` greatest and those of ``ids``.
    ``start``: of the prompt's tokens behind this one as well; they are computed and not taken from the cache."""

    top: int = 0
    ids: Sequence[int] = ()
    start: int | None = None


TokenLogprobs = tuple[float, list[tuple[float, int]], list[float]]
"""The token's own, the greatest of its position with their tokens, and those of the tokens asked for."""


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
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> bool:
        """Return True if nothing more will come of it."""
        return self.ended is not None

    async def changed(self) -> None:
        """Wait until more has come of it since the last call."""
        await self._news.wait()
        self._news.clear()

    def tell(self) -> None:
        """Wake those that wait."""
        self._news.set()

    def tell_by(self, news: asyncio.Event) -> None:
        """Tell by this event from now on, which several requests may share."""
        self._news = news

    def end(
        self, *, reason: str | None = None, rejected: str | None = None, failure: EngineFailure | None = None
    ) -> None:
        """It has ended, in one of these ways; what comes after is ignored."""
        if self.done:
            return
        self.finish_reason, self.rejected, self.failure = reason, rejected, failure
        self.ended = time.perf_counter()
        self.tell()

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
