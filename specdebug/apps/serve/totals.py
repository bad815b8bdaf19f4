"""The sums of what an engine has served, and its state after the last step; metrics and ``/server_info`` read them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specdebug.apps.serve.served import ServedRequest

WINDOW_S = 5.0
"""Seconds over which the throughput is measured."""

Heard = Callable[[str, float], None]


@dataclass
class Totals:
    """``heard`` is told of each latency in seconds: ``first_token``, ``inter_token`` and ``e2e``."""

    heard: Heard = lambda what, value: None
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

    def forget_accepted(self) -> None:
        """Begin the mean accept length anew."""
        self.accepted = self.verifies = 0

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
