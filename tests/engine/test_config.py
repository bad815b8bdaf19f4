"""Engine options: every check with its place, defaults, and the sizes derived from them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.base.errors import InvalidOption
from specdebug.engine.config import EngineConfig
from specdebug.engine.workers.registry import ALGORITHMS, Algorithm


def _nest(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def _complaint(data: Any) -> InvalidOption:
    with pytest.raises(InvalidOption) as caught:
        EngineConfig.from_dict(data)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_draft_that_is_not_named_is_called_after_the_target_and_the_algorithm() -> None:
    def draft(**speculative: str) -> str | None:
        return EngineConfig.from_dict({"model": "small", "speculative": speculative}).draft_model

    assert EngineConfig.from_dict({"model": "small"}).draft_model is None
    assert draft() == "small-eagle"
    assert draft(algorithm="EAGLE3") == "small-eagle3"
    assert draft(algorithm="FROZEN_KV_MTP") == "small-assistant"
    assert draft(draft_model="other") == "other"


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        ('{"num_nextn_predict_layers": 2}', 2),
        ('{"num_nextn_predict_layers": 0}', 5),
        ('{"num_nextn_predict_layers": true}', 5),
        ("{}", 5),
        ("[2]", 5),
        ("{", 5),
        (None, 5),
    ],
)
def test_layers_draft_as_many_steps_as_they_are_unless_told(tmp_path: Path, config: str | None, steps: int) -> None:
    """A checkpoint that does not say, or is not there, is for its loader to complain of."""
    if config is not None:
        (tmp_path / "config.json").write_text(config)

    def shape(**speculative: Any) -> tuple[int, int]:
        spec = EngineConfig.from_dict({"speculative": {"draft_model": str(tmp_path), **speculative}}).speculative
        assert spec is not None
        return spec.num_steps, spec.tree_size

    assert shape(algorithm="MTP") == (steps, steps + 1)
    assert shape(algorithm="MTP", num_steps=4) == (4, 5)
    assert shape(algorithm="EAGLE") == (5, 6)


def test_a_draft_without_kv_reserves_a_tree_and_has_nothing_to_fill() -> None:
    tree = {"num_steps": 5, "eagle_topk": 4, "num_draft_tokens": 8}
    eagle, frozen = (
        EngineConfig.from_dict({"page_size": 4, "speculative": {"algorithm": algorithm, **tree}})
        for algorithm in ("EAGLE", "FROZEN_KV_MTP")
    )
    assert (eagle.alloc_len_per_decode, frozen.alloc_len_per_decode) == (32, 8)
    with pytest.raises(InvalidOption, match=r"engine\.speculative\.draft_kv_on_hit: FROZEN_KV_MTP has no draft KV"):
        EngineConfig.from_dict({"speculative": {"algorithm": "FROZEN_KV_MTP", "draft_kv_on_hit": "zero_fill"}})


# What is wrong, and a part of what is said of it.
WRONG: list[tuple[str, Any, str]] = [
    ("page_sise", 1, "did you mean 'page_size'?"),
    ("speculative.eagle_top_k", 1, "did you mean 'eagle_topk'?"),
    ("memory.zzz", 1, "known: fill, guards, num_slots"),
    ("page_size", "4", "'4'"),
    ("page_size", True, "true"),
    ("page_size", 4.0, "4.0"),
    ("page_size", None, "nothing"),
    ("page_size", [4], "a list"),
    ("page_size", {"a": 1}, "a mapping"),
    ("radix_cache", 1, "1"),
    ("model", 7, "7"),
    ("seed", "x" * 80, "..."),
    ("attention_backend", "fa2", "did you mean 'fa3'?"),
    ("dtype", "int8", "known: bfloat16, float16, float32"),
    ("chunked_prefill_size", "all", "'all'"),
    ("speculative", 3, "3"),
    ("memory", None, "nothing"),
    ("device", "tpu", "'tpu'"),
    ("device", "cuda:", "'cuda:'"),
    ("speculative.num_draft_tokens", 5, "num_steps + 1 = 6"),
    ("speculative", {"num_steps": 2, "eagle_topk": 2, "num_draft_tokens": 8}, "2..7"),
    ("speculative", {"num_steps": 1, "eagle_topk": 4, "num_draft_tokens": 1}, "from 2 to "),
    ("speculative.threshold_single", 0, "above 0"),
    ("speculative.threshold_acc", "1", "'1'"),
    ("speculative.threshold_acc", 1.5, "from 0 to 1"),
    ("speculative.threshold_acc", float("nan"), "nan"),
    ("speculative.threshold_acc", 10**400, "from 0 to 1"),
    ("cuda_graph.capture_bs", [], "at least 1 item"),
    ("cuda_graph.capture_bs", [0, 2], "from 1 to 512"),
    ("cuda_graph.capture_bs", [1, "2"], "'2'"),
    ("cuda_graph", {"max_bs": 4, "capture_bs": [2, 8]}, "max_bs=4"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG)
def test_what_is_wrong_is_said_with_its_place(path: str, value: Any, said: str) -> None:
    found = _complaint(_nest(path, value))
    assert found.key_path[: path.count(".") + 1] == tuple(path.split("."))
    assert said in found.reason
    assert str(found) == f"engine.{'.'.join(found.key_path)}: {found.reason}"


@pytest.mark.parametrize(
    ("path", "low", "high"),
    [
        ("page_size", 1, 1024),
        ("context_length", 8, 2**20),
        ("max_running_requests", 1, 512),
        ("seed", 0, 2**63 - 1),
        ("chunked_prefill_size", 1, None),
        ("cuda_graph.max_bs", 1, 512),
        ("memory.num_slots", 3, 2**26),
        ("speculative.num_steps", 1, 64),
        ("speculative.eagle_topk", 1, 64),
    ],
)
def test_the_ends_of_every_range(path: str, low: int, high: int | None) -> None:
    for good in (low, high):
        if good is not None:
            options = _nest(path, good)
            if path == "speculative.eagle_topk":
                options["speculative"]["num_draft_tokens"] = 6
            EngineConfig.from_dict(options)
    for bad in (low - 1, None if high is None else high + 1):
        if bad is not None:
            found = _complaint(_nest(path, bad))
            assert found.key_path == tuple(path.split("."))
            assert str(bad) in found.reason


@pytest.mark.parametrize(
    ("page", "spec", "smallest"),
    [
        (1, None, 3),
        (16, None, 32),
        (1, {"num_steps": 5}, 13),
        (4, {"num_steps": 5}, 16),
        (256, {"num_steps": 8, "eagle_topk": 5, "num_draft_tokens": 64}, 5120 + 256),
    ],
)
def test_the_pool_holds_at_least_one_reservation(page: int, spec: Any, smallest: int) -> None:
    options: dict[str, Any] = {"page_size": page, "speculative": spec}
    assert EngineConfig.from_dict({**options, "memory": {"num_slots": smallest}}).usable_slots == smallest
    found = _complaint({**options, "memory": {"num_slots": smallest - page}})
    assert found.key_path == ("memory", "num_slots")
    assert f"needs at least {smallest}" in found.reason


@pytest.mark.parametrize(
    ("page", "steps", "topk", "nodes", "alloc", "headroom"),
    [
        (256, 8, 5, 64, 2560, 5120 + 255),  # SGLang PR 26972: 5120 needed, 4 + T = 68 given
        (1, 5, 1, 6, 6, 12),
        (1, 3, 4, 8, 12, 24),
        (1, 2, 2, 7, 7, 14),
        (64, 5, 1, 6, 6, 12 + 63),
        (4, 3, 2, 7, 16, 32 + 3),
        (4, 4, 2, 7, 16, 32 + 3),
        (4, 6, 2, 7, 24, 48 + 3),
        (2, 1, 2, 3, 4, 8 + 1),
        (2, 1, 1, 2, 2, 6 + 1),
    ],
)
def test_what_a_decode_step_may_touch(page: int, steps: int, topk: int, nodes: int, alloc: int, headroom: int) -> None:
    config = EngineConfig.from_dict(
        {"page_size": page, "speculative": {"num_steps": steps, "eagle_topk": topk, "num_draft_tokens": nodes}}
    )
    assert (config.alloc_len_per_decode, config.row_headroom) == (alloc, headroom)


def test_only_algorithms_that_have_a_first_worker_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for algorithm in ("EAGLE", "EAGLE3"):
        options = {"speculative": {"algorithm": algorithm, "worker": "v1"}}
        assert EngineConfig.from_dict(options).to_dict()["speculative"]["worker"] == "v1"
    with pytest.raises(InvalidOption, match=r"engine\.speculative\.worker: cannot be 'v3'"):
        EngineConfig.from_dict({"speculative": {"worker": "v3"}})
    monkeypatch.setattr(ALGORITHMS, "_ours", {"EAGLE": Algorithm("a:b", "c:d")})
    with pytest.raises(
        InvalidOption, match=r"engine\.speculative\.worker: EAGLE has no worker v1; leave the option out"
    ):
        EngineConfig.from_dict({"speculative": {"worker": "v1"}})


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=2),
    max_leaves=5,
)
KEYS = ["page_size", "model", "seed", "device", "speculative", "cuda_graph", "memory", "dtype", "x"]
INNER = ["num_steps", "eagle_topk", "num_draft_tokens", "threshold_acc", "max_bs", "capture_bs", "num_slots", "y"]


@given(
    st.dictionaries(
        st.sampled_from(KEYS) | st.text(max_size=2),
        JUNK | st.dictionaries(st.sampled_from(INNER), JUNK, max_size=3),
        max_size=4,
    )
)
@settings(max_examples=60)
def test_junk_is_refused_or_understood_never_worse(data: dict[str, Any]) -> None:
    complaint, config = "", None
    try:
        config = EngineConfig.from_dict(data)
    except InvalidOption as error:
        complaint = str(error)
    if config is None:
        assert complaint.isprintable()
    else:
        assert EngineConfig.from_dict(config.to_dict()) == config
        assert config.row_headroom > 0


def test_checking_a_config_needs_no_torch() -> None:
    code = (
        "import sys; from specdebug.engine.config import EngineConfig; EngineConfig.from_dict({});"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
