"""Which backend executes a plan on a device."""

from __future__ import annotations

import importlib.util
from typing import Protocol

import torch

from specdebug.engine import progress
from specdebug.engine.attention.backend import AttentionBackend, TorchBackend, TritonBackend
from specdebug.engine.config import EngineConfig, InvalidOption

_CUDA_HEAD_DIMS = (32, 64, 128, 256)


class Heads(Protocol):
    """The attention geometry of a model."""

    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def make_backends(
    config: EngineConfig, models: list[Heads], dtype: torch.dtype, device: torch.device
) -> list[AttentionBackend]:
    """A backend for each model; those of one geometry share theirs, and with it its scratch memory.

    Raises:
        InvalidOption: no kernel on this device has heads of a model's size.
        FlashInferError: the library is installed, and cannot be used.
    """
    made: dict[tuple[int, int, int], AttentionBackend] = {}
    for model in models:
        geometry = (model.num_heads, model.num_kv_heads, model.head_dim)
        if geometry not in made:
            made[geometry] = _make(config.attention_backend, model, dtype, device)
    return [made[model.num_heads, model.num_kv_heads, model.head_dim] for model in models]


def _make(plan: str, model: Heads, dtype: torch.dtype, device: torch.device) -> AttentionBackend:
    if device.type == "cpu":
        return TorchBackend()
    if model.head_dim not in _CUDA_HEAD_DIMS:
        sizes = ", ".join(map(str, _CUDA_HEAD_DIMS))
        raise InvalidOption(f"no kernels for this model's head_dim {model.head_dim} ({sizes}); use cpu", ("device",))
    if plan != "flashinfer":
        return TritonBackend()
    from specdebug.engine.attention.flashinfer_library import supports

    reason = supports(dtype, model.head_dim)
    if reason is None and importlib.util.find_spec("flashinfer") is None:
        reason = "FlashInfer is not installed"
    if reason is not None:
        progress.report(f"{reason}: Triton kernels execute the flashinfer plan")
        return TritonBackend()
    from specdebug.engine.attention.flashinfer_executor import FlashInferExecutor

    return FlashInferExecutor(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=dtype,
        device=device,
    )
