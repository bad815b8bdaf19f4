"""The FlashInfer library: its presence, its version, and its kernels."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from specdebug.base.attention_plans import FLASHINFER_LIBRARY
from specdebug.engine import progress
from specdebug.engine.errors import FlashInferError

VERSION = "0.6.12"
"""The version that :mod:`flashinfer_executor` is written for. Planning without a copy needs its arguments."""

LATENT = (512, 64)
"""Columns of a latent and of a key part, as DeepSeek's models have them; there are kernels for no others."""

_INSTEAD = "or set attention_backend: triton"
_in_use = False
_NO_POSITIONS = 0  # FlashInfer's code for keys and queries that are rotated already


def supports(dtype: torch.dtype, head_dim: int) -> str | None:
    """Say why FlashInfer cannot attend keys of this type and size; None when it can."""
    head_dims = FLASHINFER_LIBRARY.head_dims
    if head_dim not in head_dims:
        return f"FlashInfer has kernels for head_dim {', '.join(map(str, head_dims))}, not {head_dim}"
    return _supports_dtype(dtype)


def supports_latents(dtype: torch.dtype, latent: int, part: int) -> str | None:
    """Say why FlashInfer cannot attend latents of this type and size with such a key part; None when it can."""
    if (latent, part) != LATENT:
        shown = " and ".join(map(str, LATENT))
        return f"FlashInfer has kernels for latents and key parts of {shown} columns, not {latent} and {part}"
    return _supports_dtype(dtype)


def _supports_dtype(dtype: torch.dtype) -> str | None:
    dtypes = FLASHINFER_LIBRARY.dtypes
    return None if _name(dtype) in dtypes else f"FlashInfer computes in {' or '.join(dtypes)}, not in {_name(dtype)}"


@lru_cache(maxsize=1)
def load() -> Any:
    """Import the package. Raises FlashInferError if it is missing, broken, or of another version."""
    try:
        library = importlib.import_module("flashinfer")
    except Exception as error:  # what a broken installation raises depends on which part of it is missing
        reason = f"FlashInfer cannot be imported ({_reason(error)})"
        raise FlashInferError(f"{reason}: pip install 'specdebug[flashinfer]', {_INSTEAD}") from error
    if library.__version__ != VERSION:
        found = f"FlashInfer {library.__version__} is installed"
        raise FlashInferError(f"{found}, {VERSION} is needed: pip install 'specdebug[flashinfer]', {_INSTEAD}")
    return library


def paged_kernels(dtype: torch.dtype, head_dim: int) -> Any:
    """The module that plans and runs attention over a paged cache with int32 indices, compiled on first use.
    Raises FlashInferError if it cannot be compiled or loaded."""
    # as the wrappers ask for it, so that theirs and ours is one module: no sliding window, no soft cap, no fp16 sums
    wanted = ("fa2", dtype, dtype, dtype, torch.int32, head_dim, head_dim, _NO_POSITIONS, False, False, False)
    with _compiling(f"attention, head_dim {head_dim}, {_name(dtype)}") as (library, announce):
        announce(library.jit.gen_batch_prefill_module(*wanted))
        return library.prefill.get_batch_prefill_module(*wanted)


def latent_kernels(dtype: torch.dtype, device: torch.device) -> Any:
    """The same for latent attention."""
    with _compiling(f"latent attention, {_name(dtype)}") as (library, announce):
        backend = library.utils.determine_mla_backend(device)
        wanted = (backend, dtype, dtype, dtype, torch.int32, *LATENT, False)  # no profiler
        announce(library.jit.gen_batch_mla_module(*wanted))
        return library.mla.get_batch_mla_module(*wanted)


@contextmanager
def _compiling(what: str) -> Iterator[tuple[Any, Callable[[Any], None]]]:
    """Give the library, and what reports a module that is about to be compiled."""
    global _in_use
    library = load()
    try:
        yield library, lambda spec: announce_compile(spec, what)
    except Exception as error:
        raise compile_error(what, error) from error
    _in_use = True


def in_use() -> bool:
    """Return True if this process attends through FlashInfer. If not, nothing should wait for a compiler because the
    library happens to be there."""
    return _in_use


def announce_compile(spec: Any, what: str) -> None:
    """Report what FlashInfer is about to compile, unless it is compiled already. spec: a ``JitSpec``."""
    if not spec.is_compiled:
        progress.report(f"compiling flashinfer {what}")


def compile_error(what: str, error: Exception) -> FlashInferError:
    """The error of a failure to compile or load ``what``."""
    reason = f"FlashInfer cannot compile its {what} ({_reason(error)})"
    return FlashInferError(f"{reason}: it needs nvcc and ninja on the PATH, {_INSTEAD}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _reason(error: Exception) -> str:
    """The most telling line: a compiler's log is pages long, and its first error says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    telling = (line for line in lines if any(word in line for word in ("error:", "fatal", "cannot find")))
    return next(telling, lines[0])[:200]
