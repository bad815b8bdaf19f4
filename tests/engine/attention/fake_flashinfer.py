"""The part of FlashInfer that the executor uses, on CPU tensors: same calls, same buffers, dense attention.

A wrapper attends by the buffers it holds when it runs, as the library's kernels do, whatever it was planned with.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

BATCH = ["scratch", "space", "staging", "qo_indptr", "kv_indptr", "kv_lens"]
SIZES = ["rows", "batch", "heads", "kv_heads", "page", "graph", "dim", "value_dim"]
PLANNED = [*BATCH, *SIZES, "causal", "window", "split", "whole", "colocated"]
LATENT_PLANNED = [*BATCH, "heads", "latent", "causal"]
"""The arguments of the library's two ``plan`` functions, in order."""


def planned(names: list[str], arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Arguments by name: lists and numbers as they are, workspaces by their addresses."""
    given = dict(zip(names, arguments, strict=True))
    assert given["space"].numel() == given["staging"].numel()
    for name in ("qo_indptr", "kv_indptr", "kv_lens"):
        assert given[name].dtype == torch.int32
        given[name] = given[name].tolist()
    return given | {name: given[name].data_ptr() for name in ("scratch", "space", "staging")}


class Kernels:
    """What ``get_batch_prefill_module`` returns: records what it was asked to schedule."""

    def __init__(self) -> None:
        self.plans: list[dict[str, Any]] = []

    def plan(self, *arguments: Any) -> None:
        plan = planned(PLANNED, arguments)
        assert (plan["page"], plan["graph"]) == (1, True)
        assert [plan[name] for name in ("window", "split", "whole", "colocated")] == [-1, -1, False, 0]
        assert plan["dim"] == plan["value_dim"]
        assert plan["heads"] % plan["kv_heads"] == 0
        names = ("qo_indptr", "kv_indptr", "kv_lens", "rows", "batch", "causal", "staging", "scratch")
        self.plans.append({name: plan[name] for name in names})


class Wrapper:
    """Either wrapper; ``q_len`` 1 is the decode wrapper."""

    made: ClassVar[list[Wrapper]] = []
    suffix = "_buf"
    """Of the names of its buffers."""

    def __init__(
        self, float_workspace: Tensor, *, kv_layout: str, use_cuda_graph: bool, backend: str, **buffers: Tensor
    ) -> None:
        assert (kv_layout, backend) == ("NHD", "fa2")
        names = [f"paged_kv_{name}{self.suffix}" for name in ("indptr", "indices", "last_page_len")]
        assert set(buffers) == set(names if use_cuda_graph else [])
        if use_cuda_graph:
            self._paged_kv_indptr_buf, self._paged_kv_indices_buf, last_page_len = (buffers[name] for name in names)
            assert (last_page_len == 1).all()
        self.float_workspace = float_workspace
        self.graph = use_cuda_graph
        self.plans = 0
        self.causal = False
        self._custom_mask_buf: Tensor | None = None
        self._mask_indptr_buf: Tensor | None = None
        self._pin_memory_int_workspace_buffer = torch.empty(8)
        Wrapper.made.append(self)

    def reset_workspace_buffer(self, float_workspace: Tensor, int_workspace: Tensor) -> None:
        self.float_workspace, self.int_workspace = float_workspace, int_workspace

    def _take(self, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor, last_page_len: Tensor) -> None:
        assert self._pin_memory_int_workspace_buffer.numel() == self.int_workspace.numel()
        assert (last_page_len == 1).all()
        self.plans += 1
        self.rows = int(qo_indptr[-1])
        if self.graph:
            assert len(kv_indptr) == len(self._paged_kv_indptr_buf), "the batch size of a graph is fixed"
            self._qo_indptr_buf.copy_(qo_indptr)
            self._paged_kv_indptr_buf.copy_(kv_indptr)
            self._paged_kv_indices_buf[: len(kv_indices)].copy_(kv_indices)
        else:
            self._qo_indptr_buf, self._paged_kv_indptr_buf = qo_indptr, kv_indptr
            self._paged_kv_indices_buf = kv_indices
            self._custom_mask_buf = self._mask_indptr_buf = None

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor:
        assert q.shape[0] == self.rows
        assert out.is_contiguous()
        k_cache, v_cache = paged_kv_cache
        assert k_cache.shape[1] == 1
        qo, kv = self._qo_indptr_buf.tolist(), self._paged_kv_indptr_buf.tolist()
        group = q.shape[1] // k_cache.shape[2]
        for b in range(len(kv) - 1):
            slots = self._paged_kv_indices_buf[kv[b] : kv[b + 1]].long()
            rows = slice(qo[b], qo[b + 1])
            n, m = qo[b + 1] - qo[b], slots.numel()
            k = k_cache[slots, 0].repeat_interleave(group, 1).double()
            v = v_cache[slots, 0].repeat_interleave(group, 1).double()
            scores = torch.einsum("nhd,mhd->hnm", q[rows].double(), k) / q.shape[2] ** 0.5
            scores = scores.masked_fill(~self._visible(b, n, m), float("-inf"))
            out[rows] = torch.einsum("hnm,mhd->nhd", torch.softmax(scores, dim=-1), v).to(out.dtype)
        return out

    def _visible(self, b: int, n: int, m: int) -> Tensor:
        if self._custom_mask_buf is not None:
            assert self._mask_indptr_buf is not None
            bit = torch.arange(n * m)
            byte = self._custom_mask_buf[int(self._mask_indptr_buf[b]) + bit // 8].int()
            return ((byte >> (bit % 8)) & 1).bool().view(n, m)
        if self.causal:
            return torch.arange(m) <= m - n + torch.arange(n).unsqueeze(1)
        return torch.ones(n, m, dtype=torch.bool)


class DecodeWrapper(Wrapper):
    """``BatchDecodeWithPagedKVCacheWrapper``."""

    suffix = "_buffer"

    def __init__(self, float_workspace: Tensor, *, use_tensor_cores: bool, **options: Any) -> None:
        assert use_tensor_cores
        super().__init__(float_workspace, **options)
        if self.graph:
            self._qo_indptr_buf = torch.arange(len(self._paged_kv_indptr_buf))

    def plan(self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, *sizes: int, **types: torch.dtype) -> None:
        assert (len(sizes), sizes[-1], set(types)) == (4, 1, {"q_data_type", "kv_data_type"})
        self._take(torch.arange(len(indptr)), indptr, indices, last_page_len)


class PrefillWrapper(Wrapper):
    """``BatchPrefillWithPagedKVCacheWrapper``."""

    def __init__(self, float_workspace: Tensor, *, qo_indptr_buf: Tensor | None = None, **options: Any) -> None:
        super().__init__(float_workspace, **options)
        if self.graph:
            assert qo_indptr_buf is not None
            self._qo_indptr_buf = qo_indptr_buf

    def plan(
        self,
        qo_indptr: Tensor,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        *sizes: int,
        causal: bool,
        **types: Any,
    ) -> None:
        assert (len(sizes), sizes[-1], set(types)) == (4, 1, {"q_data_type", "kv_data_type"})
        self.causal = causal
        self._take(qo_indptr, indptr, indices, last_page_len)


class LatentKernels:
    """What ``get_batch_mla_module`` returns: attends what the schedule it is given says."""

    def __init__(self) -> None:
        self.plans: list[dict[str, Any]] = []

    def plan(self, *arguments: Any) -> int:
        plan = planned(LATENT_PLANNED, arguments)
        names = ("qo_indptr", "kv_indptr", "kv_lens", "heads", "latent", "causal", "space")
        self.plans.append({name: plan[name] for name in names})
        return len(self.plans) - 1

    def run(self, scratch: Tensor, space: Tensor, plan: int, *arguments: Any) -> None:
        """q's latents and parts, the cache's, its slots, out, and how to attend."""
        q_latent, q_part, latents, parts, kv_indices, out, lse, mask_mode, num_heads, page_size, scale, _ = arguments
        made = self.plans[plan]
        assert made["space"] == space.data_ptr()
        assert (made["heads"], made["latent"]) == (num_heads, q_latent.shape[2])
        assert (made["causal"], lse, page_size) == (bool(mask_mode), None, 1)
        queries, rows = torch.cat((q_latent, q_part), 2), torch.cat((latents, parts), 2)[:, 0]
        for b, length in enumerate(made["kv_lens"]):
            own = slice(*made["qo_indptr"][b : b + 2])
            slots = kv_indices[made["kv_indptr"][b] :][:length].long()
            scores = torch.einsum("nhd,kd->hnk", queries[own], rows[slots]) * scale
            if mask_mode:
                count = scores.shape[1]
                scores += torch.full((count, length), float("-inf")).triu(length - count + 1)
            out[own] = torch.einsum("hnk,kc->nhc", scores.softmax(-1), rows[slots, : q_latent.shape[2]])
