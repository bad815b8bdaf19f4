"""What FlashInfer has kernels for, how it is found and compiled, and which tokens its samplers keep."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.engine import progress
from specdebug.engine.errors import FlashInferError
from specdebug.engine.gpu import flashinfer_library, flashinfer_sampling
from specdebug.engine.textbook.sampler import top_k_renorm, top_p_renorm


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(flashinfer_library, "_in_use", False)
    flashinfer_library.load.cache_clear()
    yield
    flashinfer_library.load.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    def import_module(name: str) -> Any:
        assert name == "flashinfer"
        if isinstance(library, Exception):
            raise library
        return library

    monkeypatch.setattr(flashinfer_library.importlib, "import_module", import_module)


def test_half_precision_and_three_head_sizes_are_supported() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        assert [flashinfer_library.supports(dtype, dim) for dim in (64, 128, 256)] == [None] * 3
    assert flashinfer_library.supports(torch.float32, 64) == (
        "FlashInfer computes in bfloat16 or float16, not in float32"
    )
    assert "not 80" in (flashinfer_library.supports(torch.bfloat16, 80) or "")


@pytest.mark.parametrize("error", [ImportError("No module named 'flashinfer'"), OSError("read-only\nfile system")])
def test_a_missing_or_broken_installation_is_one_line_with_two_ways_out(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    install(monkeypatch, error)
    with pytest.raises(FlashInferError) as caught:
        flashinfer_library.load()
    text = str(caught.value)
    assert "\n" not in text
    assert str(error).splitlines()[0] in text
    assert "pip install 'specdebug[flashinfer]'" in text
    assert "attention_backend: triton" in text


def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, SimpleNamespace(__version__="0.5.0"))
    with pytest.raises(FlashInferError, match=r"FlashInfer 0\.5\.0 is installed, 0\.6\.12 is needed"):
        flashinfer_library.load()


def library_that_compiles(*, compiled: bool, get: Any) -> Any:
    return SimpleNamespace(
        __version__=flashinfer_library.VERSION,
        jit=SimpleNamespace(gen_batch_prefill_module=lambda *_: SimpleNamespace(is_compiled=compiled)),
        prefill=SimpleNamespace(get_batch_prefill_module=get),
    )


@pytest.mark.parametrize(("compiled", "said"), [(True, []), (False, ["compiling flashinfer attention"])])
def test_a_compile_is_announced_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, said: list[str]
) -> None:
    heard: list[str] = []
    order: list[list[str]] = []

    def get(*wanted: Any) -> str:
        order.append(list(heard))
        assert wanted[:5] == ("fa2", torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32)
        return "kernels"

    install(monkeypatch, library_that_compiles(compiled=compiled, get=get))
    forget = progress.listen(heard.append)
    try:
        assert flashinfer_library.paged_kernels(torch.bfloat16, 64) == "kernels"
    finally:
        forget()
    assert flashinfer_library.in_use()
    assert [line.partition(",")[0] for line in heard] == said
    assert order == [heard]


def test_a_failed_compile_is_one_line_with_the_compilers_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*_: Any) -> None:
        raise RuntimeError("Ninja build failed. Ninja output:\n[1/2] nvcc -c a.cu\na.cu(3): error: no such thing\nmore")

    install(monkeypatch, library_that_compiles(compiled=False, get=get))
    with pytest.raises(FlashInferError) as caught:
        flashinfer_library.paged_kernels(torch.float16, 128)
    assert not flashinfer_library.in_use()
    assert str(caught.value) == (
        "FlashInfer cannot compile its attention, head_dim 128, float16 (a.cu(3): error: no such thing): "
        "it needs nvcc and ninja on the PATH, or set attention_backend: triton"
    )


@pytest.fixture
def _fresh_sampler() -> Iterator[None]:
    flashinfer_sampling._library.cache_clear()
    yield
    flashinfer_sampling._library.cache_clear()


@pytest.mark.usefixtures("_fresh_sampler")
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


@pytest.mark.usefixtures("_fresh_sampler")
def test_a_failed_compile_is_told_once_and_torch_samples(heard: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(compiled=False, error=RuntimeError("no nvcc"))
    monkeypatch.setattr(flashinfer_sampling, "load", lambda: library)
    monkeypatch.setattr(flashinfer_sampling, "in_use", lambda: True)
    assert not flashinfer_sampling.available()
    assert not flashinfer_sampling.available()
    assert len(heard) == 2
    assert heard[0] == "compiling flashinfer sampling"
    assert "no nvcc" in heard[1]


@pytest.mark.usefixtures("_fresh_sampler")
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
