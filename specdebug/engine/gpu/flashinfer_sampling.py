"""Top-k and top-p through FlashInfer: on CUDA it finds which tokens are kept without sorting the vocabulary.

Only that is taken from the library: its sums are added up in any order, and it makes zeros of a row of NaNs. Where the
mass reaches ``top_p`` up to rounding, it and the sampler may differ by a token. The kernels are a module of their own:
on the first draw it is compiled only where attention is FlashInfer's too; else torch samples rather than wait.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import Tensor

from specdebug.engine import progress
from specdebug.engine.errors import FlashInferError
from specdebug.engine.gpu.flashinfer_library import announce_compile, compile_error, in_use, load


def available() -> bool:
    """Return True if FlashInfer samples here, else torch does. The first call may compile kernels."""
    return _library(may_compile=in_use()) is not None


def kept_by_top_k(probs: Tensor, top_k: int) -> Tensor:
    """bool [.., V]: the ``top_k`` most likely tokens of float32 probs [.., V] on CUDA, 0 < top_k < V."""
    return _kept("top_k_renorm_probs", probs, top_k)


def kept_by_top_p(probs: Tensor, top_p: float) -> Tensor:
    """bool [.., V]: the fewest most likely tokens of float32 probs [.., V] on CUDA whose mass reaches ``top_p`` < 1."""
    return _kept("top_p_renorm_probs", probs, top_p, is_deterministic=True)


def _kept(function: str, probs: Tensor, limit: float, **options: bool) -> Tensor:
    library = _library(may_compile=in_use())
    assert library is not None, "ask available() first"
    left: Tensor = getattr(library, function)(probs.reshape(-1, probs.shape[-1]), limit, **options)
    return (left > 0).view(probs.shape)


@lru_cache(maxsize=2)
def _library(*, may_compile: bool) -> Any | None:
    """``flashinfer.sampling``, its kernels loaded; None when it cannot be had."""
    try:
        flashinfer = load()
    except FlashInferError:
        return None
    try:
        spec = flashinfer.jit.sampling.gen_sampling_module()
        if not (spec.is_compiled or may_compile):
            return None
        announce_compile(spec, "sampling")
        flashinfer.sampling.get_sampling_module()
    except Exception as error:  # whatever a compiler or a loader may say: torch samples as well
        progress.report(f"sampling without FlashInfer: {compile_error('sampling', error)}")
        return None
    return flashinfer.sampling
