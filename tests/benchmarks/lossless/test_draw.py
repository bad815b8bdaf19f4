"""What is drawn: valid, the same for a seed, and with every option having its turn."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.lossless.draw import MOST_NEW, Decks, Draft, Prompt, Served, configuration, families
from specdebug.base.random_streams import stream
from specdebug.engine import EngineConfig

DRAFTS = (
    Draft("EAGLE", "tiny-eagle"),
    Draft("EAGLE", "tiny-eagle", "v1"),
    Draft("MTP", "tiny-mtp", steps=3),
    Draft("FROZEN_KV_MTP", "tiny-assistant"),
)


def continuation(prompt: Prompt) -> list[int]:
    return [(sum(prompt) + n) % 50 for n in range(MOST_NEW)]


@pytest.fixture
def served() -> Served:
    return Served("tiny", DRAFTS, families(range(1500), continuation), continuation, 0)


def test_every_option_has_its_turn_in_every_block() -> None:
    choose = Decks(stream(0, "test"))
    for _ in range(3):
        assert sorted(choose("letter", "abc") for _ in range(3)) == ["a", "b", "c"]
    assert {choose("letter", "ab"), choose("letter", "ab")} == {"a", "b"}, "other options are another deck"


def test_families_share_prefixes_and_follow_what_was_generated() -> None:
    (family,) = families(range(100), continuation, trunks=(20,))
    trunk = family[0]
    assert trunk == tuple(range(20))
    assert [prompt[:20] == trunk for prompt in family] == [True, True, True, False, True, True, True]
    assert family[3][:10] == trunk[:10]
    assert family[5][20:27] == tuple(continuation(trunk)[:7])
    with pytest.raises(ValueError, match="too short: 10 tokens, and 20 are needed"):
        families(range(10), continuation, trunks=(20,))


def test_configurations_are_valid_and_cover_what_they_should(served: Served) -> None:
    choose, seen = Decks(stream(1, "test")), Counter[object]()
    for _ in range(40):
        made = configuration(choose, served, "fa3", device="cpu", dtype="bfloat16")
        config = EngineConfig.from_dict(made.engine)
        spec = config.speculative
        assert spec is not None
        assert config.dtype == "bfloat16"
        seen.update((config.page_size, ("topk", spec.eagle_topk), ("steps", spec.num_steps), spec.algorithm))
        seen.update((spec.worker, ("graphs", config.cuda_graph.enabled), ("radix", config.radix_cache)))
        for ask in made.asks:
            assert len(ask.prompt) + ask.max_new_tokens <= config.context_length
            assert len(ask.prompt) + ask.max_new_tokens + config.row_headroom <= config.usable_slots
            assert ask.stop == () or ask.stop[1] in continuation(ask.prompt)
            seen.update((("stop", bool(ask.stop)), ("wave", ask.wave), ("aborted", ask.abort_after is not None)))
            seen.update((("greedy", ask.temperature == 0), ("drafts", ask.speculative)))
    assert {1, 4, 16, 256, "v1", "v2", "MTP", "EAGLE", "FROZEN_KV_MTP"} <= set(seen)
    assert {("topk", k) for k in (1, 2, 3, 4, 6)} | {("steps", n) for n in range(1, 7)} <= set(seen)
    for what in ("stop", "wave", "aborted", "greedy", "drafts", "graphs", "radix"):
        assert {(what, False), (what, True)} <= set(seen), what


def test_a_seed_gives_the_same_ones_again(served: Served) -> None:
    first, second = ([configuration(choose, served, "triton") for _ in range(3)] for choose in _twice())
    assert first == second


def _twice() -> list[Decks]:
    return [Decks(stream(2, "test")), Decks(stream(2, "test"))]


def test_without_drafts_nothing_is_speculated(served: Served) -> None:
    plain = Served("tiny", (), served.prompts, continuation, 0)
    assert configuration(Decks(stream(0, "test")), plain, "fa3").engine["speculative"] is None
