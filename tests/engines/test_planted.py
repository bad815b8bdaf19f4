"""Bugs planted in SGLang's own files are caught by shipped scenarios and placed where they are: by a tensor that is not
the twin's, by a law of what goes from batch to batch, and by one of cached prefixes."""

from __future__ import annotations

import pytest

from tests.engines.replays import replayed

pytestmark = pytest.mark.engines

RELEASE = "sglang==0.5.13"


@pytest.mark.parametrize(
    ("scenario", "bug", "signature", "seen"),
    [
        ("draft_positions", 950018, "mismatch@draft_extend.logits", "mismatch@draft_state"),
        ("flaky_cache_hit", 950023, "pools@relay", None),
        ("bigram_key", 950026, "pools@reuse", None),
    ],
)
def test_a_planted_bug_is_caught_and_placed(scenario: str, bug: int, signature: str, seen: str | None) -> None:
    words = ("--arm", "fixed", "--target", RELEASE, "--content", "benchmarks/planted_sglang", "--revert", str(bug))
    code, arm = replayed(scenario, *words)
    assert (code, arm["signature"]) == (1, signature), arm["detail"]
    assert (arm["located"] or {}).get("from") == seen
    assert all(count > 0 for count in arm["reverted_hits"][str(bug)].values())


@pytest.mark.parametrize(
    ("scenario", "bug", "signature", "seen"),
    [
        ("dflash", 960101, "oob@block.positions", None),
        ("dflash", 960103, "oob@context.commit_lens", None),
        ("ngram", 960202, "mismatch@verify.logits", "mismatch@request"),
    ],
)
def test_a_bug_of_a_drafter_of_blocks_or_n_grams_is_placed(
    scenario: str, bug: int, signature: str, seen: str | None
) -> None:
    words = ("--arm", "fixed", "--target", "sglang==0.5.23", "--content", "benchmarks/planted_twins")
    code, arm = replayed(f"scenarios/twins/{scenario}.yaml", *words, "--revert", str(bug))
    assert (code, arm["signature"]) == (1, signature), arm["detail"]
    assert (arm["located"] or {}).get("from") == seen
