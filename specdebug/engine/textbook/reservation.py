"""The slots that decoding takes beyond a committed length: which a request holds from step to step, and which a step
takes and gives back. It is the discipline of a worker; the scheduler asks it what must be there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from specdebug.engine.config import EngineConfig, round_up
from specdebug.engine.textbook.request import Request


class Reservation(Protocol):
    """How many slots decoding takes."""

    def held(self, request: Request) -> int:
        """Cells beyond its committed length that a running request must hold when a step begins, and the most that it
        may hold when one ends."""

    def borrowed(self, requests: Iterable[Request]) -> int:
        """Slots that must be free besides when a step of these begins: it takes no more."""

    def admitted(self, request: Request) -> int:
        """Cells beyond its prompt that there must be room for when a request is admitted."""


class OverReservation:
    """Of the worker v2: a running request holds what all steps that may be in flight can touch, so that a step takes
    nothing."""

    def __init__(self, config: EngineConfig) -> None:
        self._steps = config.steps_in_flight
        self._speculating = config.steps_in_flight * config.alloc_len_per_decode

    def held(self, request: Request) -> int:
        return self._speculating if request.speculative else self._steps

    def borrowed(self, requests: Iterable[Request]) -> int:
        return 0

    def admitted(self, request: Request) -> int:
        return self.held(request)


class StepReservation:
    """Of the worker v1: a request that speculates holds whole pages of what it has committed and nothing more. A step
    takes slots twice, to draft and to verify, and the first are back before the second are taken."""

    def __init__(self, config: EngineConfig) -> None:
        assert config.speculative is not None
        self._spec = config.speculative
        self._page = config.page_size
        self._most = config.alloc_len_per_decode

    def held(self, request: Request) -> int:
        return 0 if request.speculative else 1

    def borrowed(self, requests: Iterable[Request]) -> int:
        speculating = [request for request in requests if request.speculative]
        drafting = sum(self._lacks(request, self.draft_end(request.kv_len)) for request in speculating)
        return max(drafting, sum(self._lacks(request, self.verify_end(request.kv_len)) for request in speculating))

    def admitted(self, request: Request) -> int:
        return self._most if request.speculative else 1

    def draft_end(self, length: int) -> int:
        """The cell behind the last that drafting touches from a committed length: ``num_steps`` for each branch, or
        whole pages of its own for each, of which the first shares the page that the prefix ends in."""
        steps, topk, page = self._spec.num_steps, self._spec.eagle_topk, self._page
        if topk == 1 or page == 1:
            return length + topk * steps
        tail = length % page
        return length - tail + topk * round_up(tail + steps, page)

    def verify_end(self, length: int) -> int:
        """The cell behind the last that a verify writes."""
        return length + self._spec.tree_size

    def _lacks(self, request: Request, end: int) -> int:
        return max(round_up(end, self._page) - request.kv_allocated, 0)


def reservation_of(config: EngineConfig) -> Reservation:
    """The discipline of the worker that ``config`` asks for; without speculation that of v2."""
    first = config.speculative is not None and config.speculative.worker == "v1"
    return StepReservation(config) if first else OverReservation(config)
