"""Which requests run next: first come first served, prefill before decode, chunk by chunk; no clock, no randomness."""

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from specdebug.engine.config import EngineConfig, round_up
from specdebug.engine.errors import EngineError
from specdebug.engine.textbook.memory.prefix_cache import PrefixCache
from specdebug.engine.textbook.memory.req_to_token import Cells
from specdebug.engine.textbook.request import Request, Status


class Reservation:
    """The slots that decoding takes beyond a committed length L: which a request holds from step to step, and which a
    step takes and gives back.

    Under the worker v2 a running request holds what all steps that may be in flight can touch, and a step takes
    nothing. Under v1 one that speculates holds whole pages of what it has committed and nothing more; a step takes
    slots twice, to draft and to verify, and the first are back before the second are taken.
    """

    def __init__(self, config: EngineConfig) -> None:
        spec = config.speculative
        self._page, self._steps, self._most = config.page_size, config.steps_in_flight, config.alloc_len_per_decode
        self._borrower = spec if spec is not None and spec.worker == "v1" else None

    def held(self, request: Request) -> int:
        """Cells beyond its committed length that a running request must hold when a step begins, and the most that it
        may hold when one ends."""
        if not request.speculative:
            return self._steps
        return 0 if self._borrower is not None else self._steps * self._most

    def borrowed(self, requests: Iterable[Request]) -> int:
        """Slots that must be free besides when a step of these begins: it takes no more."""
        if self._borrower is None:
            return 0
        speculating = [request for request in requests if request.speculative]
        drafting = sum(self._lacks(request, self.draft_end(request.kv_len)) for request in speculating)
        return max(drafting, sum(self._lacks(request, self.verify_end(request.kv_len)) for request in speculating))

    def admitted(self, request: Request) -> int:
        """Cells beyond its prompt that there must be room for when a request is admitted."""
        return self._most if self._borrower is not None and request.speculative else self.held(request)

    def draft_end(self, length: int) -> int:
        """The cell behind the last that v1's drafting touches from a committed length: ``num_steps`` for each branch,
        or whole pages of its own for each, of which the first shares the page that the prefix ends in."""
        assert self._borrower is not None
        steps, topk, page = self._borrower.num_steps, self._borrower.eagle_topk, self._page
        if topk == 1 or page == 1:
            return length + topk * steps
        tail = length % page
        return length - tail + topk * round_up(tail + steps, page)

    def verify_end(self, length: int) -> int:
        """The cell behind the last that v1's verify writes."""
        assert self._borrower is not None
        return length + self._borrower.tree_size

    def _lacks(self, request: Request, end: int) -> int:
        return max(round_up(end, self._page) - request.kv_allocated, 0)


class Scheduler:
    """Owns the queues. Slots and rows come from the prefix cache and go back to it."""

    def __init__(self, config: EngineConfig, cache: PrefixCache) -> None:
        self._config = config
        self._cache = cache
        self.reservation = Reservation(config)
        self._grown: list[Cells] = []
        self._slots: list[Tensor] = []
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.chunked: Request | None = None
        self._hold_admission = False

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self.chunked)

    @property
    def holders(self) -> list[Request]:
        """Requests that hold a row."""
        return self.running + ([self.chunked] if self.chunked is not None else [])

    def add(self, request: Request, *, ahead: bool = False) -> None:
        """Queue a request, behind all others or ``ahead`` of them."""
        (self.waiting.appendleft if ahead else self.waiting.append)(request)

    def next_prefill(self) -> list[tuple[Request, int]]:
        """(request, chunk length) pairs of the next prefill batch; empty when decoding should go on."""
        left = self._config.chunked_prefill_size or 1 << 60
        chunks: list[tuple[Request, int]] = []
        if self.chunked is not None:
            length = min(len(self.chunked.all_ids) - self.chunked.kv_len, left)
            if not self._grow((self.chunked, self.chunked.kv_len + length)):
                return []
            chunks.append((self.chunked, length))
            left -= length
        while self.waiting and left > 0 and not self._hold_admission:
            request = self.waiting[0]
            if not self._admit(request):
                break
            self.waiting.popleft()
            length = min(len(request.all_ids) - request.kv_len, left)
            if not self._grow((request, request.kv_len + length)):
                raise EngineError(f"request {request.rid!r} was admitted without slots for its first chunk")
            chunks.append((request, length))
            left -= length
        self._write_rows()
        return chunks

    def prefilled(self, request: Request) -> None:
        """A chunk was computed and ``kv_len`` advanced: the request goes on prefilling, or starts to run."""
        if request.kv_len < len(request.all_ids):
            self.chunked = request
            request.status = Status.PREFILLING
            return
        if self.chunked is request:
            self.chunked = None
        request.status = Status.RUNNING
        self.running.append(request)

    def prepare_decode(self) -> list[Request]:
        """Reserve slots for every running request's next steps, and have as many free as the next one borrows; returns
        those retracted for it, the latest admitted first, which lose least and may still hit what they leave cached."""
        retracted: list[Request] = []
        index = len(self.running) if self._grow(*map(self._next_steps, self.running)) else 0
        while index < len(self.running):
            if self._grow(self._next_steps(self.running[index])):
                index += 1
            else:
                retracted.append(self._retract_latest())
        while not self._cache.make_room(self.reservation.borrowed(self.running)):
            retracted.append(self._retract_latest())
        self._write_rows()
        return retracted

    def _retract_latest(self) -> Request:
        """Retract the request that was admitted last. Raises EngineError if there is no other."""
        self._write_rows()  # nothing may be due when a row is read and given away, or the engine gives up
        victim = self.chunked if self.chunked is not None else self.running[-1]
        if self.chunked is None and len(self.running) == 1:
            raise EngineError(
                f"request {victim.rid!r} alone does not fit in {self._config.usable_slots} KV slots; "
                "raise memory.num_slots"
            )
        self.retract(victim)
        return victim

    def retract(self, request: Request) -> None:
        """Take a running request's slots; it waits, before all others, to come back."""
        self._set_back(request, ahead=True)
        self._hold_admission = True  # another request runs, or there would have been none to make room for

    def put_back(self, request: Request) -> None:
        """Take a running request's place for another one; it waits behind all others."""
        self._set_back(request, ahead=False)
        self._hold_admission = False

    def _set_back(self, request: Request, *, ahead: bool) -> None:
        self._detach(request)
        self._cache.release(request, keep=True)
        request.retractions += 1
        request.status = Status.WAITING
        self.add(request, ahead=ahead)

    def drop(self, request: Request, *, keep: bool) -> None:
        """Take a request out for good (finished or aborted); ``keep`` leaves its KV in the prefix cache."""
        if request.status is Status.WAITING:
            self.waiting.remove(request)
        else:
            self._detach(request)
            self._cache.release(request, keep=keep)
            self._hold_admission = False
        request.status = Status.FINISHED

    def _admit(self, request: Request) -> bool:
        """Give a row and a prefix to ``request`` if its whole prompt and first decode steps will fit."""
        row = self._cache.req_to_token.alloc_row()
        if row is None:
            return False
        request.row = row
        self._cache.attach(request)
        # others count on what a half prefilled one lacks, and on what a step of the running ones borrows
        chunked = 0 if self.chunked is None else max(self._lacks(self.chunked), 0)
        promised = chunked + self.reservation.borrowed(self.running)
        if self._lacks(request) > self._cache.available - promised:
            self._cache.release(request, keep=False)
            return False
        request.status = Status.PREFILLING
        request.hit_len = request.kv_len
        if request.retractions == 0:
            request.cached_tokens = request.hit_len
        return True

    def _lacks(self, request: Request) -> int:
        """Slots that a request needs for its whole prompt and first decode steps beyond those that it has."""
        tokens = len(request.all_ids) + self.reservation.admitted(request)
        return round_up(tokens, self._config.page_size) - request.kv_allocated

    def _grow(self, *wanted: tuple[Request, int]) -> bool:
        """Extend requests' rows to at least so many cells, in whole pages and by one allocation, which
        :meth:`_write_rows` fills. False, and nothing done, when there are too few slots."""
        page = self._config.page_size
        missing = [(request, round_up(tokens, page) - request.kv_allocated) for request, tokens in wanted]
        due = [(request, count) for request, count in missing if count > 0]
        if not due:
            return True
        slots = self._cache.alloc(sum(count for _, count in due))
        if slots is None:
            return False
        self._slots.append(slots)
        for request, count in due:
            self._grown.append((request.row, request.kv_allocated, count))
            request.kv_allocated += count
        return True

    def _next_steps(self, request: Request) -> tuple[Request, int]:
        """The cells that a running request must have for the steps that may be in flight."""
        return request, request.kv_len + self.reservation.held(request)

    def _write_rows(self) -> None:
        """Store what requests have grown by, all at once: a GPU's host pays for each upload."""
        if self._grown:
            places, slots = self._grown, torch.cat(self._slots)
            self._grown, self._slots = [], []
            self._cache.req_to_token.write_rows(places, slots)

    def _detach(self, request: Request) -> None:
        if self.chunked is request:
            self.chunked = None
        elif request in self.running:
            self.running.remove(request)
