"""Choose the planner and the backend that serve a plan on a device."""

from __future__ import annotations

import torch

from specdebug.attention_plans import PLANS
from specdebug.engine import progress
from specdebug.engine.attention.backend import AttentionBackend, Heads, MakeExecutor, TorchBackend, TritonBackend
from specdebug.engine.attention.planner import AttentionPlanner
from specdebug.engine.config import EngineConfig, InvalidOption
from specdebug.engine.memory.req_to_token import ReqToToken
from specdebug.plugins import import_named

_CUDA_HEAD_DIMS = (32, 64, 128, 256)
_CUDA_TREE_SIZE = 1024
"""The most nodes of a tree; they and their ancestors are tiles of the kernels that build it."""


def planner_class(plan: str) -> type[AttentionPlanner]:
    """The planner of a plan. Raises PluginError when its package does not have it."""
    planner: type[AttentionPlanner] = import_named(PLANS[plan].planner, f"the planner of attention plan '{plan}'")
    return planner


def make_planner(config: EngineConfig, req_to_token: ReqToToken) -> AttentionPlanner:
    """The planner that an engine of this configuration uses. Raises as :func:`planner_class` does."""
    return planner_class(config.attention_backend)(config, req_to_token)


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
    spec = config.speculative
    if spec is not None and spec.tree_size > _CUDA_TREE_SIZE:
        problem = f"kernels on a GPU have trees of up to {_CUDA_TREE_SIZE} nodes, not {spec.tree_size}"
        raise InvalidOption(problem, ("speculative", "num_draft_tokens"))
    made: dict[tuple[int, int, int], AttentionBackend] = {}
    reasons: list[str] = []
    backends = []
    for model in models:
        geometry = (model.num_heads, model.num_kv_heads, model.head_dim)
        if geometry not in made:
            made[geometry], reason = _make(config, model, dtype, device)
            if reason is not None and reason not in reasons:
                reasons.append(reason)
                progress.report(f"{reason}: Triton kernels execute the {config.attention_backend} plan")
        backends.append(made[geometry])
    return backends


def _make(
    config: EngineConfig, model: Heads, dtype: torch.dtype, device: torch.device
) -> tuple[AttentionBackend, str | None]:
    """The backend for a model, and the reason why it is not the plan's library; None where there is nothing to say."""
    if model.head_dim not in _CUDA_HEAD_DIMS:
        sizes = ", ".join(map(str, _CUDA_HEAD_DIMS))
        raise InvalidOption(f"no kernels for this model's head_dim {model.head_dim} ({sizes}); use cpu", ("device",))
    library = PLANS[config.attention_backend].library
    if library is None:
        return TritonBackend(), None
    make: MakeExecutor = import_named(library.executor, f"the executor of attention plan '{config.attention_backend}'")
    executor, reason = make(config, model, dtype, device)
    return (TritonBackend(), reason) if executor is None else (executor, None)
