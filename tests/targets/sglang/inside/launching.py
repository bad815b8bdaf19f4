"""SGLang's functions around its Triton kernels for attention, with the stand-ins in the place of these.

Grids, strides and names are as ``decode_attention_fwd`` and ``extend_attention_fwd`` of 0.5.13 have them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.sglang.inside.attention import EXTENDING, STAGE1, STAGE2
from specdebug.targets.sglang.inside.launches import LaunchedStandIn, TorchKernel

_STAGE1 = """Q K_Buffer V_Buffer sm_scale_withk kv_indptr kv_indices Att_Out Att_Lse num_kv_splits stride_qbs stride_qh
stride_buf_kbs stride_buf_kh stride_buf_vbs stride_buf_vh stride_mid_ob stride_mid_oh stride_mid_os kv_group_num
BLOCK_DMODEL BLOCK_DV BLOCK_N MIN_BLOCK_KV logit_cap Lk Lv xai_temperature_len"""
_STAGE2 = """Mid_O Mid_O_1 O v_scale kv_indptr num_kv_splits sink_ptr stride_mid_ob stride_mid_oh stride_mid_os
stride_obs stride_oh MAX_KV_SPLITS MIN_BLOCK_KV BLOCK_DV Lv HAS_SINK USE_PDL"""
_EXTEND = """Q_Extend K_Extend V_Extend O_Extend K_Buffer V_Buffer qo_indptr kv_indptr kv_indices mask_ptr mask_indptr
sink_ptr window_kv_offset_ptr sm_scale k_scale v_scale kv_group_num stride_qbs stride_qh stride_kbs stride_kh stride_vbs
stride_vh stride_obs stride_oh stride_buf_kbs stride_buf_kh stride_buf_vbs stride_buf_vh SLIDING_WINDOW_SIZE logit_cap
xai_temperature_len Lq Lv BLOCK_DMODEL BLOCK_DPE BLOCK_DV BLOCK_M BLOCK_N USE_CUSTOM_MASK IS_CAUSAL
SKIP_PREFIX_CUSTOM_MASK STORE_TRANSPOSE HAS_SINK"""
SPLITS, BLOCK = 4, 2


def kernel(names: str, name: str) -> Any:
    """What the stand-ins need of a Triton kernel: the names of its arguments."""
    scope: dict[str, Any] = {}
    exec(f"def {name}({', '.join(names.split())}): pass", scope)
    return SimpleNamespace(fn=scope[name], __name__=name)


def instead(ours: TorchKernel) -> LaunchedStandIn:
    """A stand-in in the place of its kernel of 0.5.13."""
    names = {id(STAGE1): _STAGE1, id(STAGE2): _STAGE2, id(EXTENDING): _EXTEND}[id(ours)]
    return LaunchedStandIn(kernel(names, f"_{ours.told}_kernel"), ours)


def decode(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, ends: Tensor, slots: Tensor, scale: float, *,
    splits: Tensor | None = None, sinks: Tensor | None = None, **more: Any,
) -> None:  # fmt: skip
    """``decode_attention_fwd``: each request's keys in up to ``SPLITS`` splits of at least ``BLOCK``."""
    batch, heads, width = q.shape
    splits = torch.full((batch,), SPLITS) if splits is None else splits
    mid = torch.full((batch, heads, SPLITS, width), float("nan"))
    lse = torch.full((batch, heads, SPLITS), float("nan"))
    instead(STAGE1)[batch, heads, SPLITS](
        q, k, v, scale, ends, slots, mid, lse, splits, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0),
        v.stride(1), mid.stride(0), mid.stride(1), mid.stride(2), kv_group_num=heads // k.shape[1], BLOCK_DMODEL=width,
        BLOCK_DV=width, BLOCK_N=64, MIN_BLOCK_KV=BLOCK, Lk=width, Lv=width, xai_temperature_len=-1, num_warps=4,
        num_stages=2, **{"logit_cap": 0.0, **more},
    )  # fmt: skip
    instead(STAGE2)[batch, heads](
        mid, lse, out, 1.0, ends, splits, sinks, mid.stride(0), mid.stride(1), mid.stride(2), out.stride(0),
        out.stride(1), MAX_KV_SPLITS=SPLITS, MIN_BLOCK_KV=BLOCK, BLOCK_DV=width, Lv=width, HAS_SINK=sinks is not None,
        num_warps=4, num_stages=2,
    )  # fmt: skip


def extend(
    new: tuple[Tensor, Tensor, Tensor], out: Tensor, cache: tuple[Tensor, Tensor], rows: Tensor, ends: Tensor,
    slots: Tensor, scale: float, *, mask: Tensor | None = None, mask_rows: Tensor | None = None, blocks: int = 1,
    block: int = 8, window: int = -1, before: Tensor | None = None, sinks: Tensor | None = None, **more: Any,
) -> None:  # fmt: skip
    """``extend_attention_fwd``, causally without a ``mask``; of each request ``blocks`` of queries are computed.
    ``before``: columns of a mask's row that lie before each request's ``window``."""
    q, k, v = new
    strides = [each.stride(n) for each in (q, k, v, out, *cache) for n in (0, 1)]
    instead(EXTENDING)[rows.numel() - 1, q.shape[1], blocks](
        q, k, v, out, *cache, rows, ends, slots, mask, mask_rows, sinks, before, scale, 1.0, 1.0,
        q.shape[1] // k.shape[1], *strides, SLIDING_WINDOW_SIZE=window, logit_cap=0.0, xai_temperature_len=-1,
        BLOCK_DMODEL=8, BLOCK_DPE=0, BLOCK_DV=8, BLOCK_M=block, BLOCK_N=8, Lq=q.shape[-1], Lv=q.shape[-1],
        USE_CUSTOM_MASK=mask is not None,
        SKIP_PREFIX_CUSTOM_MASK=True, HAS_SINK=sinks is not None, STORE_TRANSPOSE=False, num_warps=4, num_stages=1,
        **{"IS_CAUSAL": True, **more},
    )  # fmt: skip
