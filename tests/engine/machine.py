"""The scheduler and its memory driven by a model whose next token is a function of the tokens before it."""

import zlib
from typing import Any

from specdebug.engine.config import round_up
from specdebug.engine.textbook.request import Request, Status
from specdebug.engine.textbook.scheduler import Scheduler
from specdebug.targets.laws import Room
from tests.engine.parts import Parts, make_config

NAN = float("nan")


def next_token(tokens: list[int]) -> int:
    return 1 + zlib.crc32(bytes(tokens)) % 3


def output_of(prompt: list[int], length: int) -> list[int]:
    """What any correct schedule emits for a prompt."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class Machine:
    """An engine without models: checksums where a step writes KV, NaN where a step leaves scraps."""

    def __init__(self, **options: Any) -> None:
        self.config = make_config(**options)
        self.parts = Parts(self.config)
        self.scheduler = Scheduler(self.config, self.parts.cache)
        self.room = Room(self.config, self.parts.cache)
        self.requests: list[Request] = []
        self.log: list[Any] = []

    def add(self, prompt: list[int], *, new: int = 4, speculative: bool | None = None, ahead: bool = False) -> Request:
        request = self.parts.request(prompt, speculative=speculative, max_new_tokens=new)
        self.requests.append(request)
        self.scheduler.add(request, ahead=ahead)
        return request

    def abort(self, request: Request) -> None:
        if not request.finished:
            self.scheduler.drop(request, keep=False)
        self.check()

    def put_back(self, request: Request) -> None:
        if request.status is Status.RUNNING:
            self.scheduler.put_back(request)
        self.check()

    def step(self) -> tuple[Any, ...]:
        """("prefill", (rid, length), ...), ("decode", retracted rids, running rids) or ("idle",)."""
        self.room.begin(self.scheduler.running, self.scheduler.chunked, self.scheduler.waiting)
        chunks = self.scheduler.next_prefill()
        did: tuple[Any, ...] = ("idle",)
        if chunks:
            did = ("prefill", *((request.rid, length) for request, length in chunks))
            self._prefill(chunks)
        elif self.scheduler.running:
            retracted = self.scheduler.prepare_decode()
            running = list(self.scheduler.running)
            did = ("decode", tuple(r.rid for r in retracted), tuple(r.rid for r in running))
            first = self.config.steps_in_flight == 1
            drafting = [request for request in running if request.speculative and first]
            for request in running:
                if request not in drafting:
                    self._decode(request)
            self._decode_v1(drafting)
        self.room.end()
        self.log.append(did)
        self.check()
        return did

    def run(self, limit: int = 500) -> None:
        for _ in range(limit):
            if not self.scheduler.has_work:
                return
            assert self.step() != ("idle",)
        raise AssertionError(f"unfinished after {limit} steps")

    def check(self) -> None:
        assert self.parts.laws(*self.scheduler.holders) == []
        problems = self.room.check(self.scheduler.holders)
        assert problems == [], problems
        assert self.parts.req_to_token.check_guards() == []
        for request in self.scheduler.holders:
            self.parts.check_target(request)
            if request.speculative:
                self.parts.check_draft(request)

    def _prefill(self, chunks: list[tuple[Request, int]]) -> None:
        for request, length in chunks:
            self.parts.check_target(request)
            tokens = request.all_ids
            following = next_token(tokens)
            self.parts.compute(request, request.kv_len + length, following=following)
            self.scheduler.prefilled(request)
            self.parts.cache.publish(request)
            if request.status is Status.RUNNING:
                self._emit(request, [following])

    def _decode(self, request: Request) -> None:
        config, slots = self.config, self.parts.req_to_token
        spec = config.speculative if request.speculative else None
        reserved = config.alloc_len_per_decode if spec else 1
        assert request.kv_allocated >= request.kv_len + config.steps_in_flight * reserved
        for pool in (self.parts.memory.target, self.parts.memory.draft):
            if pool is not None and (spec or pool is self.parts.memory.target):
                pool.k[0][slots.slots(request.row, request.kv_len, request.kv_len + reserved)] = NAN
        self._accept(request)

    def _decode_v1(self, requests: list[Request]) -> None:
        """Draft slots are taken and given back, then those of a verify, of which the accepted stay."""
        cache, page, rows = self.parts.cache, self.config.page_size, self.parts.req_to_token
        spec, allocator = self.config.speculative, self.parts.memory.allocator
        if not requests or spec is None:
            return
        assert all(each.kv_allocated == round_up(each.kv_len, page) for each in requests)
        need = self.scheduler.reservation.borrowed(requests)
        with self.parts.memory.borrow_to_draft(need) as slots:
            assert slots.numel() == need
        for request in requests:
            more = round_up(request.kv_len + spec.tree_size, page) - request.kv_allocated
            fresh = allocator.alloc(max(more, 0))
            assert fresh is not None, "the scheduler made room for all of them"
            rows.write(request.row, request.kv_allocated, fresh)
            request.kv_allocated += fresh.numel()
            for pool in (self.parts.memory.target, self.parts.memory.draft):
                assert pool is not None
                pool.k[0][rows.slots(request.row, request.kv_len, request.kv_len + spec.tree_size)] = NAN
        for request in requests:
            kept = request.count_kept(self._offered(request))
            end = round_up(request.kv_len + kept, page)
            cache.memory.free(rows.slots(request.row, end, request.kv_allocated))
            request.kv_allocated = min(request.kv_allocated, end)
            self._accept(request)

    def _offered(self, request: Request) -> list[int]:
        spec = self.config.speculative if request.speculative else None
        accepted = 1 + (zlib.crc32(bytes(request.all_ids), 7) % min(spec.num_steps + 1, spec.tree_size) if spec else 0)
        return output_of(request.all_ids, accepted)

    def _accept(self, request: Request) -> None:
        tokens, start = self._offered(request), request.kv_len
        kept = self._emit(request, tokens)
        if not request.finished:
            assert request.kv_len == start
            self.parts.compute(request, start + len(kept))

    def _emit(self, request: Request, tokens: list[int]) -> list[int]:
        kept = request.accept_tokens(tokens)
        if request.finish_reason is not None:
            if request.kv_len < len(request.all_ids) - 1:
                self.parts.compute(request, len(request.all_ids) - 1)
            self.scheduler.drop(request, keep=True)
        return kept
