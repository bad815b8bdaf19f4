"""The part of FlashInfer that the executor uses, on CPU tensors: same calls, same buffers, dense attention.

A wrapper attends by the buffers it holds when it runs, as the library's kernels do, whatever it was planned with.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor


class Kernels:
    """What ``get_batch_prefill_module`` returns: records what it was asked to schedule."""

    def __init__(self) -> None:
        self.plans: list[dict[str, Any]] = []

    def plan(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        pinned_workspace: Tensor,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_lens: Tensor,
        total_num_rows: int,
        batch_size: int,
        num_qo_heads: int,
        num_kv_heads: int,
        page_size: int,
        enable_cuda_graph: bool,
        head_dim_qk: int,
        head_dim_vo: int,
        causal: bool,
        window_left: int,
        fixed_split_size: int,
        disable_split_kv: bool,
        num_colocated_ctas: int,
    ) -> None:
        assert int_workspace.numel() == pinned_workspace.numel()
        assert page_size == 1
        assert enable_cuda_graph
        assert (window_left, fixed_split_size, disable_split_kv, num_colocated_ctas) == (-1, -1, False, 0)
        assert head_dim_qk == head_dim_vo
        assert num_qo_heads % num_kv_heads == 0
        self.plans.append(
            {
                "qo_indptr": qo_indptr.tolist(),
                "kv_indptr": kv_indptr.tolist(),
                "kv_lens": kv_lens.tolist(),
                "rows": total_num_rows,
                "batch": batch_size,
                "causal": causal,
                "staging": pinned_workspace.data_ptr(),
                "scratch": float_workspace.data_ptr(),
            }
        )


class Wrapper:
    """Either wrapper; ``q_len`` 1 is the decode wrapper."""

    made: ClassVar[list[Wrapper]] = []

    def __init__(self, float_workspace: Tensor, *, kv_layout: str, use_cuda_graph: bool, backend: str) -> None:
        assert (kv_layout, backend) == ("NHD", "fa2")
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

    def __init__(
        self,
        float_workspace: Tensor,
        *,
        use_tensor_cores: bool,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__(float_workspace, **options)
        assert use_tensor_cores
        if self.graph:
            assert paged_kv_indptr_buffer is not None
            assert paged_kv_indices_buffer is not None
            assert paged_kv_last_page_len_buffer is not None
            assert (paged_kv_last_page_len_buffer == 1).all()
            self._paged_kv_indptr_buf, self._paged_kv_indices_buf = paged_kv_indptr_buffer, paged_kv_indices_buffer
            self._qo_indptr_buf = torch.arange(len(paged_kv_indptr_buffer))

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        assert page_size == 1
        self._take(torch.arange(len(indptr)), indptr, indices, last_page_len)


class PrefillWrapper(Wrapper):
    """``BatchPrefillWithPagedKVCacheWrapper``."""

    def __init__(
        self,
        float_workspace: Tensor,
        *,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__(float_workspace, **options)
        if self.graph:
            assert qo_indptr_buf is not None
            assert paged_kv_indptr_buf is not None
            assert paged_kv_indices_buf is not None
            assert paged_kv_last_page_len_buf is not None
            self._qo_indptr_buf, self._paged_kv_indptr_buf = qo_indptr_buf, paged_kv_indptr_buf
            self._paged_kv_indices_buf = paged_kv_indices_buf

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        assert page_size == 1
        self.causal = causal
        self._take(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)


class LatentKernels:
    """What ``get_batch_mla_module`` returns: attends what the schedule it is given says."""

    def __init__(self) -> None:
        self.plans: list[dict[str, Any]] = []

    def plan(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        pinned_workspace: Tensor,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_lens: Tensor,
        num_heads: int,
        head_dim_out: int,
        causal: bool,
    ) -> int:
        assert int_workspace.numel() == pinned_workspace.numel()
        assert all(tensor.dtype == torch.int32 for tensor in (qo_indptr, kv_indptr, kv_lens))
        self.plans.append(
            {
                "qo_indptr": qo_indptr.tolist(),
                "kv_indptr": kv_indptr.tolist(),
                "kv_lens": kv_lens.tolist(),
                "heads": num_heads,
                "latent": head_dim_out,
                "causal": causal,
                "space": int_workspace.data_ptr(),
            }
        )
        return len(self.plans) - 1

    def run(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        plan: int,
        q_latent: Tensor,
        q_part: Tensor,
        latents: Tensor,
        parts: Tensor,
        kv_indices: Tensor,
        out: Tensor,
        lse: Tensor | None,
        mask_mode: int,
        num_heads: int,
        page_size: int,
        scale: float,
        lse_base_e: bool,
    ) -> None:
        made = self.plans[plan]
        assert made["space"] == int_workspace.data_ptr()
        assert (made["heads"], made["latent"]) == (num_heads, q_latent.shape[2])
        assert made["causal"] == bool(mask_mode)
        assert page_size == 1
        queries, rows = torch.cat((q_latent, q_part), 2), torch.cat((latents, parts), 2)[:, 0]
        for b, length in enumerate(made["kv_lens"]):
            own = slice(*made["qo_indptr"][b : b + 2])
            slots = kv_indices[made["kv_indptr"][b] :][:length].long()
            scores = torch.einsum("nhd,kd->hnk", queries[own], rows[slots]) * scale
            if mask_mode:
                count = scores.shape[1]
                scores += torch.full((count, length), float("-inf")).triu(length - count + 1)
            out[own] = torch.einsum("hnk,kc->nhc", scores.softmax(-1), rows[slots, : q_latent.shape[2]])
