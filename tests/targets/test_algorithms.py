"""Algorithms that only other engines have: what a scenario may say of each, and where each is refused."""

from __future__ import annotations

from typing import Any

import pytest

from specdebug.base.abilities import INSIDE
from specdebug.base.errors import InvalidOption
from specdebug.targets.algorithms import SGLANG, hidden_by
from specdebug.targets.options import OURS, SGLANGS, options_of
from specdebug.targets.settings import parse_target


def drafting(algorithm: str = "EAGLE", **spec: Any) -> dict[str, Any]:
    return {"model": "tiny", "speculative": {"algorithm": algorithm, **spec}}


@pytest.mark.parametrize("name", SGLANG)
def test_our_engine_refuses_it_and_names_the_target_that_has_it(name: str) -> None:
    for options in (OURS, options_of("embedded"), options_of(parse_target("vllm"))):
        with pytest.raises(InvalidOption, match=rf"only SGLang has '{name}'; give --target sglang==") as refused:
            options.read(drafting(name))
        assert refused.value.key_path == ("speculative", "algorithm")
    with pytest.raises(InvalidOption, match="only SGLang has that lengths adapt"):
        OURS.read(drafting(adaptive=True))


@pytest.mark.parametrize(
    ("options", "option", "why"),
    [
        (drafting("STANDALONE"), "draft_model", "whole model; name it"),
        (drafting("NGRAM", draft_model="tiny"), "draft_model", "without a model"),
        (drafting("DFLASH", eagle_topk=2, num_draft_tokens=4), "eagle_topk", "drafts chains"),
        (drafting("NEXTN", worker="v1"), "worker", "nothing but v2"),
        (drafting("NGRAM", draft_kv_on_hit="zero_fill"), "draft_kv_on_hit", "nothing but recompute"),
        (drafting("STANDALONE", draft_model="tiny", adaptive=True), "adaptive", "only chains of EAGLE"),
        (drafting(eagle_topk=2, num_draft_tokens=4, adaptive=True), "adaptive", "only chains of EAGLE"),
        (drafting(adaptive=1), "adaptive", "true or false"),
        (drafting("DSPARK", num_steps=0), "num_steps", "1"),
    ],
)
def test_what_an_algorithm_cannot_have_is_refused_where_it_stands(
    options: dict[str, Any], option: str, why: str
) -> None:
    with pytest.raises(InvalidOption, match=why) as refused:
        SGLANGS.read(options)
    assert refused.value.key_path == ("speculative", option)


def test_shape_draft_and_defaults_are_told_by_its_own_name() -> None:
    block = drafting("DFLASH", num_steps=3)
    assert SGLANGS.shape(block).algorithm == "DFLASH"
    assert SGLANGS.shape(block).tree == (1, 3, 4)
    assert dict(SGLANGS.checkpoints(block))["speculative", "draft_model"] == "tiny-dflash"
    assert SGLANGS.completed(block)["speculative"]["algorithm"] == "DFLASH"
    assert [name for _, name in SGLANGS.checkpoints(drafting("NGRAM"))] == ["tiny"]
    assert SGLANGS.completed(drafting(adaptive=True))["speculative"]["adaptive"] is True


def test_the_dense_reference_judges_drafts_of_heads_alone() -> None:
    nextn = SGLANGS.asked(drafting("NEXTN", draft_model="tiny-mla-eagle"))
    assert (nextn.algorithm, nextn.draft_model) == ("EAGLE", "tiny-mla-eagle")
    whole = SGLANGS.asked(drafting("STANDALONE", draft_model="tiny"))
    assert (whole.algorithm, whole.draft_model) == ("STANDALONE", None)
    assert not hidden_by(drafting("NEXTN"))
    assert not hidden_by(drafting())
    assert hidden_by(drafting("DFLASH")) == hidden_by(drafting(adaptive=True)) == INSIDE - {"pools"}


def test_an_editor_knows_what_only_sglang_has() -> None:
    defs: dict[str, Any] = {}
    OURS.json_schema(defs)
    spec = defs["SpeculativeConfig"]["properties"]
    assert {*SGLANG, "EAGLE"} <= set(spec["algorithm"]["enum"])
    assert spec["adaptive"]["type"] == "boolean"
