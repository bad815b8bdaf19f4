"""FlashInfer keeps the tokens that torch keeps, and does without where the library is not to be had."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.engine import flashinfer_sampling, progress
from specdebug.engine.errors import FlashInferError
from specdebug.engine.sampler import top_k_renorm, top_p_renorm


@pytest.fixture
def _fresh() -> Iterator[None]:
    flashinfer_sampling._library.cache_clear()
    yield
    flashinfer_sampling._library.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_without_the_library_nothing_is_said_and_torch_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise FlashInferError("not installed")

    heard: list[str] = []
    forget = progress.listen(heard.append)
    monkeypatch.setattr(flashinfer_sampling, "load", load)
    assert not flashinfer_sampling.available()
    forget()
    assert heard == []


@pytest.mark.usefixtures("_fresh")
def test_a_failed_compile_is_told_once_and_torch_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_sampling_module() -> Any:
        raise RuntimeError("no nvcc")

    library = SimpleNamespace(
        jit=SimpleNamespace(sampling=SimpleNamespace(gen_sampling_module=lambda: SimpleNamespace(is_compiled=False))),
        sampling=SimpleNamespace(get_sampling_module=get_sampling_module),
    )
    heard: list[str] = []
    forget = progress.listen(heard.append)
    monkeypatch.setattr(flashinfer_sampling, "load", lambda: library)
    assert not flashinfer_sampling.available()
    assert not flashinfer_sampling.available()
    forget()
    assert len(heard) == 2
    assert heard[0] == "compiling flashinfer sampling"
    assert "no nvcc" in heard[1]


@pytest.fixture
def _library() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("flashinfer")
    if not flashinfer_sampling.available():
        pytest.skip("FlashInfer cannot compile its sampling kernels here")


@pytest.mark.gpu
@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("vocab", [300, 5000, 128256])
def test_on_a_device_the_same_tokens_are_kept(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    # bfloat16 logits, as a model gives them: many are equal
    probs = torch.softmax(torch.randn(3, vocab, generator=generator).mul(3).bfloat16().float(), dim=-1)
    for top_k in (1, 7, 200):
        expected = top_k_renorm(probs, top_k)
        torch.testing.assert_close(top_k_renorm(probs.cuda(), top_k).cpu(), expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(top_k_renorm(probs[0].cuda(), top_k).cpu(), expected[0], rtol=1e-5, atol=0)
    for top_p in (0.3, 0.5, 0.9):
        expected = top_p_renorm(probs, top_p)
        torch.testing.assert_close(top_p_renorm(probs.cuda(), top_p).cpu(), expected, rtol=1e-5, atol=0)


@pytest.mark.gpu
@pytest.mark.usefixtures("_library")
def test_on_a_device_a_nan_stays_visible() -> None:
    probs = torch.full((1, 4000), float("nan"), device="cuda")
    assert top_k_renorm(probs, 5).isnan().all()
    assert top_p_renorm(probs, 0.5).isnan().all()
