"""FlashInfer keeps the tokens that torch keeps, and does without where the library is not to be had."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.engine import progress
from specdebug.engine.errors import FlashInferError
from specdebug.engine.gpu import flashinfer_sampling
from specdebug.engine.textbook.sampler import top_k_renorm, top_p_renorm


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


class Library:
    """What is asked for, of a library whose kernels are compiled or not, or cannot be."""

    def __init__(self, *, compiled: bool, error: Exception | None = None) -> None:
        self.asked = 0
        self.error = error
        spec = SimpleNamespace(is_compiled=compiled)
        self.jit = SimpleNamespace(sampling=SimpleNamespace(gen_sampling_module=lambda: spec))
        self.sampling = self

    def get_sampling_module(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def heard() -> Iterator[list[str]]:
    reports: list[str] = []
    forget = progress.listen(reports.append)
    yield reports
    forget()


@pytest.mark.usefixtures("_fresh")
def test_a_failed_compile_is_told_once_and_torch_samples(heard: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(compiled=False, error=RuntimeError("no nvcc"))
    monkeypatch.setattr(flashinfer_sampling, "load", lambda: library)
    monkeypatch.setattr(flashinfer_sampling, "in_use", lambda: True)
    assert not flashinfer_sampling.available()
    assert not flashinfer_sampling.available()
    assert len(heard) == 2
    assert heard[0] == "compiling flashinfer sampling"
    assert "no nvcc" in heard[1]


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("compiled", [True, False])
def test_nobody_waits_for_a_compiler_whose_attention_is_not_flashinfer_s(
    compiled: bool, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(compiled=compiled)
    monkeypatch.setattr(flashinfer_sampling, "load", lambda: library)
    monkeypatch.setattr(flashinfer_sampling, "in_use", lambda: False)
    assert flashinfer_sampling.available() == compiled
    assert (library.asked, heard) == (int(compiled), [])
    monkeypatch.setattr(flashinfer_sampling, "in_use", lambda: True)
    assert flashinfer_sampling.available(), "an engine that came later may attend through FlashInfer"
    assert heard == ([] if compiled else ["compiling flashinfer sampling"])


@pytest.fixture
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_sampling, "in_use", lambda: True)
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
