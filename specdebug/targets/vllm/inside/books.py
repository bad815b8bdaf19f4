"""The books of vLLM's scheduler, held after every step against laws that its block pool and its requests must keep,
counted anew from the blocks, the free queue and the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

MOST_BLOCKS = 1024
"""Of a larger pool the books are not looked at, for each look counts every block."""


def check_books(scheduler: Any) -> list[str]:
    """Violated laws as ``"<law>: <detail>"``, between two steps of a scheduler; an empty list when all hold."""
    books = _Books(scheduler)
    checks = (books.ownership, books.locks, books.rows, books.hashes, books.lengths, books.reserve)
    return [f"{check.__name__}: {detail}" for check in checks for detail in check()]


class _Books:
    """A scheduler's tables. ``tables``: by group of layers and request, its blocks."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._pool = scheduler.kv_cache_manager.block_pool
        self._managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._tables: list[Mapping[str, list[Any]]] = [each.req_to_blocks for each in self._managers]
        self._null = self._pool.null_block.block_id
        self._holders = Counter(
            block.block_id for table in self._tables for blocks in table.values() for block in blocks
        )
        self._holders.update(block.block_id for _, blocks in scheduler.deferred_frees for block in blocks)
        self._free = Counter(self._listed())

    def _listed(self) -> Iterator[int]:
        """Blocks of the free queue, as its links go; it ends in a block that is none of the pool's."""
        queue = self._pool.free_block_queue
        block, left = queue.fake_free_list_head.next_free_block, len(self._pool.blocks) + 1
        while block is not None and block is not queue.fake_free_list_tail and left:
            yield block.block_id
            block, left = block.next_free_block, left - 1

    def ownership(self) -> Iterator[str]:
        """Free and held blocks are all there are, the free queue lists each free block once."""
        for block in self._pool.blocks:
            at = block.block_id
            if at == self._null:
                continue
            if self._free[at] > 1:
                yield f"block {at} is listed as free {self._free[at]} times"
            elif self._free[at] and self._holders[at]:
                yield f"block {at} is free, and {self._held_by(at)} holds it"
            elif not self._free[at] and not self._holders[at]:
                yield f"block {at} is lost: neither free nor held by a request"
        if self._pool.free_block_queue.num_free_blocks != sum(self._free.values()):
            counted = self._pool.free_block_queue.num_free_blocks
            yield f"{counted} blocks are counted as free, {sum(self._free.values())} are listed"
        yield from self._shared()

    def _shared(self) -> Iterator[str]:
        """A block in two tables is a cached one, at the same place of both, behind the same tokens."""
        requests = self._scheduler.requests
        for manager, table in zip(self._managers, self._tables, strict=True):
            first: dict[int, tuple[str, int]] = {}
            for rid, blocks in table.items():
                for place, block in enumerate(blocks):
                    if block.block_id == self._null:
                        continue
                    other, at = first.setdefault(block.block_id, (rid, place))
                    if (other, at) == (rid, place):
                        continue
                    end = (place + 1) * manager.block_size
                    tokens = [tuple(requests[each].all_token_ids[:end]) for each in (rid, other) if each in requests]
                    if other == rid or at != place or block.block_hash is None or len(set(tokens)) > 1:
                        yield f"block {block.block_id} is held by {other} and {rid}, and is no cached prefix of both"

    def locks(self) -> Iterator[str]:
        """A block's reference count is the number of requests that hold it."""
        for block in self._pool.blocks:
            held = self._holders[block.block_id]
            if block.block_id != self._null and block.ref_cnt != held:
                by = f" ({self._held_by(block.block_id)})" if held else ""
                yield f"block {block.block_id} has ref_cnt {block.ref_cnt}, {held} requests hold it{by}"

    def rows(self) -> Iterator[str]:
        """Only requests that run hold blocks, so that none is held once all have ended."""
        running = {request.request_id for request in self._scheduler.running}
        for table in self._tables:
            for rid, blocks in table.items():
                if blocks and rid not in running:
                    state = "does not run" if rid in self._scheduler.requests else "has ended"
                    yield f"{rid} {state}, and holds {len(blocks)} blocks"

    def hashes(self) -> Iterator[str]:
        """The map of cached blocks and the blocks' own hashes name each other; what is cached is computed and kept."""
        cached, more = self._pool.cached_block_hash_to_block, self._pool.cached_block_hashes_by_block
        known = {
            (key, block.block_id)
            for block in self._pool.blocks
            if block.block_hash is not None
            for key in (block.block_hash, *more.get(block.block_id, ()))
        }
        for key, block in sorted(known, key=lambda each: each[1]):
            if not cached.contain(key, block):
                yield f"block {block} has a hash, and is not cached"
        keys = {key for key, _ in known}
        if len(cached) > len(keys):
            yield f"{len(cached)} hashes are cached, blocks have {len(keys)}"
        for manager in self._managers:
            for rid, count in manager.num_cached_block.items():
                request = self._scheduler.requests.get(rid)
                if request is not None and count * manager.block_size > request.num_computed_tokens:
                    kept = request.num_computed_tokens
                    yield f"{rid} has cached {count} blocks of {manager.block_size}, and keeps {kept} computed tokens"

    def lengths(self) -> Iterator[str]:
        """A request that decodes has computed all but its newest token, so what was rejected is taken back."""
        for request in self._scheduler.running:
            known, computed = request.num_tokens, request.num_computed_tokens - request.num_output_placeholders
            if request.num_output_tokens and not request.is_prefill_chunk and computed != known - 1:
                drafted = f" and {len(request.spec_token_ids)} drafts to verify" if request.spec_token_ids else ""
                yield f"{request.request_id} has computed {computed} tokens of {known}{drafted}, not all but the newest"

    def reserve(self) -> Iterator[str]:
        """A request holds the blocks of what it computed, and none beyond its next drafts and what follows those."""
        ahead = self._scheduler.num_spec_tokens + self._scheduler.num_lookahead_tokens
        for manager, table in zip(self._managers, self._tables, strict=True):
            size = manager.block_size
            for request in self._scheduler.running:
                computed, held = request.num_computed_tokens, len(table.get(request.request_id, ()))
                least, most = -(-computed // size), -(-(computed + 1 + ahead) // size)
                if not least <= held <= most:
                    yield f"{request.request_id} holds {held} blocks for {computed} tokens, of {least} to {most}"

    def _held_by(self, block: int) -> str:
        rids = [rid for table in self._tables for rid, blocks in table.items() for b in blocks if b.block_id == block]
        return " and ".join(dict.fromkeys(rids)) or "a request"
