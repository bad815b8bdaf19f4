"""Requests and the prefix cache: what is shared, what is healed, what is freed."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.textbook.request import Request
from tests.engine.parts import Parts, draft_mark, make_config

EAGLE = {"num_steps": 2}
PROMPT = list(range(20, 31))  # 11 tokens: 10 slots can be cached, 8 of them in pages of 4


def _parts(page_size: int = 4, *, mode: str | None = "recompute", **options: Any) -> Parts:
    spec = None if mode is None else {**EAGLE, "draft_kv_on_hit": mode}
    return Parts(make_config(page_size=page_size, speculative=spec, **options))


def _slots(parts: Parts, request: Request, stop: int) -> list[int]:
    slots: list[int] = parts.req_to_token.slots(request.row, 0, stop).tolist()
    return slots


@pytest.mark.parametrize(("page_size", "shared"), [(1, 10), (4, 8), (16, 0)])
@pytest.mark.parametrize("mode", [None, "recompute", "zero_fill"])
def test_a_second_prompt_reads_the_slots_of_the_first(page_size: int, shared: int, mode: str | None) -> None:
    parts = _parts(page_size, mode=mode)
    first = parts.run(PROMPT)
    second = parts.request(PROMPT)
    assert parts.admit(second)
    assert second.kv_len == second.protected_len == shared
    assert second.kv_allocated >= len(PROMPT)
    assert _slots(parts, second, shared) == _slots(parts, first, shared)
    assert set(_slots(parts, second, len(PROMPT))[shared:]).isdisjoint(_slots(parts, first, len(PROMPT)))
    parts.prefill(second, following=7)
    parts.check_target(second)
    assert parts.laws(first, second) == []


@pytest.mark.parametrize(("mode", "shared"), [(None, 4), ("recompute", 3), ("zero_fill", 3)])
def test_with_a_draft_the_last_shared_slot_depends_on_the_token_after_it(mode: str | None, shared: int) -> None:
    parts = _parts(1, mode=mode)
    parts.run([1, 2, 3, 4, 5, 6])
    other = parts.run([1, 2, 3, 4, 9, 9])
    assert parts.cache.radix.total_size == shared + 2 * (5 - shared)
    parts.check_target(other)
    if mode is not None:
        parts.check_draft(other)


def test_kv_past_the_last_emitted_token_is_not_cached() -> None:
    """A verify commits what it accepted; the request may have stopped in the middle of that."""
    parts = _parts(1)
    request = parts.run(PROMPT, following=7)
    parts.grow(request, 20)
    request.kv_len = 17
    parts.cache.release(request, keep=True)
    assert parts.cache.radix.total_size == len(PROMPT)
    assert parts.num_free == parts.config.usable_slots - len(PROMPT)
    assert parts.laws() == []


def test_recompute_stops_where_draft_kv_ends_and_heals_it() -> None:
    parts = _parts(mode="recompute")
    plain = parts.run(PROMPT, speculative=False)
    cached = _slots(parts, plain, 8)
    hit = parts.request(PROMPT)
    assert parts.admit(hit)
    assert hit.kv_len == 0
    also_plain = parts.request(PROMPT, speculative=False)
    assert parts.admit(also_plain)
    assert also_plain.kv_len == 8
    free = parts.num_free
    parts.prefill(hit, following=7)
    assert parts.num_free == free + 8, "its own copies of the cached slots are duplicates"
    assert _slots(parts, hit, 8) == cached, "the tree keeps its slots"
    parts.check_target(hit)
    parts.check_draft(hit)
    later = parts.request(PROMPT)
    assert parts.admit(later)
    assert later.kv_len == 8
    parts.check_draft(later)
    assert parts.laws(plain, hit, also_plain, later) == []


def test_zero_fill_takes_the_whole_prefix_and_names_what_it_lacks() -> None:
    parts = _parts(mode="zero_fill")
    parts.run(PROMPT[:6])
    plain = parts.run(PROMPT, speculative=False)
    hit = parts.request(PROMPT)
    assert parts.admit(hit)
    assert hit.kv_len == 8
    assert hit.unwritten_draft_slots is not None
    assert hit.unwritten_draft_slots.tolist() == _slots(parts, plain, 8)[4:]
    parts.prefill(hit, following=7)
    prefix = [draft_mark(PROMPT, p) for p in range(4)]
    assert parts.draft_at(hit, 8) == [*prefix, 0.0, 0.0, 0.0, 0.0]
    longer = parts.run([*PROMPT, 50, 51, 52])
    assert parts.draft_at(longer, 8) == [*prefix, 0.0, 0.0, 0.0, 0.0]
    parts.check_draft(longer, zeros_allowed=True)


def test_a_hit_that_ends_before_its_first_pass_writes_no_draft_kv() -> None:
    """It has not zeroed what the prefix lacks, so the next hit must do so."""
    parts = _parts(1, mode="zero_fill")
    parts.cache.release(parts.run(PROMPT, speculative=False), keep=True)
    aborted = parts.request(PROMPT)
    assert parts.admit(aborted)
    lacking = aborted.unwritten_draft_slots
    assert lacking is not None
    assert lacking.numel() == aborted.kv_len > 0
    parts.cache.release(aborted, keep=True)
    later = parts.request(PROMPT)
    assert parts.admit(later)
    assert later.unwritten_draft_slots is not None
    assert later.unwritten_draft_slots.tolist() == lacking.tolist()
    parts.prefill(later, following=7)
    parts.check_draft(later, zeros_allowed=True)


OPS = st.one_of(
    st.tuples(st.just("start"), st.lists(st.integers(1, 2), min_size=1, max_size=12), st.booleans()),
    st.tuples(st.just("chunk"), st.integers(0, 9), st.integers(1, 12)),
    st.tuples(st.just("chunk"), st.integers(0, 9), st.integers(1, 12)),
    st.tuples(st.just("token"), st.integers(0, 9), st.integers(1, 2)),
    st.tuples(st.just("stop"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("flush"), st.none(), st.none()),
)


class _Life:
    """Requests at every stage of their lives over one cache; each action is followed by all checks."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.live: list[Request] = []

    def act(self, name: str, first: Any, second: Any) -> None:
        if name == "start":
            request = self.parts.request(first, speculative=second and self.parts.memory.draft is not None)
            if self.parts.admit(request):
                self.live.append(request)
        elif name == "flush":
            self.parts.cache.flush()
        elif self.live:
            request = self.live[first % len(self.live)]
            getattr(self, name)(request, second)
        self.check()

    def chunk(self, request: Request, length: int) -> None:
        total = len(request.prompt_ids)
        if request.kv_len < total:
            self.parts.compute(request, min(request.kv_len + length, total), following=1)
            self.parts.cache.publish(request)
            if request.kv_len == total:
                request.output_ids.append(1)

    def token(self, request: Request, token: int) -> None:
        if request.output_ids and self.parts.grow(request, request.kv_len + 1):
            self.parts.compute(request, request.kv_len + 1, following=token)
            request.output_ids.append(token)

    def stop(self, request: Request, keep: bool) -> None:
        self.live.remove(request)
        self.parts.cache.release(request, keep=keep)

    def check(self) -> None:
        assert self.parts.laws(*self.live) == []
        assert self.parts.req_to_token.check_guards() == []
        zero_fill = self.parts.config.speculative is not None and not self.parts.cache._recompute
        for request in self.live:
            self.parts.check_target(request)
            computed = request.unwritten_draft_slots is None or not request.unwritten_draft_slots.numel()
            if request.speculative and computed:
                self.parts.check_draft(request, zeros_allowed=zero_fill)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("mode", [None, "recompute", "zero_fill"])
@given(ops=st.lists(OPS, max_size=40))
@settings(max_examples=40)
def test_whatever_requests_do_the_books_balance_and_everybody_reads_its_own_kv(
    page_size: int, mode: str | None, ops: list[tuple[str, Any, Any]]
) -> None:
    """40 slots, prompts over two tokens: shared prefixes, duplicates, evictions and shortages all occur."""
    parts = _parts(page_size, mode=mode, num_slots=40, max_running_requests=4)
    life = _Life(parts)
    for op in ops:
        life.act(*op)
    for request in list(life.live):
        life.act("stop", 0, int(request.rid[1:]) % 2 == 0)
    parts.cache.flush()
    assert parts.num_free == parts.config.usable_slots
