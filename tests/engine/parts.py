"""Engine parts put together by hand, with KV that says what it was computed from.

A slot's target KV is a checksum of the tokens up to its position, its draft KV one that includes the next
token as well. Sharing a slot between prompts that differ, reading a released slot or losing a copy then shows
as a wrong number, with no model at all.
"""

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdebug.engine.config import EngineConfig, round_up
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.textbook.memory.allocator import KVMemory, SlotAllocator
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from specdebug.engine.textbook.memory.prefix_cache import PrefixCache
from specdebug.engine.textbook.memory.req_to_token import ReqToToken
from specdebug.engine.textbook.request import Request, SamplingParams
from specdebug.targets.laws import check_pools


def make_config(**options: Any) -> EngineConfig:
    """A checked config of small memory; ``num_slots`` and ``fill`` may be given flat."""
    memory = {"num_slots": options.pop("num_slots", 64), "fill": options.pop("fill", "nan")}
    return EngineConfig.from_dict({"context_length": 64, "memory": memory, **options})


class Parts:
    """Row table, pools and prefix cache of one config."""

    def __init__(self, config: EngineConfig) -> None:
        fill = FillPolicy(config.memory.fill, config.seed)
        self.config = config
        self.req_to_token = ReqToToken(
            config.max_running_requests, config.context_length + config.row_headroom, fill=fill, guards=True
        )
        slots, page = config.usable_slots, config.page_size
        sizes = {"num_slots": slots, "page_size": page, "dtype": torch.float32, "fill": fill}
        target, draft = (MHAPool(num_layers=1, num_kv_heads=1, head_dim=1, **sizes) for _ in range(2))
        self.memory = KVMemory(SlotAllocator(slots, page), target, None if config.speculative is None else draft)
        lookahead = 0 if config.speculative is None else 1
        self.cache = PrefixCache(config, self.memory, self.req_to_token, lookahead=lookahead)
        self._serial = 0

    @property
    def num_free(self) -> int:
        return self.memory.allocator.num_free

    def request(self, prompt: list[int], *, speculative: bool | None = None, max_new_tokens: int = 8) -> Request:
        """A request that owns nothing yet; it speculates if the config does, unless told."""
        self._serial += 1
        spec = self.config.speculative is not None if speculative is None else speculative
        sampling = SamplingParams(max_new_tokens=max_new_tokens)
        return Request(f"r{self._serial}", list(prompt), sampling, spec)

    def admit(self, request: Request) -> bool:
        """A row, the cached prefix and slots for the prompt; False if too few are left."""
        row = self.req_to_token.alloc_row()
        if row is None:
            return False
        request.row = row
        self.cache.attach(request)
        if self.grow(request, len(request.all_ids)):
            return True
        self.cache.release(request, keep=False)
        return False

    def grow(self, request: Request, num_tokens: int) -> bool:
        missing = round_up(num_tokens, self.config.page_size) - request.kv_allocated
        if missing <= 0:
            return True
        slots = self.cache.alloc(missing)
        if slots is None:
            return False
        self.req_to_token.write(request.row, request.kv_allocated, slots)
        request.kv_allocated += missing
        return True

    def compute(self, request: Request, stop: int, *, following: int | None = None) -> None:
        """Write the KV of positions [kv_len, stop); ``following`` is the token after the last known one.

        As the EAGLE worker does, first zeroes the draft KV that the matched prefix lacks.
        """
        slots = request.unwritten_draft_slots
        if self.memory.draft is not None and slots is not None:
            self.memory.draft.zero(slots)
        request.unwritten_draft_slots = None
        tokens = request.all_ids + ([] if following is None else [following])
        slots = self.req_to_token.slots(request.row, request.kv_len, stop)
        positions = range(request.kv_len, stop)
        _store(self.memory.target, slots, [target_mark(tokens, p) for p in positions])
        if self.memory.draft is not None and request.speculative:
            _store(self.memory.draft, slots, [draft_mark(tokens, p) for p in positions])
        request.kv_len = stop

    def prefill(self, request: Request, following: int) -> None:
        """Compute and publish the rest of the prompt, then append the first output token."""
        self.compute(request, len(request.all_ids), following=following)
        self.cache.publish(request)
        request.output_ids.append(following)

    def run(self, prompt: list[int], *, speculative: bool | None = None, following: int = 99) -> Request:
        """A request that went through its whole prefill."""
        request = self.request(prompt, speculative=speculative)
        assert self.admit(request)
        self.prefill(request, following)
        return request

    def target_at(self, request: Request, stop: int) -> list[float]:
        """Target KV of positions [0, stop) as attention would read it."""
        return _load(self.memory.target, self.req_to_token.slots(request.row, 0, stop))

    def draft_at(self, request: Request, stop: int) -> list[float]:
        assert self.memory.draft is not None
        return _load(self.memory.draft, self.req_to_token.slots(request.row, 0, stop))

    def check_target(self, request: Request) -> None:
        """Every committed position holds the KV of this request's own tokens."""
        expected = [target_mark(request.all_ids, p) for p in range(request.kv_len)]
        assert self.target_at(request, request.kv_len) == expected, request.rid

    def check_draft(self, request: Request, *, zeros_allowed: bool = False) -> None:
        """The same of draft KV, as far as the next token is known; a zero-filled prefix may hold zeros."""
        known = min(request.kv_len, len(request.all_ids) - 1)
        expected = [draft_mark(request.all_ids, p) for p in range(known)]
        found = self.draft_at(request, known)
        if zeros_allowed:
            expected = [0.0 if value == 0 else mark for value, mark in zip(found, expected, strict=True)]
        assert found == expected, request.rid

    def laws(self, *holders: Request) -> list[str]:
        return check_pools(self.cache, holders)


def target_mark(tokens: list[int], position: int) -> float:
    """24 bits, so that float32 holds it exactly; never zero."""
    return float((zlib.crc32(np.asarray(tokens[: position + 1]).tobytes()) >> 8) | 1)


def draft_mark(tokens: list[int], position: int) -> float:
    assert position + 1 < len(tokens), "draft KV depends on the next token"
    return float((zlib.crc32(np.asarray(tokens[: position + 2]).tobytes(), 1) >> 8) | 1)


def _store(pool: MHAPool, slots: Tensor, marks: list[float]) -> None:
    content = torch.tensor(marks).view(-1, 1, 1)
    pool.write(0, slots, content, -content)


def _load(pool: MHAPool, slots: Tensor) -> list[float]:
    k, v = pool.read(slots)
    assert torch.equal(k, -v) or bool(k.isnan().any())
    values: list[float] = k.flatten().tolist()
    return values
