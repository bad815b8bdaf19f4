"""The shipped checkpoints: found by name, small enough, in the published layouts, and good at their job."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer

from specdebug.base import assets, corpus
from specdebug.base.errors import CheckpointError
from specdebug.reference.target import target_forward
from specdebug.reference.weights import load_weights

TOOLS = Path(__file__).parents[2] / "tools"
Shapes = dict[str, list[int]]


def layout(name: str) -> dict[str, tuple[list[int], str]]:
    with safe_open(str(assets.checkpoint_path(name) / "model.safetensors"), framework="pt") as reader:
        slices = {key: reader.get_slice(key) for key in reader.keys()}  # noqa: SIM118
        return {key: (part.get_shape(), part.get_dtype()) for key, part in slices.items()}


def config_of(name: str) -> dict[str, Any]:
    return json.loads((assets.checkpoint_path(name) / "config.json").read_text())


def test_names_win_and_folders_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    assert assets.checkpoint_path("tiny") == assets.CHECKPOINTS / "tiny"
    assert assets.checkpoint_path("./tiny") == Path("tiny")
    assert assets.checkpoint_path(tmp_path / "tiny") == tmp_path / "tiny"
    assert all(assets.name_of(assets.checkpoint_path(name)) == name for name in assets.NAMES)
    for other in (tmp_path / "tiny", assets.CHECKPOINTS / "mine"):
        assert assets.name_of(other) == str(other)


def test_a_misspelt_name_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint 'tiny-eagel3'.*did you mean 'tiny-eagle3'\?"):
        assets.checkpoint_path("tiny-eagel3")
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        assets.checkpoint_path(tmp_path)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        assets.tokenizer_path("tiny-eagle")


def test_together_at_most_forty_megabytes() -> None:
    files = [path for path in assets.CHECKPOINTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 40_000_000
    assert {path.parent.name for path in files} == set(assets.NAMES)


GROUPED = {"q_proj": [256, 256], "k_proj": [128, 256], "v_proj": [128, 256], "o_proj": [256, 256]}
LATENT = {
    "q_a_proj": [128, 256], "q_a_layernorm": [128], "q_b_proj": [256, 128], "kv_a_proj_with_mqa": [96, 256],
    "kv_a_layernorm": [64], "kv_b_proj": [384, 64], "o_proj": [256, 256],
}  # fmt: skip
NORMS = ("input_layernorm", "post_attention_layernorm")
EMBEDDED = {"model.embed_tokens.weight": [2048, 256], "model.norm.weight": [256]}


def layer(prefix: str, inner: int, attention: Shapes, norms: tuple[str, ...] = NORMS) -> Shapes:
    """The tensors of a decoder layer as Llama and DeepSeek name them."""
    mlp = {"gate_proj": [inner, 256], "up_proj": [inner, 256], "down_proj": [256, inner]}
    return {
        **{f"{prefix}.{name}.weight": [256] for name in norms},
        **{f"{prefix}.self_attn.{name}.weight": shape for name, shape in attention.items()},
        **{f"{prefix}.mlp.{name}.weight": shape for name, shape in mlp.items()},
    }


def nextn(number: int, inner: int, attention: Shapes) -> Shapes:
    """The tensors of a next-n layer as DeepSeek-V3 names them."""
    prefix, norms = f"model.layers.{number}", ("enorm", "hnorm", *NORMS, "shared_head.norm")
    return {f"{prefix}.eh_proj.weight": [256, 512], **layer(prefix, inner, attention, norms)}


def all_layers(make: Any, numbers: Any) -> Shapes:
    return {name: shape for number in numbers for name, shape in make(number).items()}


EAGLE3 = {"q_proj": [256, 512], "k_proj": [128, 512], "v_proj": [128, 512], "o_proj": [256, 256]}
ASSISTANT = {name: GROUPED[name] for name in ("q_proj", "o_proj")}
LAYOUTS: dict[str, tuple[dict[str, Any], Any]] = {
    "tiny": (
        {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True, "num_hidden_layers": 14},
        lambda inner: EMBEDDED | all_layers(lambda n: layer(f"model.layers.{n}", inner, GROUPED), range(14)),
    ),
    "tiny-eagle": (
        {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1},
        lambda inner: {"fc.weight": [256, 512], "fc.bias": [256]} | layer("layers.0", inner, GROUPED, NORMS[1:]),
    ),
    "tiny-eagle3": (
        {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 1280},
        lambda inner: {"fc.weight": [256, 768], "norm.weight": [256], "lm_head.weight": [1280, 256]}
        | layer("midlayer", inner, EAGLE3, (*NORMS, "hidden_norm")),
    ),
    "tiny-mtp": (
        {"architectures": ["LlamaForCausalLMNextN"], "num_hidden_layers": 14, "num_nextn_predict_layers": 3,
         "mtp_chain_hidden_states": False},
        lambda inner: all_layers(lambda n: nextn(n, inner, GROUPED), (14, 15, 16)),
    ),
    "tiny-assistant": (
        {"architectures": ["LlamaForCausalLMAssistant"], "target_kv_layers": [6, 12], "hidden_size": 256,
         "vocab_size": 2048},
        lambda inner: {"fc.weight": [256, 512], "norm.weight": [256]}
        | all_layers(lambda n: layer(f"layers.{n}", inner, ASSISTANT), (0, 1)),
    ),
    "tiny-mla": (
        {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 12, "first_k_dense_replace": 12},
        lambda inner: EMBEDDED | all_layers(lambda n: layer(f"model.layers.{n}", inner, LATENT), range(12)),
    ),
    "tiny-mla-eagle": (
        {"architectures": ["DeepseekV3ForCausalLMNextN"], "num_hidden_layers": 12},
        lambda inner: nextn(12, inner, LATENT),
    ),
}  # fmt: skip
"""By checkpoint: what its config says, and its tensors by the MLP's width; bfloat16 but for EAGLE-3's maps."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_the_published_ones(name: str) -> None:
    said, tensors = LAYOUTS[name]
    config = config_of(name)
    assert {key: config[key] for key in said} == said
    found = layout(name)
    if name == "tiny-eagle3":
        assert (found.pop("d2t"), found.pop("t2d")) == (([1280], "I64"), ([2048], "BOOL"))
    assert found == {key: (shape, "BF16") for key, shape in tensors(config["intermediate_size"]).items()}


def test_the_draft_vocabulary_is_named_twice_and_agrees() -> None:
    weights = load_file(str(assets.checkpoint_path("tiny-eagle3") / "model.safetensors"))
    targets = torch.arange(len(weights["d2t"])) + weights["d2t"]
    assert torch.equal(targets, weights["t2d"].nonzero()[:, 0])


def test_tokenizers_cover_the_vocabulary_and_return_any_text() -> None:
    tokenizer = Tokenizer.from_file(str(assets.tokenizer_path("tiny")))
    assert tokenizer.get_vocab_size() == config_of("tiny")["vocab_size"]
    assert tokenizer.token_to_id("<|endoftext|>") == config_of("tiny")["eos_token_id"] == 0
    text = "def f(x):\n\treturn 'é \N{SNOWMAN} \x00'  # 漢字\n\n\n    pass"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    for file in ("tokenizer.json", "tokenizer_config.json"):
        ours, first = ((assets.checkpoint_path(name) / file).read_bytes() for name in ("tiny-mla", "tiny"))
        assert ours == first


@pytest.mark.parametrize("name", ["tiny", "tiny-mla"])
def test_a_target_equals_transformers_in_fp32_and_foresees_heldout_text(name: str) -> None:
    """2.3 nats a token on 3.12's held-out files; a uniform guess is 7.6, token frequencies alone about 6."""
    transformers = pytest.importorskip("transformers")
    path = assets.checkpoint_path(name)
    tokenizer = Tokenizer.from_file(str(assets.tokenizer_path(name)))
    weights, config = load_weights(path)
    ids = torch.tensor(tokenizer.encode(corpus.heldout_text()[100_000:130_000]).ids[:1500]).view(3, 500)
    logits, _, _ = target_forward(weights, config, ids)
    assert torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) < 2.8
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        expected = model(ids[:1, :400]).logits[0]
    torch.testing.assert_close(target_forward(weights, config, ids[0, :400])[0], expected, rtol=1e-4, atol=1e-4)
    auto = transformers.AutoTokenizer.from_pretrained(path)
    assert auto("import os\n").input_ids == tokenizer.encode("import os\n").ids
    assert auto.eos_token_id == 0


def eval_draft_tool() -> Any:
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
    options = {"prompt_lengths": [160], "rows": 8, "new_tokens": 64, "num_steps": num_steps}
    means = eval_draft_tool().evaluate(target, list(floors), device=torch.device("cpu"), **options)
    for name, floor in floors.items():
        assert means[name, 160] >= floor, name
