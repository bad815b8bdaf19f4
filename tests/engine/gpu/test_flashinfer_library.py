"""What FlashInfer cannot do, and how its absence, another version or a failed compile read."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.engine import progress
from specdebug.engine.errors import FlashInferError
from specdebug.engine.gpu import flashinfer_library


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
