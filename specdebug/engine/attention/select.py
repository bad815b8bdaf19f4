"""Which backend executes a plan on a device."""

from __future__ import annotations

import importlib.util
from typing import Protocol

import torch

from specdebug.engine import progress
from specdebug.engine.attention.backend import AttentionBackend, TorchBackend, TritonBackend
from specdebug.engine.config import EngineConfig, InvalidOption

_CUDA_HEAD_DIMS = (32, 64, 128, 256)
_CUDA_TREE_SIZE = 1024
"""A tree's nodes and ancestors are tiles of the kernels that build it."""


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

    Where a library that is installed cannot execute its plan, Triton kernels do, and that is reported once.

    Raises:
        InvalidOption: no kernel on this device has heads of a model's size, or so large a tree.
        FlashInferError: the library is installed, and cannot be used.
    """
    if device.type == "cpu":
        return [TorchBackend()] * len(models)
    _check_tree(config)
    made: dict[tuple[int, int, int], AttentionBackend] = {}
    reasons: list[str] = []
    for model in models:
        geometry = (model.num_heads, model.num_kv_heads, model.head_dim)
        if geometry not in made:
            _check_heads(model)
            backend, reason = _MAKERS[config.attention_backend](config, model, dtype, device)
            made[geometry] = backend
            if reason is not None and reason not in reasons:
                reasons.append(reason)
                progress.report(f"{reason}: Triton kernels execute the {config.attention_backend} plan")
    return [made[model.num_heads, model.num_kv_heads, model.head_dim] for model in models]


def _check_heads(model: Heads) -> None:
    if model.head_dim not in _CUDA_HEAD_DIMS:
        sizes = ", ".join(map(str, _CUDA_HEAD_DIMS))
        raise InvalidOption(f"no kernels for this model's head_dim {model.head_dim} ({sizes}); use cpu", ("device",))


def _check_tree(config: EngineConfig) -> None:
    spec = config.speculative
    if spec is not None and spec.tree_size > _CUDA_TREE_SIZE:
        raise InvalidOption(
            f"kernels on a GPU have trees of up to {_CUDA_TREE_SIZE} nodes, not {spec.tree_size}",
            ("speculative", "num_draft_tokens"),
        )


_Made = tuple[AttentionBackend, str | None]
"""A backend, and why it is not the library that the plan is of."""


def _triton(config: EngineConfig, model: Heads, dtype: torch.dtype, device: torch.device) -> _Made:
    return TritonBackend(), None


def _flashinfer(config: EngineConfig, model: Heads, dtype: torch.dtype, device: torch.device) -> _Made:
    from specdebug.engine.attention.flashinfer_library import supports

    reason = supports(dtype, model.head_dim)
    if reason is None and importlib.util.find_spec("flashinfer") is None:
        reason = "FlashInfer is not installed"
    if reason is not None:
        return TritonBackend(), reason
    from specdebug.engine.attention.flashinfer_executor import FlashInferExecutor

    executor = FlashInferExecutor(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=dtype,
        device=device,
    )
    return executor, None


def _flash_attn(config: EngineConfig, model: Heads, dtype: torch.dtype, device: torch.device) -> _Made:
    """Without flash-attn our own kernels are the plan's usual executor: nothing to report."""
    from specdebug.engine.attention.flash_attn_executor import FlashAttnExecutor
    from specdebug.engine.attention.flash_attn_library import find

    topk = 1 if config.speculative is None else config.speculative.eagle_topk
    kernels, reason = find(dtype, model.head_dim, page_size=config.page_size, topk=topk, device=device)
    return (TritonBackend(), reason) if kernels is None else (FlashAttnExecutor(kernels), None)


_MAKERS = {"flashinfer": _flashinfer, "fa3": _flash_attn, "triton": _triton}
