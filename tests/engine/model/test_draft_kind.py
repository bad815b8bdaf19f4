"""Every checkpoint loads under every algorithm, or ends in one line that says what it holds and what drafts with it."""

from functools import cache
from typing import Any

import pytest

from specdebug.base.assets import NAMES, checkpoint_path
from specdebug.base.errors import InvalidOption
from specdebug.engine.model.checkpoint import Checkpoint
from specdebug.engine.model.loader import (
    ASSISTANT,
    EAGLE3_HEAD,
    EAGLE_HEAD,
    LATENT_NEXTN_LAYER,
    NEXTN_LAYERS,
    WHOLE_MODEL,
    DraftKind,
    kind_of,
    load_target,
    require_kind,
)
from specdebug.engine.model.models import TargetModel
from specdebug.engine.workers.registry import SHIPPED, part_of
from tests.engine.model.test_published_shapes import EAGLE, EAGLE3, HEAD_8B, LLAMA_3_1_8B, target_shapes

KINDS = {
    "tiny": WHOLE_MODEL,
    "tiny-eagle": EAGLE_HEAD,
    "tiny-eagle3": EAGLE3_HEAD,
    "tiny-mtp": NEXTN_LAYERS,
    "tiny-assistant": ASSISTANT,
    "tiny-mla": WHOLE_MODEL,
    "tiny-mla-eagle": LATENT_NEXTN_LAYER,
}
SERVED = {
    "EAGLE": "an EAGLE head or one next-n layer of a latent (MLA) model",
    "EAGLE3": "an EAGLE-3 head",
    "MTP": "next-n layers of Llama's family",
    "FROZEN_KV_MTP": "a frozen-KV assistant",
}
PAIRS = [(algorithm, name) for algorithm in SHIPPED for name in NAMES]
WRONG = [(algorithm, name) for algorithm, name in PAIRS if KINDS[name].algorithm != algorithm]
RIGHT = [pair for pair in PAIRS if pair not in WRONG]


def nextn_layer(prefix: str, *parts: str) -> set[str]:
    """Names of tensors of a next-n layer whose attention and MLP have these parts."""
    return {f"{prefix}.{part}.weight" for part in ("enorm", "hnorm", "eh_proj", "shared_head.norm", *parts)}


DENSE = nextn_layer("model.layers.32", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj")
ROUTED = nextn_layer("model.layers.32", "self_attn.q_proj", "self_attn.k_proj", "mlp.gate", "mlp.experts.0.up_proj")
LATENT = nextn_layer("model.layers.61", "self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "mlp.gate")
DEEPSEEK, NEXTN = ({"architectures": [f"DeepseekV3ForCausalLM{end}"]} for end in ("", "NextN"))
TARGET = set(target_shapes())


@cache
def target_of(draft: str) -> TargetModel:
    return load_target(checkpoint_path("tiny-mla" if draft.startswith("tiny-mla") else "tiny"))


@pytest.mark.parametrize(("algorithm", "name"), RIGHT)
def test_a_draft_of_the_algorithm_s_kind_loads(algorithm: str, name: str) -> None:
    draft = part_of(algorithm, "loader")(checkpoint_path(name), algorithm=algorithm, target=target_of(name))
    assert draft.vocab_size > 0


@pytest.mark.parametrize(("algorithm", "name"), WRONG)
def test_another_draft_is_named_at_the_option_before_anything_is_read(algorithm: str, name: str) -> None:
    """No target is there to be looked at, and no tensor is read."""
    kind = KINDS[name]
    with pytest.raises(InvalidOption) as caught:
        part_of(algorithm, "loader")(checkpoint_path(name), algorithm=algorithm, target=None)
    if kind.algorithm is None:
        said = f"{name} holds {kind.name}, with which no algorithm drafts; for {algorithm} give {SERVED[algorithm]}"
        assert (caught.value.key_path, caught.value.reason) == (("speculative", "draft_model"), said)
    else:
        said = f"{algorithm} drafts with {SERVED[algorithm]}, and {name} holds {kind.name}; set {kind.algorithm}"
        assert (caught.value.key_path, caught.value.reason) == (("speculative", "algorithm"), said)
        assert (kind.algorithm, name) in RIGHT, "who does what the line says has a draft that loads"


@pytest.mark.parametrize(
    ("config", "names", "kind"),
    [
        pytest.param(HEAD_8B, EAGLE, EAGLE_HEAD, id="eagle"),
        pytest.param(HEAD_8B | {"num_nextn_predict_layers": 1}, EAGLE, EAGLE_HEAD, id="eagle-keys-of-target"),
        pytest.param(HEAD_8B | {"draft_vocab_size": 32000}, EAGLE, EAGLE_HEAD, id="eagle-draft-vocabulary"),
        pytest.param(HEAD_8B, [f"model.{name}" for name in EAGLE], EAGLE_HEAD, id="eagle-prefixed"),
        pytest.param(HEAD_8B, EAGLE3, EAGLE3_HEAD, id="eagle3"),
        pytest.param(DEEPSEEK | {"num_nextn_predict_layers": 1}, EAGLE3, EAGLE3_HEAD, id="eagle3-of-deepseek"),
        pytest.param(
            {}, [name.replace("midlayer", "model.layers.0") for name in EAGLE3], EAGLE3_HEAD, id="eagle3-layers-0"
        ),
        pytest.param({}, DENSE, NEXTN_LAYERS, id="layers-alone"),
        pytest.param(LLAMA_3_1_8B | {"num_nextn_predict_layers": 1}, TARGET | DENSE, NEXTN_LAYERS, id="layers-beside"),
        pytest.param({}, ROUTED, None, id="layers-with-experts"),
        pytest.param({}, LATENT, None, id="latent-of-unknown-architecture"),
        pytest.param(DEEPSEEK | {"num_nextn_predict_layers": 1}, TARGET | LATENT, LATENT_NEXTN_LAYER, id="deepseek"),
        pytest.param(NEXTN | {"num_nextn_predict_layers": 1}, LATENT, LATENT_NEXTN_LAYER, id="deepseek-layer"),
        pytest.param(NEXTN | {"num_nextn_predict_layers": "1"}, LATENT, LATENT_NEXTN_LAYER, id="deepseek-no-number"),
        pytest.param(LLAMA_3_1_8B, TARGET, WHOLE_MODEL, id="target"),
        pytest.param(DEEPSEEK, TARGET, WHOLE_MODEL, id="deepseek-target"),
        pytest.param(LLAMA_3_1_8B | {"num_nextn_predict_layers": 1}, TARGET, None, id="promised-layers"),
        pytest.param(HEAD_8B, set(EAGLE) - {"fc.weight"}, None, id="head-without-fc"),
        pytest.param(HEAD_8B, {"fc.weight", "layers.1.self_attn.k_proj.weight"}, None, id="head-without-layer-0"),
        pytest.param({"architectures": 7}, {"x"}, None, id="nothing-known"),
    ],
)
def test_the_kind_of_published_checkpoints(config: dict[str, Any], names: Any, kind: DraftKind | None) -> None:
    assert kind_of(config, names) == kind


@pytest.mark.parametrize("algorithm", SHIPPED)
@pytest.mark.parametrize("layers", [0, 2])
def test_no_algorithm_drafts_with_another_number_of_latent_layers(algorithm: str, layers: int) -> None:
    checkpoint = Checkpoint(checkpoint_path("tiny-mla-eagle"))
    checkpoint.config["num_nextn_predict_layers"] = layers
    with pytest.raises(InvalidOption, match=r"with which no algorithm drafts; for \w+ give an EAGLE-3 head$") as caught:
        require_kind(checkpoint, algorithm, EAGLE3_HEAD)
    assert f"tiny-mla-eagle holds {layers} next-n layers (num_nextn_predict_layers) of" in caught.value.reason
