"""A backend binds metadata to a KV pool and to the slots that a batch writes: torch on a CPU, device kernels on CUDA.

The result attends layer by layer, and can be planned anew for the next batch of the same shape: a captured graph keeps
its attention. Which planner and backend serve a plan on a device is chosen here.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from specdebug.base.attention_plans import PLANS
from specdebug.base.errors import InvalidOption
from specdebug.base.plugins import import_named
from specdebug.engine import progress
from specdebug.engine.config import EngineConfig
from specdebug.engine.kernels.kv_cache import KVDestination
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import Heads, LayerAttention
from specdebug.engine.textbook.attention.executor import TorchAttention
from specdebug.engine.textbook.attention.planner import AttentionPlanner, Metadata
from specdebug.engine.textbook.memory.req_to_token import ReqToToken


class BoundAttention(LayerAttention, Protocol):
    """Attention of one batch over one pool."""

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata`` from now on. Under a graph it lies in the buffers it lay in when bound."""


class AttentionBackend(Protocol):
    """Makes attention for batches of one plan on one device."""

    def bind(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, *, graph: bool = False
    ) -> BoundAttention:
        """Bind a batch whose own KV goes to ``out_cache_loc`` (int64 [n]); None: it has none, and only ``attend`` is
        called. ``graph``: it is about to be captured, so metadata and locations are static buffers."""


class MakeExecutor(Protocol):
    """The function of a plan's library that makes a backend of its kernels for one model."""

    def __call__(
        self, config: EngineConfig, model: Heads, dtype: torch.dtype, device: torch.device
    ) -> tuple[AttentionBackend | None, str | None]:
        """Return the backend, or None and the reason to report; the reason is None if there is none to report."""


class DeviceAttention(ABC):
    """Attention by device kernels over one prepared batch of one pool, as ``StoredAttention`` and ``BoundAttention``.

    out_cache_loc: int64 [n], where the batch's own keys and values go; None: it has none. Shapes as
    ``interface.LayerAttention`` has them.
    """

    def __init__(self, pool: KVPool, out_cache_loc: Tensor | None) -> None:
        self._pool = pool
        self._loc = out_cache_loc

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, Hq, D], k [n, Hkv, D], v [n, Hkv, Dv] -> [n, Hq * Dv]."""
        assert self._loc is not None
        self._pool.write(layer_id, self._loc, k, v)
        return self.attend(layer_id, q)

    def destination(self, layer_id: int) -> KVDestination:
        assert self._loc is not None
        return self._pool.destination(layer_id, self._loc)

    @abstractmethod
    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        """q [n, Hq, D] -> [n, Hq * Dv], over keys and values that are written."""

    @abstractmethod
    def replan(self, metadata: Metadata) -> None: ...


class TorchBackend:
    """The reference: any plan, CPU tensors. ``scale``: of attention's scores, by default D ** -0.5."""

    def __init__(self, scale: float | None = None) -> None:
        self._scale = scale

    def bind(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, *, graph: bool = False
    ) -> BoundAttention:
        return TorchAttention(metadata, pool, out_cache_loc, self._scale)


class TritonBackend:
    """Our own kernels: any plan, CUDA tensors. ``scale``: of attention's scores, by default D ** -0.5."""

    def __init__(self, scale: float | None = None) -> None:
        self._scale = scale

    def bind(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, *, graph: bool = False
    ) -> BoundAttention:
        from specdebug.engine.gpu.triton_executor import TritonAttention  # triton comes with CUDA builds only

        return TritonAttention(metadata, pool, out_cache_loc, self._scale)


_CUDA_HEAD_DIMS = (32, 64, 128, 256)
_CUDA_LATENT_DIMS = (32, 64, 128, 256, 512)
_CUDA_KEY_PARTS = (16, 32, 64, 128)
"""What our kernels hold as tiles: heads, and of latent attention the latent and the rotated part of a row."""
_CUDA_TREE_SIZE = 1024
"""The most nodes of a tree; they and their ancestors are tiles of the kernels that build it."""


def planner_class(plan: str, kv_layout: str = "mha") -> type[AttentionPlanner]:
    """The planner of a plan for models of that layout. Raises PluginError when its package does not have it."""
    record = PLANS[plan]
    named = record.mla_planner if kv_layout == "mla" and record.mla_planner is not None else record.planner
    planner: type[AttentionPlanner] = import_named(named, f"the planner of attention plan '{plan}'")
    return planner


def make_planner(config: EngineConfig, req_to_token: ReqToToken, kv_layout: str = "mha") -> AttentionPlanner:
    """The planner that an engine of this configuration uses; ``kv_layout``: of the model that drafts, or, without one,
    of the target. Raises as :func:`planner_class` does."""
    return planner_class(config.attention_backend, kv_layout)(config, req_to_token)


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
        return [TorchBackend(model.softmax_scale) for model in models]
    spec = config.speculative
    if spec is not None and spec.tree_size > _CUDA_TREE_SIZE:
        problem = f"kernels on a GPU have trees of up to {_CUDA_TREE_SIZE} nodes, not {spec.tree_size}"
        raise InvalidOption(problem, ("speculative", "num_draft_tokens"))
    made: dict[tuple[object, ...], AttentionBackend] = {}
    reasons: list[str] = []
    backends = []
    for model in models:
        heads = (model.num_heads, model.num_kv_heads, model.head_dim, model.value_dim)
        geometry = (model.kv_layout, *heads, model.softmax_scale)
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
    if problem := _no_kernels_for(model):
        raise InvalidOption(f"no kernels for this model's {problem}; use cpu", ("device",))
    library = PLANS[config.attention_backend].library
    if library is None:
        return TritonBackend(model.softmax_scale), None
    make: MakeExecutor = import_named(library.executor, f"the executor of attention plan '{config.attention_backend}'")
    executor, reason = make(config, model, dtype, device)
    return (TritonBackend(model.softmax_scale), reason) if executor is None else (executor, None)


def _no_kernels_for(model: Heads) -> str | None:
    """The size that none of our kernels has, and those that there are; None when there is one for this model."""
    sizes: list[tuple[str, int, tuple[int, ...]]] = [("head_dim", model.head_dim, _CUDA_HEAD_DIMS)]
    if model.kv_layout == "mla":
        sizes = [
            ("kv_lora_rank", model.value_dim, _CUDA_LATENT_DIMS),
            ("qk_rope_head_dim", model.rotary_dim, _CUDA_KEY_PARTS),
        ]
    for name, size, there in sizes:
        if size not in there:
            return f"{name} {size} ({', '.join(map(str, there))})"
    return None
