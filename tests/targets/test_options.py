"""What is drawn for an engine is what its release has."""

from __future__ import annotations

from typing import Any

from specdebug.targets.options import options_of
from specdebug.targets.settings import parse_target

EVERY = ("DFLASH", "DSPARK", "EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE")


def engines(release: str) -> list[dict[str, Any]]:
    options = options_of(parse_target(release))
    return [options.drawn(5, number, 64)[0] for number in range(28)]


def algorithms(drawn: list[dict[str, Any]]) -> list[str]:
    return sorted({each["speculative"]["algorithm"] for each in drawn})


def test_algorithms_are_drawn_for_releases_that_they_were_tried_on() -> None:
    assert algorithms(engines("sglang==0.5.23")) == list(EVERY)
    assert algorithms(engines("sglang==0.5.18")) == ["EAGLE"]
    assert algorithms(engines("vllm==0.32.0")) == ["EAGLE", "EAGLE3"]


def test_what_drafts_by_another_algorithm_is_drawn_as_it_was_tried() -> None:
    drawn = engines("sglang==0.5.23")
    foreign = [each for each in drawn if each["speculative"]["algorithm"] not in ("EAGLE", "EAGLE3")]
    assert {(each["attention_backend"], each["speculative"]["eagle_topk"]) for each in foreign} == {("triton", 1)}
    blocks = [each for each in foreign if each["speculative"]["algorithm"] in ("DFLASH", "DSPARK")]
    assert {each["speculative"]["num_steps"] for each in blocks} == {3}
    assert {each["speculative"]["draft_model"] for each in blocks} == {"tiny-dflash", "tiny-dspark"}
    flash = [each for each in blocks if each["speculative"]["algorithm"] == "DFLASH"]
    assert all(each["cuda_graph"].get("enabled", True) for each in flash)
