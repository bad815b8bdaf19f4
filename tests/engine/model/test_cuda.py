"""The models on a GPU: what they compute on a CPU, nothing waits for the device, and a graph can hold a forward."""

import pytest
import torch

from specdebug.base.assets import checkpoint_path
from specdebug.engine.model import layers
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.model.loader import load_draft, load_target
from specdebug.engine.model.models import TargetModel
from tests.engine.model.helpers import DenseAttention

pytestmark = pytest.mark.gpu

TOKENS = 40
HEADS = [("EAGLE", "tiny-eagle"), ("EAGLE3", "tiny-eagle3")]
LOW = [torch.bfloat16, torch.float16]


def target_on(device: str, dtype: torch.dtype = torch.float32) -> TargetModel:
    return load_target(checkpoint_path("tiny"), dtype=dtype, device=device, max_positions=64)


def draft_for(target: TargetModel, algorithm: str, name: str) -> DraftModel:
    return load_draft(checkpoint_path(name), algorithm=algorithm, target=target, max_positions=64)


def ids(count: int = TOKENS, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 500, (count,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def run_target(model: TargetModel, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Hidden, auxiliary inputs and logits, the latter of every row."""
    device = model.embedding.device
    positions = torch.arange(tokens.shape[0], device=device)
    layers = model.config.num_layers
    out = model.forward(tokens.to(device), positions, DenseAttention(), (0, layers // 2, layers))
    assert out.aux is not None
    return [out.hidden, out.aux, model.logits(out.hidden)]


@torch.inference_mode()
def run_draft(model: DraftModel, tokens: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
    positions = torch.arange(tokens.shape[0], device=features.device)
    hidden = model.forward(tokens.to(features.device), positions, model.project(features), DenseAttention())
    return [hidden, model.logits(hidden)]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor], relative: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        error = (ours.cpu().double() - theirs.cpu().double()).norm() / theirs.cpu().double().norm()
        assert float(error) < relative


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03), (torch.float16, 4e-3)])
def test_the_target_computes_what_it_computes_on_a_cpu(dtype, relative):
    assert_same(run_target(target_on("cuda", dtype), ids()), run_target(target_on("cpu"), ids()), relative)


@pytest.mark.parametrize(("algorithm", "name"), HEADS)
@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
def test_so_does_a_head(algorithm, name, dtype, relative):
    here, there = (draft_for(target_on(*where), algorithm, name) for where in (("cpu",), ("cuda", dtype)))
    features = torch.randn(TOKENS, here.target_feature_size, generator=torch.Generator().manual_seed(1))
    on_device = features.to("cuda", dtype)
    before = on_device.clone()
    assert_same(run_draft(there, ids(), on_device), run_draft(here, ids(), features), relative)
    assert torch.equal(on_device, before)


def test_float32_stays_float32():
    """Nothing asks for TF32: an error of 1e-3 would show in every product."""
    run_target(target_on("cuda"), ids())
    assert not torch.backends.cuda.matmul.allow_tf32


def test_weights_are_stored_by_output():
    model = target_on("cuda")
    layer = model.layers[0][1]
    for weight in (layer.qkv, layer.output, layer.gate_up, layer.down, model.lm_head):
        assert weight.t().is_contiguous()


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("rows", [1, 6, 16])
def test_our_own_product_may_serve_instead_of_cublas(monkeypatch, dtype, rows):
    model = target_on("cuda", dtype)
    expected = run_target(model, ids(rows))
    monkeypatch.setattr(layers, "SKINNY_ROWS", 16)
    assert_same(run_target(model, ids(rows)), expected, 0.03 if dtype is torch.bfloat16 else 4e-3)


def test_a_forward_never_waits():
    model = target_on("cuda")
    draft = draft_for(model, "EAGLE", "tiny-eagle")
    tokens, positions = ids(6).cuda(), torch.arange(6, device="cuda")
    before = torch.cuda.get_sync_debug_mode()
    try:
        for mode in ("default", "error"):  # the first run compiles
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode(mode)
            with torch.inference_mode():
                hidden = model.forward(tokens, positions, DenseAttention()).hidden
                model.logits(hidden)
                draft.logits(draft.forward(tokens, positions, hidden, DenseAttention()))
    finally:
        torch.cuda.set_sync_debug_mode(before)


@torch.inference_mode()
def test_a_graph_replays_other_tokens_at_other_positions():
    model = target_on("cuda", torch.bfloat16)
    tokens, positions = ids(6).cuda(), torch.arange(6, device="cuda")

    def forward() -> torch.Tensor:
        return model.logits(model.forward(tokens, positions, DenseAttention()).hidden)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        forward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = forward()
    for seed in (1, 2):
        tokens.copy_(ids(6, seed))
        positions.copy_(torch.arange(6) + 7 * seed)
        graph.replay()
        assert_same([captured], [forward()], 0.01)
