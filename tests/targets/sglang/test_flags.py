"""A scenario's options as SGLang's command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.targets.sglang.flags import BY_PHASE, mapped


def in_0_5_13(_: str) -> bool:
    """0.5.13, which has no graphs by phase."""
    return False


def words(options: dict[str, object], *, cpu: bool = True, has: Callable[[str], bool] = in_0_5_13) -> str:
    return " ".join(mapped(options, cpu=cpu, has=has)[0]) + " "


def test_every_option_is_said_defaults_too() -> None:
    said = words(
        {
            "model": "/m", "page_size": 4, "attention_backend": "fa3", "chunked_prefill_size": 24, "radix_cache": False,
            "memory": {"num_slots": 512}, "cuda_graph": {"max_bs": 4, "capture_bs": [1, 4]},
            "speculative": {"num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 8, "draft_model": "/d"},
        }
    )  # fmt: skip
    for part in (
        "--model-path /m", "--page-size 4", "--attention-backend fa3", "--chunked-prefill-size 24",
        "--disable-radix-cache", "--max-total-tokens 512", "--cuda-graph-bs 1 4", "--cuda-graph-max-bs 4",
        "--speculative-algorithm EAGLE", "--speculative-num-steps 3", "--speculative-eagle-topk 4",
        "--speculative-num-draft-tokens 8", "--speculative-draft-model-path /d", "--context-length 2048",
        "--max-running-requests 8", "--dtype float32", "--random-seed 0", "--device cpu",
    ):  # fmt: skip
        assert f"{part} " in said, part


def test_a_flag_has_the_name_that_a_release_has_for_it() -> None:
    options: dict[str, object] = {"cuda_graph": {"max_bs": 4, "capture_bs": [1, 4]}}
    assert "--disable-piecewise-cuda-graph " in words(options)
    said = words(options, has=lambda place: place == BY_PHASE)
    assert "--cuda-graph-bs-decode 1 4 --" in said
    assert "--cuda-graph-max-bs-decode 4 --" in said
    assert said.endswith("--cuda-graph-backend-prefill disabled --device cpu --enable-cudagraph-gc ")


def test_what_is_not_there_is_not_said() -> None:
    said = words({"cuda_graph": {"enabled": False}})
    assert "--disable-cuda-graph " in said
    assert "speculative" not in said
    assert "--chunked-prefill-size -1 " in said
    assert "--disable-radix-cache" not in said
    assert "--sleep-on-idle" not in said  # a session's idle steps are the workload's, and sockets outlive no fork
    assert words({}, cpu=False).endswith("--device cuda ")


def test_what_sglang_has_not_is_listed_where_it_was_asked_for() -> None:
    options = {
        "attention_backend": "triton",
        "memory": {"guards": True, "fill": "nan"},
        "speculative": {"draft_kv_on_hit": "zero_fill", "worker": "v1"},
    }
    assert mapped(options, cpu=True, has=in_0_5_13)[1] == (
        "memory.fill: its memory is torch's: what it holds is not decided",
        "memory.guards: its buffers have no guard regions",
        "speculative.draft_kv_on_hit: it always recomputes",
        "speculative.worker: a release has its own",
    )


def test_an_algorithm_without_a_draft_of_sglangs_is_refused() -> None:
    with pytest.raises(SpecDebugError, match=r"speculative\.algorithm: .* mapped EAGLE, EAGLE3, .*; not MTP"):
        mapped({"speculative": {"algorithm": "MTP", "num_steps": 3}}, cpu=True, has=in_0_5_13)
    with pytest.raises(SpecDebugError, match=r"engine\.page_size"):
        mapped({"page_size": 0}, cpu=True, has=in_0_5_13)


def test_the_type_of_stored_keys_and_values_is_said_where_it_is_given() -> None:
    assert "--kv-cache-dtype fp8_e5m2 " in words({"kv_cache_dtype": "fp8_e5m2"})
    assert "--kv-cache-dtype" not in words({})


def drafting(algorithm: str, **spec: object) -> str:
    said = words({"speculative": {"algorithm": algorithm, "num_steps": 3, **spec}})
    return said[said.index("--speculative") : said.index("--disable-piecewise")]


def test_an_algorithm_that_only_sglang_has_is_said_by_the_flags_that_it_takes() -> None:
    whole = drafting("STANDALONE", draft_model="/d")
    assert "--speculative-algorithm STANDALONE --speculative-draft-model-path /d --speculative-num-steps 3 " in whole
    looked_up = drafting("NGRAM", eagle_topk=2, num_draft_tokens=6)
    assert "--speculative-ngram-max-bfs-breadth 2 --speculative-num-draft-tokens 6 " in looked_up
    assert "draft-model" not in looked_up
    assert "eagle-topk" not in looked_up
    for block in ("DFLASH", "DSPARK"):
        said = drafting(block, draft_model="/d", num_draft_tokens=4)
        assert f"--speculative-algorithm {block} --speculative-draft-model-path /d " in said
        assert "--speculative-num-draft-tokens 4 " in said
        assert "num-steps" not in said
        assert "topk" not in said
    assert "--speculative-adaptive " in drafting("EAGLE", adaptive=True)
    assert "--speculative-adaptive " not in drafting("EAGLE", adaptive=False)
