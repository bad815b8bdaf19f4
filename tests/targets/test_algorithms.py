"""Algorithms that only other engines have: what a scenario may say of each, and where each is refused."""

from __future__ import annotations

from typing import Any

import pytest

from specdebug.base.abilities import INSIDE
from specdebug.base.errors import InvalidOption
from specdebug.targets.algorithms import SGLANG, VLLM
from specdebug.targets.options import OURS, SGLANGS, VLLMS, TargetOptions, options_of
from specdebug.targets.settings import parse_target


def drafting(algorithm: str = "EAGLE", **spec: Any) -> dict[str, Any]:
    return {"model": "tiny", "speculative": {"algorithm": algorithm, **spec}}


@pytest.mark.parametrize("name", [name for name, each in SGLANG.foreign.items() if not each.architectures])
def test_our_engine_refuses_it_and_names_the_targets_that_have_it(name: str) -> None:
    who = r"SGLang and vLLM have" if name in VLLM.foreign else "SGLang has"
    for options in (OURS, options_of("embedded")):
        with pytest.raises(InvalidOption, match=rf"only {who} '{name}'; give --target sglang==") as refused:
            options.read(drafting(name))
        assert refused.value.key_path == ("speculative", "algorithm")
    with pytest.raises(InvalidOption, match="only SGLang has that lengths adapt"):
        OURS.read(drafting(adaptive=True))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("SUFFIX", "vLLM's SUFFIX is not run here: it needs arctic-inference"),
        ("DSPARK", "only SGLang has 'DSPARK'; give --target sglang=="),
    ],
)
def test_vllm_refuses_what_it_cannot_run_and_says_why(name: str, why: str) -> None:
    assert options_of(parse_target("vllm")) is VLLMS
    with pytest.raises(InvalidOption, match=why) as refused:
        VLLMS.read(drafting(name))
    assert refused.value.key_path == ("speculative", "algorithm")


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
    assert not SGLANG.hidden_by(drafting("NEXTN"))
    assert not SGLANG.hidden_by(drafting())
    hidden = INSIDE - {"pools"}
    assert SGLANG.hidden_by(drafting("DFLASH")) == SGLANG.hidden_by(drafting(adaptive=True)) == hidden
    assert VLLM.hidden_by(drafting("NGRAM")) == hidden - {"kv"}


def test_what_one_engine_drafts_by_history_another_does_not() -> None:
    ngram = drafting("NGRAM")
    assert SGLANG.drafts_by_history(ngram)
    assert not VLLM.drafts_by_history(ngram)
    assert VLLMS.shape({"speculative": {"algorithm": "NGRAM", "num_steps": 4}}).tree == (1, 4, 5)


def test_keys_and_values_of_another_type_are_sglang_s_alone_and_of_one_that_it_has() -> None:
    stored = {**drafting(), "kv_cache_dtype": "fp8_e4m3"}
    assert SGLANGS.completed(stored)["kv_cache_dtype"] == "fp8_e4m3"
    assert SGLANGS.shape(stored) == SGLANGS.shape(drafting())
    other = {**stored, "kv_cache_dtype": "int4"}
    for space, given, why in ((OURS, stored, "only SGLang"), (VLLMS, stored, "only SGLang"), (SGLANGS, other, "e5m2")):
        with pytest.raises(InvalidOption, match=why) as refused:
            space.read(given)
        assert refused.value.key_path == ("kv_cache_dtype",)


def test_an_editor_knows_what_only_other_engines_have() -> None:
    defs: dict[str, Any] = {}
    assert "fp8_e5m2" in OURS.json_schema(defs)["properties"]["kv_cache_dtype"]["enum"]
    spec = defs["SpeculativeConfig"]["properties"]
    assert {*SGLANG.foreign, *VLLM.foreign, "EAGLE"} <= set(spec["algorithm"]["enum"])
    assert spec["adaptive"]["type"] == "boolean"


@pytest.mark.parametrize(
    ("options", "given", "key", "why"),
    [
        (OURS, {"tp": 2}, "tp", "only SGLang and vLLM have ranks of this kind; give --target sglang==.* or vllm=="),
        (VLLMS, {"tp": 2, "dp": 2, "dp_attention": True}, "dp", "only SGLang has ranks of this kind"),
        (VLLMS, {"pp": 2}, "pp", "only SGLang has ranks of this kind"),
        (VLLMS, {"disaggregation": "pd"}, "disaggregation", "only SGLang has ranks of this kind"),
    ],
)
def test_ranks_that_only_others_have_are_refused_by_name(
    options: TargetOptions, given: dict[str, Any], key: str, why: str
) -> None:
    with pytest.raises(InvalidOption, match=why) as refused:
        options.read({**drafting(), **given})
    assert refused.value.key_path == (key,)


def test_vllm_takes_ranks_that_share_layers() -> None:
    assert VLLMS.asked({**drafting(), "tp": 2}).ranks == 2
