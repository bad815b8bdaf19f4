"""Prefix reuse: requests take slots from the radix cache, and leave theirs there."""

from collections.abc import Sequence

from torch import Tensor

from specdebug.async_probe import maybe_detect_page_aligned
from specdebug.engine.config import EngineConfig
from specdebug.engine.textbook.memory.allocator import KVMemory
from specdebug.engine.textbook.memory.radix_cache import RadixCache, RadixKey, beyond
from specdebug.engine.textbook.memory.req_to_token import ReqToToken
from specdebug.engine.textbook.request import Request


class PrefixCache:
    """Moves slots between requests' rows and the radix tree; with the cache off only allocates and frees.
    ``lookahead``: tokens beyond a slot's own that draft KV depends on; 0 without a draft."""

    def __init__(self, config: EngineConfig, memory: KVMemory, req_to_token: ReqToToken, *, lookahead: int) -> None:
        self.memory, self.req_to_token = memory, req_to_token
        self.page_size, self.enabled = config.page_size, config.radix_cache
        self.radix = RadixCache(config.page_size, req_to_token.table.device)
        spec = config.speculative
        self.lookahead = lookahead
        self._draft_kv = memory.draft is not None
        self._recompute = self._draft_kv and spec is not None and spec.draft_kv_on_hit == "recompute"

    @property
    def beyond(self) -> int:
        """Tokens that must follow a position before it is cached, with draft KV that no later token changes."""
        return beyond(self.lookahead)

    @property
    def available(self) -> int:
        """Slots a request could get: free now, or after evicting every unlocked prefix."""
        return self.memory.allocator.num_free + self.radix.evictable_size

    def alloc(self, num_slots: int) -> Tensor | None:
        """Allocate, evicting least recently used prefixes if that is what it takes; None when it does not."""
        return self.memory.alloc(num_slots) if self.make_room(num_slots) else None

    def make_room(self, num_slots: int) -> bool:
        """Have as many slots free, by evicting least recently used prefixes if that is what it takes. False, and
        nothing done, when it does not."""
        missing = num_slots - self.memory.allocator.num_free
        if missing > 0:
            if missing > self.radix.evictable_size:
                return False
            self.memory.free(self.radix.evict(missing))
        return True

    def attach(self, request: Request) -> None:
        """Give a waiting request the longest prefix it can use; its row must be assigned. With ``recompute`` a
        speculating one matches no further than draft KV reaches; otherwise it remembers which slots lack it."""
        if not self.enabled:
            return
        limit = request.cache_limit
        key = self._key(request.all_ids if limit is None else request.all_ids[: limit + self.beyond])
        match = self.radix.match_prefix(key, require_draft_kv=request.speculative and self._recompute)
        self.radix.lock(match.node)
        request.node = match.node
        request.protected_len = request.kv_len = request.kv_allocated = match.slots.numel()
        self.req_to_token.write(request.row, 0, match.slots)
        if request.speculative and self._draft_kv:
            request.unwritten_draft_slots = match.slots[~match.draft_written]

    def publish(self, request: Request) -> None:
        """Put what a request that goes on has committed into the tree; duplicates give way to the tree's."""
        if not self.enabled:
            return
        key = self._key(request.all_ids[: request.kv_len])
        length = len(key) // self.page_size * self.page_size
        if length <= request.protected_len:
            return
        self._insert(request, key)
        match = self.radix.match_prefix(key, require_draft_kv=False)
        self.req_to_token.write(request.row, request.protected_len, match.slots[request.protected_len :])
        self.radix.lock(match.node)
        if request.node is not None:
            self.radix.unlock(request.node)
        request.node = match.node
        request.protected_len = match.slots.numel()

    def release(self, request: Request, *, keep: bool) -> None:
        """Take a request's row and slots back; with ``keep``, what it computed for emitted tokens stays cached."""
        kept = request.protected_len
        if keep and self.enabled:
            key = self._key(request.all_ids[: request.kv_len + 1])
            kept = max(kept, self._insert(request, key))
        first_free = self.req_to_token.slots(request.row, kept, min(kept + 1, request.kv_allocated))
        maybe_detect_page_aligned(first_free, self.page_size, "prefix_cache.release.first_free")
        self.memory.free(self.req_to_token.slots(request.row, kept, request.kv_allocated))
        if request.node is not None:
            self.radix.unlock(request.node)
        self.req_to_token.free_row(request.row)
        request.row = request.kv_len = request.kv_allocated = request.protected_len = 0
        request.node = request.unwritten_draft_slots = None

    def flush(self) -> None:
        """Drop every cached prefix that no request reads."""
        self.memory.free(self.radix.evict(self.radix.evictable_size))

    def _key(self, tokens: Sequence[int]) -> RadixKey:
        return RadixKey(tokens, self.lookahead)

    def _insert(self, request: Request, key: RadixKey) -> int:
        """Offer the row's slots under ``key``, free duplicates; returns how many positions it covers."""
        slots = self.req_to_token.slots(request.row, 0, len(key))
        # A request that ends before its first pass has not zeroed yet what the prefix that it hit lacks.
        lacking = request.unwritten_draft_slots
        draft_written = self._draft_kv and request.speculative and (lacking is None or lacking.numel() == 0)
        result = self.radix.insert(key, slots, draft_written=draft_written)
        if self.memory.draft is not None and result.heal_src.numel():
            self.memory.draft.move_kv_cache(result.heal_dst, result.heal_src)
        self.memory.free(slots[request.protected_len : result.prefix_len])
        return result.length
