"""A scenario's options as vLLM's arguments, draft heads as vLLM reads them, and where its workers run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from safetensors.torch import load_file

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError, InvalidOption
from specdebug.engine.config import EngineConfig
from specdebug.targets.installs.store import Installed
from specdebug.targets.registry import find_target
from specdebug.targets.relations import RELATIONS
from specdebug.targets.settings import ReleasedEngine
from specdebug.targets.vllm.target import ARCHITECTURE, VllmTarget, draft_folder, mapped, with_bias_folded


def made(draft: str | None = "/draft", *, cpu: bool = True, **options: Any) -> tuple[dict[str, Any], list[str]]:
    return mapped(EngineConfig.from_dict(options), "/target", draft, cpu=cpu)


def test_every_option_that_it_has() -> None:
    size = {"context_length": 512, "max_running_requests": 3, "page_size": 64, "chunked_prefill_size": 128}
    memory, graph = {"num_slots": 1000, "fill": "zeros"}, {"enabled": False}
    arguments, notes = made(**size, memory=memory, cuda_graph=graph, speculative={"num_steps": 4})
    assert arguments == {
        "model": "/target",
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 3,
        "block_size": 64,
        "num_gpu_blocks_override": 17,
        "enable_prefix_caching": True,
        "enforce_eager": True,
        "max_num_batched_tokens": 128 + 3 * 5,
        "enable_chunked_prefill": True,
        "speculative_config": {"method": "eagle", "model": "/draft", "num_speculative_tokens": 4},
    }
    assert notes == ["attention_backend: its own for CPUs"]


def test_what_is_otherwise_there_is_a_note() -> None:
    assert made(speculative={"worker": "v1"})[1][-1] == "speculative.worker: it has its own"
    arguments, notes = made(None, page_size=16, radix_cache=False)
    assert (arguments["block_size"], arguments["enable_prefix_caching"]) == (32, False)
    assert "speculative_config" not in arguments
    assert [note.partition(":")[0] for note in notes] == ["page_size", "attention_backend", "cuda_graph", "memory"]
    assert made(None, page_size=16, cpu=False)[0]["block_size"] == 16


@pytest.mark.parametrize(
    ("speculative", "said"),
    [
        ({"eagle_topk": 2, "num_draft_tokens": 4}, "eagle_topk: vLLM drafts chains"),
        ({"threshold_acc": 0.5}, "threshold_acc: vLLM has no such threshold"),
        ({"algorithm": "FROZEN_KV_MTP"}, "algorithm: .* EAGLE, EAGLE3, .*; not FROZEN_KV_MTP"),
        ({"draft_kv_on_hit": "zero_fill"}, "draft_kv_on_hit: vLLM keeps the draft's KV"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(speculative: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=rf"engine\.speculative\.{said}"):
        made(speculative=speculative)


def test_a_head_whose_fc_has_a_bias_computes_the_same_without_it(tmp_path: Path) -> None:
    folder = draft_folder("tiny-eagle", "tiny", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], "bias" in config) == ([ARCHITECTURE], False)
    head = load_file(checkpoint_path("tiny-eagle") / "model.safetensors")
    (file,) = checkpoint_path("tiny").glob("*.safetensors")
    embedding = load_file(file)["model.embed_tokens.weight"].double()
    folded = load_file(folder / "model.safetensors")
    assert set(folded) == {*head, "embed_tokens.weight"} - {"fc.bias"}
    hidden = torch.randn(2048, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = head["fc.weight"].double()
    wanted = torch.cat((embedding, hidden), 1) @ weight.T + head["fc.bias"].double()
    got = torch.cat((folded["embed_tokens.weight"].double(), hidden), 1) @ weight.T
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert draft_folder("tiny-eagle", "tiny", tmp_path) == folder


def test_a_head_that_it_reads_as_it_is_stays_where_it_is(tmp_path: Path) -> None:
    assert draft_folder("tiny-eagle3", "tiny", tmp_path) == checkpoint_path("tiny-eagle3").resolve()
    assert list(tmp_path.iterdir()) == []
    weights = {"fc.weight": torch.eye(2, 4)}
    assert with_bias_folded(weights, torch.ones(3, 2)) == weights
    with pytest.raises(CheckpointError, match=r"fc\.bias cannot be folded"):
        with_bias_folded({"fc.weight": torch.zeros(2, 4), "fc.bias": torch.ones(2)}, torch.ones(3, 2))


OPTIONS: dict[str, Any] = {"context_length": 256, "speculative": {"num_steps": 3}}


@pytest.fixture
def target(tmp_path: Path) -> VllmTarget:
    folder = tmp_path / "vllm-0.32.0-cpu"
    Installed(folder, "vllm", "0.32.0", "cpu", sys.executable, False, done=("installed",)).write()
    found = find_target(ReleasedEngine(release="vllm==0.32.0", store=str(tmp_path), env={"A": "b"}, mends=False))
    assert isinstance(found, VllmTarget)
    return found


def test_its_workers_run_with_its_environment_s_python_and_find_us(target: VllmTarget) -> None:
    home = target.home()
    assert home.python == sys.executable
    env = dict(home.env)
    assert (env["A"], env["VLLM_ENABLE_V1_MULTIPROCESSING"], env["OMP_NUM_THREADS"]) == ("b", "0", "1")
    assert (Path(home.path[0]) / "specdebug").is_symlink()
    assert "specdebug.targets.vllm.inside.imported" in home.preload


def test_a_tree_is_refused_before_anything_is_started(target: VllmTarget) -> None:
    asked = target.asked(OPTIONS)
    assert (asked.server, asked.drafts, asked.guards, asked.context_length) == (False, True, False, 256)
    with pytest.raises(InvalidOption, match=r"speculative\.eagle_topk: vLLM drafts chains, not trees"):
        target.asked({"speculative": {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 4}})


def test_the_second_runner_gets_our_triton_and_a_backend_for_it(target: VllmTarget, tmp_path: Path) -> None:
    first = dict(target.home().env)
    assert (first["VLLM_USE_V2_MODEL_RUNNER"], "TRITON_INTERPRET" in first) == ("0", False)
    second = find_target(replace(target._settings, runner="v2"))
    env, site = dict(second.home().env), Path(second.home().path[0])
    assert (env["VLLM_USE_V2_MODEL_RUNNER"], env["TRITON_INTERPRET"]) == ("1", "1")
    assert (site / "triton").resolve() == Path(triton.__file__).parent.resolve()
    entries = next(site.glob("specdebug_triton-*.dist-info/entry_points.txt")).read_text()
    assert entries == "[triton.backends]\ncpu = specdebug.targets.vllm.inside.triton_backend\n"
    assert not (Path(target.home().path[0]) / "triton").exists()


def test_the_other_runner_is_a_twin(target: VllmTarget) -> None:
    found = target.twin(RELATIONS["runner"], OPTIONS, 8)
    assert isinstance(found.target, ReleasedEngine)
    assert (str(found.target), found.unlike) == ("vllm/v2==0.32.0", ())
    back = find_target(found.target).twin(RELATIONS["runner"], OPTIONS, 8)
    assert isinstance(back.target, ReleasedEngine)
    assert (back.target.runs, back.how) == ("vllm/v1", "the model runner v1 in place of v2")
    ngram = {"speculative": {"algorithm": "NGRAM", "num_steps": 3}}
    assert target.twin(RELATIONS["runner"], ngram, 8).unlike == ("accept lengths",)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"algorithm": "NGRAM"}, {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 12}),
        ({"algorithm": "STANDALONE", "draft_model": "tiny"}, {"method": "draft_model", "model": "tiny"}),
    ],
)
def test_an_algorithm_that_only_engines_of_others_have(
    target: VllmTarget, spec: dict[str, Any], told: dict[str, Any]
) -> None:
    arguments, _ = target.mapped({"model": "tiny", "speculative": {**spec, "num_steps": 2}}, target.installed())
    if "model" in told:
        told = {**told, "model": str(checkpoint_path("tiny").resolve())}
    assert arguments["speculative_config"] == told | {"num_speculative_tokens": 2}


def test_where_kernels_are_interpreted_their_memory_can_be_looked_at(target: VllmTarget) -> None:
    second = find_target(replace(target._settings, runner="v2"))
    assert isinstance(second, VllmTarget)
    assert [each.interprets(each.installed()) for each in (target, second)] == [False, True]
