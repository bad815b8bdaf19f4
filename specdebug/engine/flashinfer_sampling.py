"""Top-k and top-p through FlashInfer: on CUDA it finds which tokens are kept without sorting the vocabulary.

Only that is taken from the library: its sums are added up in any order, and it makes zeros of a row of NaNs, which a
debugger must not. Its softmax is not used, since torch's is one kernel too.

The library keeps every token as likely as the last one kept, as the sampler does. Where the mass reaches ``top_p`` up
to rounding, the two may differ by a token, as torch does between devices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import Tensor

from specdebug.engine import progress
from specdebug.engine.attention.flashinfer_library import announce_compile, compile_error, load
from specdebug.engine.errors import FlashInferError


def available() -> bool:
    """Whether FlashInfer samples here; compiles its kernels on the first call. Torch does where it cannot."""
    return _library() is not None


def kept_by_top_k(probs: Tensor, top_k: int) -> Tensor:
    """bool [.., V]: the ``top_k`` most likely tokens of float32 probs [.., V] on CUDA, 0 < top_k < V."""
    rows = probs.reshape(-1, probs.shape[-1])
    left: Tensor = _sampling().top_k_renorm_probs(rows, top_k)
    return (left > 0).view(probs.shape)


def kept_by_top_p(probs: Tensor, top_p: float) -> Tensor:
    """bool [.., V]: the fewest most likely tokens of float32 probs [.., V] on CUDA whose mass reaches ``top_p`` < 1."""
    rows = probs.reshape(-1, probs.shape[-1])
    left: Tensor = _sampling().top_p_renorm_probs(rows, top_p, is_deterministic=True)
    return (left > 0).view(probs.shape)


def _sampling() -> Any:
    library = _library()
    assert library is not None, "ask available() first"
    return library


@lru_cache(maxsize=1)
def _library() -> Any | None:
    """``flashinfer.sampling``, its kernels loaded; None when it cannot be had."""
    try:
        flashinfer = load()
    except FlashInferError:
        return None
    try:
        announce_compile(flashinfer.jit.sampling.gen_sampling_module(), "sampling")
        flashinfer.sampling.get_sampling_module()
    except Exception as error:  # whatever a compiler or a loader may say: torch samples as well
        progress.report(f"sampling without FlashInfer: {compile_error('sampling', error)}")
        return None
    return flashinfer.sampling
