"""The fa3 plan executed by flash-attn on CUDA: its installed generation, what that can attend, and the executor.

FlashAttention-3 (Shah et al., 2024, arXiv 2407.08608): Hopper only, pages of any size. FlashAttention-2 (Dao, 2023,
arXiv 2307.08691): pages of a multiple of 256 slots, so that trees are beyond it. Some kernels multiply what lies behind
a sequence's end in its last page by a weight of zero: where unwritten memory is NaN (``memory.fill: nan``), only ours
never read it. Written from the published signatures and docstrings, and tested against a stand-in with those only: it
has not been run with the library itself.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specdebug.base.attention_plans import FLASH_ATTN_LIBRARY
from specdebug.engine.attention.backend import DeviceAttention
from specdebug.engine.config import EngineConfig
from specdebug.engine.kernels.merge_pair import PartialAttention, merge_pair
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import Heads
from specdebug.engine.textbook.attention.planner import CascadeMetadata, Metadata, PagedMetadata

_GENERATIONS = dict(zip((3, 2), FLASH_ATTN_LIBRARY.generations, strict=True))
_FA2_PAGE = 256
_AMPERE = 8


class FlashAttention3:
    """``flash_attn_interface``."""

    name = _GENERATIONS[3].name

    def __init__(self, module: Any) -> None:
        self._attend: Callable[..., Any] = module.flash_attn_with_kvcache

    def attend(self, q: Tensor, k: Tensor, v: Tensor, batch: PagedMetadata, *, causal: bool) -> Tensor:
        """q [n, Hq, D] over one layer's pages k, v [pages, P, Hkv, D] -> [n, Hq, D]; zeros for a query without keys.

        Launches depend on shapes only.
        """
        if batch.q_len is not None:
            out: Tensor = self._attend(_by_sequence(q, batch), k, v, **_pages(q, batch), causal=causal)
            return out.flatten(0, 1)
        # the longest chunk is known on the device only; no chunk is longer than all of them
        rows = {"cu_seqlens_q": batch.cu_seqlens_q, "max_seqlen_q": q.shape[0]}
        packed: Tensor = self._attend(q, k, v, **_pages(q, batch), **rows, causal=causal)
        return packed

    def attend_with_lse(self, q: Tensor, k: Tensor, v: Tensor, batch: PagedMetadata) -> tuple[Tensor, Tensor]:
        """Attend without a causal mask where ``q_len`` is given: [B, q_len, Hq, D], and the log of the summed weights,
        float32 [B, Hq, q_len]; -inf for a query without keys."""
        out, lse, *_ = self._attend(_by_sequence(q, batch), k, v, **_pages(q, batch), return_softmax_lse=True)
        return out, lse


class FlashAttention2:
    """``flash_attn``; methods as those of ``FlashAttention3``."""

    name = _GENERATIONS[2].name

    def __init__(self, module: Any) -> None:
        self._attend: Callable[..., Any] = module.flash_attn_with_kvcache
        self._attend_packed: Callable[..., Any] = module.flash_attn_varlen_func

    def attend(self, q: Tensor, k: Tensor, v: Tensor, batch: PagedMetadata, *, causal: bool) -> Tensor:
        scale = q.shape[-1] ** -0.5
        if batch.q_len is not None:
            pages = {"cache_seqlens": batch.cache_seqlens, "block_table": batch.page_table}
            out: Tensor = self._attend(_by_sequence(q, batch), k, v, **pages, softmax_scale=scale, causal=causal)
            return out.flatten(0, 1)
        ends = functional.pad(batch.cache_seqlens.cumsum(0, dtype=torch.int32), (1, 0))
        rows = {"cu_seqlens_q": batch.cu_seqlens_q, "max_seqlen_q": q.shape[0]}
        keys = {"cu_seqlens_k": ends, "max_seqlen_k": batch.page_table.shape[1] * batch.page_size}
        options = {"softmax_scale": scale, "causal": causal, "block_table": batch.page_table}
        packed: Tensor = self._attend_packed(q, k, v, **rows, **keys, **options)
        return packed

    def attend_with_lse(self, q: Tensor, k: Tensor, v: Tensor, batch: PagedMetadata) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("a cascade has pages of single slots, which FlashAttention-2 does not take")


FlashAttnKernels = FlashAttention3 | FlashAttention2
"""One generation of the library."""


def find(
    dtype: torch.dtype, head_dim: int, *, page_size: int, topk: int, device: torch.device
) -> tuple[FlashAttnKernels | None, str | None]:
    """Load the newest installed generation that can execute the fa3 plan, or say why what is installed cannot.

    (None, None): nothing is installed.
    """
    reasons: list[str] = []
    for generation, published in _GENERATIONS.items():
        if importlib.util.find_spec(published.module) is None:
            continue
        major = torch.cuda.get_device_capability(device)[0]
        reason = supports(generation, dtype, head_dim, page_size=page_size, topk=topk, major=major)
        if reason is None:
            try:
                return _load(generation), None
            except Exception as error:  # what a broken installation raises depends on which part of it is missing
                lines = str(error).splitlines() or [type(error).__name__]
                reason = f"{published.name} cannot be imported ({lines[0][:200]})"
        reasons.append(reason)
    return None, "; ".join(reasons) or None


def supports(
    generation: int, dtype: torch.dtype, head_dim: int, *, page_size: int, topk: int, major: int
) -> str | None:
    """Say why a generation cannot execute the plan on a device of this major capability; None when it can."""
    name, only = _GENERATIONS[generation].name, _GENERATIONS[generation].capability
    dtypes, head_dims = FLASH_ATTN_LIBRARY.dtypes, FLASH_ATTN_LIBRARY.head_dims
    computed_in = str(dtype).removeprefix("torch.")
    if computed_in not in dtypes:
        return f"{name} computes in {' or '.join(dtypes)}, not in {computed_in}"
    if head_dim not in head_dims:
        return f"{name} has kernels for head_dim up to {head_dims[-1]} in steps of {head_dims[0]}, not {head_dim}"
    if only is not None:
        return None if major == only else f"{name} is for GPUs of capability {only}.x, not {major}.x"
    if major < _AMPERE:
        return f"{name} is for GPUs of capability {_AMPERE}.0 and above"
    if page_size % _FA2_PAGE:
        return f"{name} has pages of a multiple of {_FA2_PAGE} slots, not of page_size {page_size}"
    return None if topk == 1 else f"{name} has no trees: eagle_topk must be 1, not {topk}"


@lru_cache(maxsize=2)
def _load(generation: int) -> FlashAttnKernels:
    module = importlib.import_module(_GENERATIONS[generation].module)
    return FlashAttention3(module) if generation == 3 else FlashAttention2(module)


def _by_sequence(q: Tensor, batch: PagedMetadata) -> Tensor:
    """q [n, Hq, D], of any row stride, as [B, q_len, Hq, D]."""
    assert batch.q_len is not None
    return q.view(-1, batch.q_len, *q.shape[1:])


def _pages(q: Tensor, batch: PagedMetadata) -> dict[str, Any]:
    return {"cache_seqlens": batch.cache_seqlens, "page_table": batch.page_table, "softmax_scale": q.shape[-1] ** -0.5}


class FlashAttnExecutor:
    """Makes attention for batches of the fa3 plan. It owns no memory: the library allocates what it needs."""

    def __init__(self, kernels: FlashAttnKernels) -> None:
        self._kernels = kernels

    def bind(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, *, graph: bool = False
    ) -> FlashAttnAttention:
        return FlashAttnAttention(self._kernels, metadata, pool, out_cache_loc)


def make_flash_attn(
    config: EngineConfig, model: Heads, dtype: torch.dtype, device: torch.device
) -> tuple[FlashAttnExecutor | None, str | None]:
    """Make the executor for a model, or say why the installed flash-attn cannot execute its plan.

    Without flash-attn our own kernels are the plan's usual executor, and there is no reason to report.
    """
    topk = 1 if config.speculative is None else config.speculative.eagle_topk
    kernels, reason = find(dtype, model.head_dim, page_size=config.page_size, topk=topk, device=device)
    if kernels is not None and model.kv_layout == "mla":
        return None, f"{kernels.name} is called for keys and values by head, and this model stores latents"
    return (None, reason) if kernels is None else (FlashAttnExecutor(kernels), None)


class FlashAttnAttention(DeviceAttention):
    """Attention by page tables, in one pass or a cascade."""

    def __init__(
        self, kernels: FlashAttnKernels, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None
    ) -> None:
        super().__init__(pool, out_cache_loc)
        self._kernels = kernels
        self.replan(metadata)

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata``, of the same kind and shape, from now on."""
        assert isinstance(metadata, (PagedMetadata, CascadeMetadata))
        self._metadata = metadata

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        if q.shape[0] == 0:
            return q.new_empty(0, q.shape[1] * q.shape[2])
        if isinstance(self._metadata, CascadeMetadata):
            parts = [self._part(layer_id, q, batch) for batch in (self._metadata.prefix, self._metadata.expand)]
            return merge_pair(*parts).flatten(1)
        batch = self._metadata
        causal = batch.causal or batch.q_len is None
        return self._kernels.attend(q, *self._pages(layer_id, batch), batch, causal=causal).flatten(1)

    def _part(self, layer_id: int, q: Tensor, batch: PagedMetadata) -> PartialAttention:
        return PartialAttention(*self._kernels.attend_with_lse(q, *self._pages(layer_id, batch), batch))

    def _pages(self, layer_id: int, batch: PagedMetadata) -> tuple[Tensor, Tensor]:
        """One layer's keys and values as pages [pages, P, Hkv, D] of the size that the batch's table counts in."""
        k, v = self._pool.kv_buffer(layer_id)
        shape = (-1, batch.page_size, *k.shape[1:])
        return k.view(shape), v.view(shape)
