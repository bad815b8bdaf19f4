"""FlashInfer's wrappers without a GPU: attention in torch, planned into the buffers that SGLang's backend made them
with. A kernel reads lengths and slots from these, as pointers, and so do they, be they right or wrong. Pages are of one
slot."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.sglang.inside.attention import (
    attend,
    attend_slots,
    from_pointer,
    merge_state_v2,
    padded,
    tell_read,
    tell_reads,
)
from specdebug.targets.sglang.inside.launches import Read, reads_like_a_kernel, refusal, refuse, rows_of
from specdebug.targets.sglang.inside.seats import NoSeat, Seat, installed
from specdebug.targets.sglang.inside.sgl_kernel import top_k_renorm_prob, top_p_renorm_prob

_KV = tuple[Tensor, Tensor]
_DECODE, _PREFILL = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"


def _decode_reads(given: Mapping[str, Any]) -> Iterator[Read]:
    wrapper = given["self"]
    kv_indptr = wrapper._paged_kv_indptr_buf[: given["q"].shape[0] + 1]
    yield "kv_indptr", kv_indptr, 0
    yield from rows_of("kv_indices", from_pointer(wrapper._paged_kv_indices_buf), kv_indptr.tolist())


def _prefill_reads(given: Mapping[str, Any]) -> Iterator[Read]:
    wrapper = given["self"]
    rows, ends = wrapper._qo_indptr_buf.tolist(), wrapper._paged_kv_indptr_buf.tolist()
    yield "qo_indptr", wrapper._qo_indptr_buf, 0
    yield "kv_indptr", wrapper._paged_kv_indptr_buf, 0
    yield from rows_of("kv_indices", from_pointer(wrapper._paged_kv_indices_buf), ends)
    if wrapper._masked:
        at = 0
        for row in range(len(rows) - 1):
            reach = (rows[row + 1] - rows[row]) * (ends[row + 1] - ends[row])
            yield "custom_mask", wrapper._custom_mask_buf[at : at + reach], row
            at += reach


class _Wrapper:
    """What all wrappers are. ``begin_forward`` and ``forward`` are the older names of ``plan`` and ``run``."""

    _paged_kv_indices_buf: Tensor
    _paged_kv_indptr_buf: Tensor

    def __init__(self, workspace: Tensor, layout: str = "NHD", **more: Any) -> None:
        if layout != "NHD":
            raise refusal("FlashInfer", f"layout {layout}")
        self.is_cuda_graph_enabled = bool(more.get("use_cuda_graph"))

    def _keep(self, indptr: Tensor, indices: Tensor) -> None:
        """Take in a plan: under graphs into the buffers that the wrapper has, else as they are."""
        if not self.is_cuda_graph_enabled:
            self._paged_kv_indptr_buf, self._paged_kv_indices_buf = indptr, indices
            return
        room = len(self._paged_kv_indices_buf)
        if len(indices) > room:
            raise ValueError(f"{len(indices)} indices are planned, the buffer holds {room} (FlashInfer)")
        self._paged_kv_indptr_buf.copy_(indptr)
        self._paged_kv_indices_buf[: len(indices)].copy_(indices)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """One query a request, over KV slots [slots, KV heads, D]."""

    def __init__(self, workspace: Tensor, layout: str = "NHD", **more: Any) -> None:
        super().__init__(workspace, layout, **more)
        if self.is_cuda_graph_enabled:
            self._paged_kv_indptr_buf = more["paged_kv_indptr_buffer"]
            self._paged_kv_indices_buf = more["paged_kv_indices_buffer"]
        self.begin_forward: Any = self.plan

    def plan(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int,
        head_dim: int, page_size: int, **more: Any,
    ) -> None:  # fmt: skip
        """Plan for the slots ``indices[indptr[i] : indptr[i + 1]]`` of each request."""
        refuse(f"{_DECODE}.plan", {"page_size": page_size}, page_size=(1,))
        self._keep(indptr, indices)

    @reads_like_a_kernel(_decode_reads, _DECODE)
    def forward(self, q: Tensor, kv: _KV, **more: Any) -> Tensor:
        """q: [requests, heads, D]."""
        _refuse_options(f"{_DECODE}.forward", more)
        ends = self._paged_kv_indptr_buf[: q.shape[0] + 1].tolist()
        slots, lengths = padded(from_pointer(self._paged_kv_indices_buf), ends)
        tell_reads(_DECODE, kv[0], kv[1], slots, lengths)
        out = torch.zeros_like(q)
        out[: len(lengths)] = attend_slots(q[: len(lengths), None], *kv, slots, lengths, more["sm_scale"])[0][:, 0]
        return out


def fast_decode_plan(
    wrapper: BatchDecodeWithPagedKVCacheWrapper, indptr: Tensor, indices: Tensor, *sizes: Any, **more: Any
) -> None:
    """Plan for what lies in the wrapper's buffers already, as SGLang's kernels have written it: nothing is copied."""


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Several queries a request, causally or by a mask, over KV slots."""

    def __init__(self, workspace: Tensor, layout: str = "NHD", **more: Any) -> None:
        super().__init__(workspace, layout, **more)
        self._qo_indptr_buf: Tensor
        self._custom_mask_buf: Tensor | None = None
        self._masked = False
        self.begin_forward: Any = self.plan
        if not self.is_cuda_graph_enabled:
            return
        self._qo_indptr_buf = more["qo_indptr_buf"]
        self._paged_kv_indptr_buf = more["paged_kv_indptr_buf"]
        self._paged_kv_indices_buf = more["paged_kv_indices_buf"]
        self._custom_mask_buf = more.get("custom_mask_buf")
        # What a plan of SGLang's own (``fast_prefill_plan``, from 0.5.18 on) takes of a wrapper: it writes into the
        # buffers and has FlashInfer's module plan how the kernel is cut, which here it is not.
        self._backend, self.device = "fa2", workspace.device
        self._paged_kv_last_page_len_buf = more["paged_kv_last_page_len_buf"]
        self._float_workspace_buffer = self._int_workspace_buffer = workspace
        self._pin_memory_int_workspace_buffer = workspace
        self._max_total_num_rows: int | None = None
        self._cached_module = SimpleNamespace(plan=lambda *_: None)

    def plan(
        self, qo_indptr: Tensor, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int,
        num_kv_heads: int, head_dim: int, page_size: int, **more: Any,
    ) -> None:  # fmt: skip
        """Plan for the queries ``qo_indptr[i] : qo_indptr[i + 1]`` of each request over its slots. ``custom_mask``:
        bool, a row of all its slots for each query of a request, request after request."""
        given, none = {"page_size": page_size, **more}, (None,)
        refuse(f"{_PREFILL}.plan", given, page_size=(1,), prefix_len_ptr=none, packed_custom_mask=none)
        self._keep(indptr, indices)
        mask = more.get("custom_mask")
        if not self.is_cuda_graph_enabled:
            self._qo_indptr_buf, self._custom_mask_buf = qo_indptr, mask
        else:
            self._qo_indptr_buf.copy_(qo_indptr)
            if mask is not None:
                if self._custom_mask_buf is None:
                    raise ValueError("a mask is planned for a wrapper that has no buffer for one (FlashInfer)")
                self._custom_mask_buf[: mask.numel()].copy_(mask)
        self._masked = self._custom_mask_buf is not None

    @reads_like_a_kernel(_prefill_reads, _PREFILL)
    def forward_return_lse(self, q: Tensor, kv: _KV, **more: Any) -> tuple[Tensor, Tensor]:
        """q: [queries, heads, D]; also the logs of the sums of weights, [queries, heads]."""
        _refuse_options(f"{_PREFILL}.forward", more)
        out, lse = torch.zeros_like(q), torch.full(q.shape[:2], float("-inf"))
        rows, ends, at = self._qo_indptr_buf.tolist(), self._paged_kv_indptr_buf.tolist(), 0
        every = from_pointer(self._paged_kv_indices_buf)
        for request in range(len(ends) - 1):
            new, slots = slice(*rows[request : request + 2]), every[ends[request] : ends[request + 1]].long()
            count, length = new.stop - new.start, slots.numel()
            visible = None
            if self._masked and self._custom_mask_buf is not None:
                visible = self._custom_mask_buf[at : at + count * length].view(count, length).bool()
            at += count * length
            if count and length:
                causal = bool(more.get("causal")) and visible is None
                tell_read(_PREFILL, kv[0], kv[1], slots, request)
                out[new], weights = attend(q[new], kv[0][slots], kv[1][slots], more["sm_scale"], causal, visible)
                lse[new] = weights.T
        return out, lse

    def forward(self, q: Tensor, kv: _KV, **more: Any) -> Tensor:
        return self.forward_return_lse(q, kv, **more)[0]


class BatchPrefillWithRaggedKVCacheWrapper(_Wrapper):
    """Several queries a request over keys that lie beside each other."""

    def begin_forward(self, qo_indptr: Tensor, kv_indptr: Tensor, *sizes: Any, **more: Any) -> None:
        """Plan for the queries and the keys of each request, by where they begin."""
        refuse("BatchPrefillWithRaggedKVCacheWrapper.plan", more, custom_mask=(None,))
        self._rows, self._ends = qo_indptr.tolist(), kv_indptr.tolist()

    def forward_return_lse(self, q: Tensor, k: Tensor, v: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        """q: [queries, heads, D]; k, v: [keys, KV heads, D]; as of the paged one."""
        _refuse_options("BatchPrefillWithRaggedKVCacheWrapper.forward", more)
        out, lse = torch.zeros_like(q), torch.full(q.shape[:2], float("-inf"))
        for row in range(len(self._rows) - 1):
            new, old = slice(*self._rows[row : row + 2]), slice(*self._ends[row : row + 2])
            if new.stop > new.start and old.stop > old.start:
                out[new], weights = attend(q[new], k[old], v[old], more["sm_scale"], bool(more.get("causal")))
                lse[new] = weights.T
        return out, lse

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Tensor:
        return self.forward_return_lse(q, k, v, **more)[0]


def _refuse_options(kernel: str, given: dict[str, Any]) -> None:
    scale = (None, 1.0)
    refuse(kernel, given, window_left=(-1, None), logits_soft_cap=(None, 0.0, 0), k_scale=scale, v_scale=scale)


class TorchHere:
    """torch, for a module that asks for tensors on ``cuda``: they are made on this CPU.

    Each has as much memory behind it as it is long, filled with the same: a kernel that leaves it, as with PR 27338
    reverted, finds memory there, as on a GPU, and this process lives on.
    """

    def __getattr__(self, name: str) -> Any:
        made = getattr(torch, name)
        return partial(_made_here, made) if name in ("empty", "zeros") else made


def _made_here(make: Any, *size: Any, **more: Any) -> Any:
    if str(more.get("device", "")).partition(":")[0] != "cuda":
        return make(*size, **more)
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    return make(2 * shape.numel(), **{**more, "device": "cpu"})[: shape.numel()].view(shape)


BACKEND = Seat("attention by FlashInfer", ("srt.layers.attention.flashinfer_backend:FlashInferAttnBackend",))
_ASKS, _IS_THERE = ("srt.utils", "srt.utils.common"), "is_flashinfer_available"
"""Modules by which SGLang asks if there is FlashInfer, and how."""


def use_flashinfer() -> list[str]:
    """Have SGLang's backend import these as FlashInfer, which it looks for once; returns what was replaced. Raises
    NoSeat."""
    module = BACKEND.place(installed()).partition(":")[0]
    sys.modules.update(_flashinfer())
    asked = [each for name in _ASKS if hasattr(each := importlib.import_module(f"sglang.{name}"), _IS_THERE)]
    before = [getattr(each, _IS_THERE) for each in asked]
    for each in asked:
        setattr(each, _IS_THERE, lambda *_, **__: True)
    try:
        backend: Any = importlib.import_module(f"sglang.{module}")
    finally:
        for each, answer in zip(asked, before, strict=True):
            setattr(each, _IS_THERE, answer)
    if not hasattr(backend, "_safe_merge_state"):
        raise NoSeat(f"SGLang's {module} was imported before there was a stand-in for FlashInfer")
    backend.torch = TorchHere()
    torch.cuda.Stream = torch.cpu.Stream  # type: ignore[misc, assignment]
    return ["flashinfer", "torch.cuda.Stream", "layers.attention.flashinfer_backend.torch"]


def _flashinfer() -> dict[str, ModuleType]:
    """FlashInfer's modules, as far as SGLang's backend and its sampling import them."""
    wrappers = (
        *(BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper),
        *(BatchPrefillWithRaggedKVCacheWrapper, fast_decode_plan),
    )
    names: dict[str, dict[str, Any]] = {
        "flashinfer": {each.__name__: each for each in wrappers},
        "flashinfer.cascade": {"merge_state": merge_state_v2},
        "flashinfer.sampling": {"top_k_renorm_probs": top_k_renorm_prob, "top_p_renorm_probs": top_p_renorm_prob},
    }
    made = {}
    for name, parts in names.items():
        made[name] = module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=name == "flashinfer")
        module.__path__ = []
        vars(module).update(parts)
    return made
