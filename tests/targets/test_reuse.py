"""The laws of reuse find caches that never hit, never keep or forget draft KV, and say nothing of sound ones."""

from __future__ import annotations

from typing import Any

import pytest

from specdebug.engine import Engine, EngineConfig, Request, SamplingParams
from specdebug.engine.textbook.engine import Models, load_models
from specdebug.engine.textbook.memory.prefix_cache import PrefixCache
from specdebug.engine.textbook.speculative import eagle
from specdebug.engine.textbook.speculative import eagle as cached_prefix
from specdebug.targets.laws import broken_laws
from tests.engine.driving import plant

PROMPT = list(range(40, 61))  # 21 tokens: 20 positions that can be cached
SPEC = {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6}

_models: dict[bool, Models] = {}


def engine_of(**options: Any) -> Engine:
    """An engine whose models are those of the one before."""
    config = EngineConfig.from_dict({"context_length": 128, "speculative": SPEC, **options})
    drafts = config.speculative is not None
    if drafts not in _models:
        _models[drafts] = load_models(config)
    return Engine(config, _models[drafts])


def serve(engine: Engine, rid: str, prompt: list[int], new: int = 9, *, speculative: bool = True) -> Request:
    """Serve one request to its end; every step must keep the laws."""
    request = engine.add_request(rid, prompt, SamplingParams(max_new_tokens=new), speculative=speculative)
    while engine.has_work:
        engine.step()
        assert broken_laws(engine) == []
    return request


def first_broken(engine: Engine) -> list[str]:
    """Step until a law is broken, and say which."""
    while engine.has_work:
        engine.step()
        if problems := broken_laws(engine):
            return problems
    return []


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("drafts", [True, False])
def test_a_hit_that_is_not_used_is_told_with_what_was_cached(
    monkeypatch: pytest.MonkeyPatch, page_size: int, drafts: bool
) -> None:
    engine = engine_of(page_size=page_size, speculative=SPEC if drafts else None)
    serve(engine, "first", PROMPT)
    used = "request.protected_len = request.kv_len = request.kv_allocated = match.slots.numel()"
    plant(monkeypatch, PrefixCache, "attach", used)
    engine.add_request("hit", PROMPT, SamplingParams(max_new_tokens=4))
    assert first_broken(engine) == ["reuse: hit had 0 of the 20 positions cached of its prompt"]


@pytest.mark.parametrize(
    ("following", "there"), [(PROMPT[-5:], 20), ([7, 7, 7], 16)], ids=["the whole prompt", "up to what differs"]
)
def test_a_prompt_that_goes_on_otherwise_has_as_much_cached_as_it_shares(
    monkeypatch: pytest.MonkeyPatch, following: list[int], there: int
) -> None:
    """With a draft the last shared slot is not the same, because the draft has seen another token after it."""
    engine = engine_of()
    serve(engine, "first", PROMPT)
    prompt = [*PROMPT[:-5], *following] if there == 20 else [*PROMPT[:17], *following]
    engine.add_request("hit", prompt, SamplingParams(max_new_tokens=4))
    monkeypatch.setattr(engine._cache, "attach", lambda request: None)
    assert first_broken(engine) == [f"reuse: hit had 0 of the {there} positions cached of its prompt"]


@pytest.mark.parametrize("policy", ["recompute", "zero_fill"])
def test_a_prefix_without_draft_kv_counts_for_those_who_need_none(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """With ``recompute`` a request that drafts cannot use it: it has nothing, and that is right."""
    engine = engine_of(speculative={**SPEC, "draft_kv_on_hit": policy})
    serve(engine, "plain", PROMPT, speculative=False)
    monkeypatch.setattr(engine._cache, "attach", lambda request: None)
    engine.add_request("hit", PROMPT, SamplingParams(max_new_tokens=4))
    told = [] if policy == "recompute" else ["reuse: hit had 0 of the 20 positions cached of its prompt"]
    assert first_broken(engine) == told
    engine.add_request("other", PROMPT, SamplingParams(max_new_tokens=4), speculative=False)
    assert first_broken(engine) == ["reuse: other had 0 of the 20 positions cached of its prompt"]


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_request_that_ends_and_leaves_nothing_is_told(monkeypatch: pytest.MonkeyPatch, page_size: int) -> None:
    engine = engine_of(page_size=page_size)
    plant(monkeypatch, PrefixCache, "release", "if keep and self.enabled:", "if not (keep and self.enabled):")
    engine.add_request("r", PROMPT, SamplingParams(max_new_tokens=9))
    due = (len(PROMPT) + 9 - 1) // page_size * page_size
    assert first_broken(engine) == [f"kept: r has ended, and the tree has 20 of the {due} positions it computed"]


def test_a_prompt_that_is_not_published_is_told_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(page_size=4, chunked_prefill_size=10)
    monkeypatch.setattr(engine._cache, "publish", lambda request: None)
    engine.add_request("r", PROMPT, SamplingParams(max_new_tokens=9))
    assert first_broken(engine) == ["kept: r shares 0 of the 8 positions it computed of its prompt"]


def test_draft_kv_that_counts_as_missing_for_good_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(speculative={**SPEC, "draft_kv_on_hit": "zero_fill"})
    serve(engine, "plain", PROMPT, speculative=False)
    plant(monkeypatch, cached_prefix, "prepare_cached_prefix", "request.unwritten_draft_slots = None")
    monkeypatch.setattr(eagle, "prepare_cached_prefix", cached_prefix.prepare_cached_prefix)
    request = engine.add_request("r", PROMPT, SamplingParams(max_new_tokens=9))
    engine.step()
    assert broken_laws(engine) == ["kept: r counts draft KV of 20 cached positions as missing"]
    while not request.finished:
        engine.step()
    due = len(PROMPT) + 9 - 1
    assert broken_laws(engine) == [
        f"kept: r has ended, and the tree has draft KV of 0 of the {due} positions it computed"
    ]


def test_a_cache_that_is_off_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(radix_cache=False)
    plant(monkeypatch, PrefixCache, "release", "if keep and self.enabled:", "if keep:")
    engine.add_request("r", PROMPT, SamplingParams(max_new_tokens=9))
    assert "kept: the prefix cache is off, and 1 nodes are in its tree" in first_broken(engine)
