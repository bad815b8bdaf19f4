"""The shipped checkpoints: found by name, small enough, in the published layouts, and good at their job."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from specdebug.base import assets, corpus
from specdebug.reference import load_weights, target_forward

SIZE_LIMIT = 40_000_000
TOOLS = Path(__file__).parents[2] / "tools"


def layout(name: str) -> dict[str, tuple[list[int], str]]:
    with safe_open(str(assets.checkpoint_path(name) / "model.safetensors"), framework="pt") as reader:
        slices = {key: reader.get_slice(key) for key in reader.keys()}  # noqa: SIM118
        return {key: (part.get_shape(), part.get_dtype()) for key, part in slices.items()}


def config_of(name: str) -> dict[str, object]:
    return json.loads((assets.checkpoint_path(name) / "config.json").read_text())


def test_names_win_and_folders_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert assets.checkpoint_path("tiny") == assets.CHECKPOINTS / "tiny"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    assert assets.checkpoint_path("tiny") == assets.CHECKPOINTS / "tiny"
    assert assets.checkpoint_path("./tiny") == Path("tiny")
    assert assets.checkpoint_path(tmp_path / "tiny") == tmp_path / "tiny"


def test_together_at_most_forty_megabytes() -> None:
    files = [path for path in assets.CHECKPOINTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= SIZE_LIMIT
    folders = {path.parent.name for path in files}
    assert folders == set(assets.NAMES)


def test_target_layout_is_a_tied_llama_in_bf16() -> None:
    config = config_of("tiny")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"] is True
    expected = {"model.embed_tokens.weight": [2048, 256], "model.norm.weight": [256]}
    for layer in range(int(str(config["num_hidden_layers"]))):
        for name, shape in {
            "input_layernorm": [256],
            "self_attn.q_proj": [256, 256],
            "self_attn.k_proj": [128, 256],
            "self_attn.v_proj": [128, 256],
            "self_attn.o_proj": [256, 256],
            "post_attention_layernorm": [256],
            "mlp.gate_proj": [256, 256],
            "mlp.up_proj": [256, 256],
            "mlp.down_proj": [256, 256],
        }.items():
            expected[f"model.layers.{layer}.{name}.weight"] = shape
    assert layout("tiny") == {name: (shape, "BF16") for name, shape in expected.items()}


def test_eagle_layout_is_the_published_one() -> None:
    config = config_of("tiny-eagle")
    inner = config["intermediate_size"]
    assert config["architectures"] == ["LlamaForCausalLMEagle"]
    assert config["num_hidden_layers"] == 1
    expected = {
        "fc.weight": [256, 512],
        "fc.bias": [256],
        "layers.0.self_attn.q_proj.weight": [256, 256],
        "layers.0.self_attn.k_proj.weight": [128, 256],
        "layers.0.self_attn.v_proj.weight": [128, 256],
        "layers.0.self_attn.o_proj.weight": [256, 256],
        "layers.0.post_attention_layernorm.weight": [256],
        "layers.0.mlp.gate_proj.weight": [inner, 256],
        "layers.0.mlp.up_proj.weight": [inner, 256],
        "layers.0.mlp.down_proj.weight": [256, inner],
    }
    assert layout("tiny-eagle") == {name: (shape, "BF16") for name, shape in expected.items()}


def test_eagle3_layout_is_the_published_one() -> None:
    config = config_of("tiny-eagle3")
    inner, vocab = config["intermediate_size"], config["draft_vocab_size"]
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert vocab == 1280
    expected = {
        "fc.weight": [256, 768],
        "midlayer.input_layernorm.weight": [256],
        "midlayer.hidden_norm.weight": [256],
        "midlayer.self_attn.q_proj.weight": [256, 512],
        "midlayer.self_attn.k_proj.weight": [128, 512],
        "midlayer.self_attn.v_proj.weight": [128, 512],
        "midlayer.self_attn.o_proj.weight": [256, 256],
        "midlayer.post_attention_layernorm.weight": [256],
        "midlayer.mlp.gate_proj.weight": [inner, 256],
        "midlayer.mlp.up_proj.weight": [inner, 256],
        "midlayer.mlp.down_proj.weight": [256, inner],
        "norm.weight": [256],
        "lm_head.weight": [vocab, 256],
    }
    types = {name: (shape, "BF16") for name, shape in expected.items()}
    assert layout("tiny-eagle3") == types | {"d2t": ([vocab], "I64"), "t2d": ([2048], "BOOL")}


def nextn_layer(prefix: str, inner: object, attention: dict[str, list[int]]) -> dict[str, list[int]]:
    """The tensors of a next-n layer as DeepSeek-V3 names them."""
    norms = ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm")
    return {
        f"{prefix}.eh_proj.weight": [256, 512],
        **{f"{prefix}.{name}.weight": [256] for name in norms},
        **{f"{prefix}.self_attn.{name}.weight": shape for name, shape in attention.items()},
        f"{prefix}.mlp.gate_proj.weight": [inner, 256],
        f"{prefix}.mlp.up_proj.weight": [inner, 256],
        f"{prefix}.mlp.down_proj.weight": [256, inner],
    }


GROUPED = {"q_proj": [256, 256], "k_proj": [128, 256], "v_proj": [128, 256], "o_proj": [256, 256]}
LATENT = {
    "q_a_proj": [128, 256], "q_a_layernorm": [128], "q_b_proj": [256, 128], "kv_a_proj_with_mqa": [96, 256],
    "kv_a_layernorm": [64], "kv_b_proj": [384, 64], "o_proj": [256, 256],
}  # fmt: skip


def test_mtp_layout_is_that_of_next_n_layers_behind_the_targets() -> None:
    config = config_of("tiny-mtp")
    assert config["architectures"] == ["LlamaForCausalLMNextN"]
    assert config["num_hidden_layers"] == config_of("tiny")["num_hidden_layers"]
    assert (config["num_nextn_predict_layers"], config["mtp_chain_hidden_states"]) == (3, False)
    expected = {}
    for layer in (14, 15, 16):
        expected |= nextn_layer(f"model.layers.{layer}", config["intermediate_size"], GROUPED)
    assert layout("tiny-mtp") == {name: (shape, "BF16") for name, shape in expected.items()}


def test_assistant_layout_has_no_keys_and_values() -> None:
    config = config_of("tiny-assistant")
    inner = config["intermediate_size"]
    assert config["architectures"] == ["LlamaForCausalLMAssistant"]
    assert config["target_kv_layers"] == [6, 12]
    for shared in ("num_key_value_heads", "head_dim", "hidden_size", "vocab_size"):
        assert config[shared] == config_of("tiny")[shared]
    expected = {"fc.weight": [256, 512], "norm.weight": [256]}
    for layer in ("layers.0", "layers.1"):
        expected |= {
            f"{layer}.input_layernorm.weight": [256],
            f"{layer}.self_attn.q_proj.weight": [256, 256],
            f"{layer}.self_attn.o_proj.weight": [256, 256],
            f"{layer}.post_attention_layernorm.weight": [256],
            f"{layer}.mlp.gate_proj.weight": [inner, 256],
            f"{layer}.mlp.up_proj.weight": [inner, 256],
            f"{layer}.mlp.down_proj.weight": [256, inner],
        }
    assert layout("tiny-assistant") == {name: (shape, "BF16") for name, shape in expected.items()}


def test_mla_layouts_are_deepseeks_without_experts() -> None:
    config, draft = config_of("tiny-mla"), config_of("tiny-mla-eagle")
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert config["first_k_dense_replace"] == config["num_hidden_layers"] == draft["num_hidden_layers"] == 12
    expected = {"model.embed_tokens.weight": [2048, 256], "model.norm.weight": [256]}
    for layer in range(12):
        prefix = f"model.layers.{layer}."
        expected |= {f"{prefix}self_attn.{name}.weight": shape for name, shape in LATENT.items()}
        expected |= {f"{prefix}{name}.weight": [256] for name in ("input_layernorm", "post_attention_layernorm")}
        expected |= {f"{prefix}mlp.{name}_proj.weight": [256, 256] for name in ("gate", "up", "down")}
    assert layout("tiny-mla") == {name: (shape, "BF16") for name, shape in expected.items()}
    assert draft["architectures"] == ["DeepseekV3ForCausalLMNextN"]
    expected = nextn_layer("model.layers.12", draft["intermediate_size"], LATENT)
    assert layout("tiny-mla-eagle") == {name: (shape, "BF16") for name, shape in expected.items()}
    for file in ("tokenizer.json", "tokenizer_config.json"):
        ours, first = ((assets.checkpoint_path(name) / file).read_bytes() for name in ("tiny-mla", "tiny"))
        assert ours == first


def test_tokenizer_covers_the_vocabulary_and_returns_any_text() -> None:
    tokenizer = Tokenizer.from_file(str(assets.tokenizer_path("tiny")))
    assert tokenizer.get_vocab_size() == config_of("tiny")["vocab_size"]
    assert tokenizer.token_to_id("<|endoftext|>") == config_of("tiny")["eos_token_id"] == 0
    text = "def f(x):\n\treturn 'é \N{SNOWMAN} \x00'  # 漢字\n\n\n    pass"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("name", ["tiny", "tiny-mla"])
def test_target_equals_transformers_in_fp32(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    path = assets.checkpoint_path(name)
    tokenizer = Tokenizer.from_file(str(assets.tokenizer_path(name)))
    ids = torch.tensor(tokenizer.encode(corpus.heldout_text()[10_000:12_000]).ids[:400])
    weights, config = load_weights(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        expected = model(ids[None]).logits[0]
    torch.testing.assert_close(target_forward(weights, config, ids)[0], expected, rtol=1e-4, atol=1e-4)
    auto = transformers.AutoTokenizer.from_pretrained(path)
    assert auto("import os\n").input_ids == tokenizer.encode("import os\n").ids
    assert auto.eos_token_id == 0


def eval_draft_tool():
    """tools/ is no package; its scripts import one another from their own folder."""
    sys.path.insert(0, str(TOOLS))
    try:
        spec = importlib.util.spec_from_file_location("eval_draft", TOOLS / "eval_draft.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["eval_draft"] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(TOOLS))


@pytest.mark.parametrize(
    ("target", "floors", "num_steps"),
    [
        ("tiny", {"tiny-eagle": 2.5, "tiny-eagle3": 2.8}, 5),
        ("tiny", {"tiny-mtp": 2.2, "tiny-assistant": 2.2}, 3),
        ("tiny-mla", {"tiny-mla-eagle": 2.8}, 5),
    ],
)
def test_drafts_really_draft(target: str, floors: dict[str, float], num_steps: int) -> None:
    """Floors of the product's promise, on few prompts; tools/eval_draft.py measures properly."""
    means = eval_draft_tool().evaluate(
        target,
        list(floors),
        device=torch.device("cpu"),
        prompt_lengths=[160],
        rows=8,
        new_tokens=64,
        num_steps=num_steps,
    )
    for name, floor in floors.items():
        assert means[name, 160] >= floor, name
