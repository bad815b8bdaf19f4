"""Products with a few rows, RMS norm, and the decoder layer that the target and draft heads share.

A weight always has the shape [in, out]. On a CPU it is stored so, which makes the product of a few rows twice as fast;
elsewhere it is a view of [out, in], so that a GPU reads each output's weights as one run. On a CPU in f32 a norm's gain
is folded into the linear layer after it, and the norm is three kernels: at batch 1 they took 8 us, ``F.rms_norm`` 21.
In bf16 and fp16 folding would round the weights a second time.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdebug.engine.model.interface import LayerAttention, StoredAttention
from specdebug.engine.model.rope import Rotary

# Up to this many bf16 or fp16 rows on a GPU go to our own kernel if the weight is no larger than this; cuBLAS splits
# the sums of such a product and adds them in a second kernel. By ``benchmarks/gpu/gemm.py`` on an H200 with 6 rows ours
# takes 11.9 us against 13.5 for [4096, 4096], and 14.8 against 15.5 for [4096, 6144]. With the down projection of an 8B
# layer, [14336, 4096], a verify step is 4.598 ms against 4.619; gate_up, [4096, 28672], stays with cuBLAS, at 55.8 us
# against 58.0. Fewer outputs have too few programs, and sums must be split: with [10944, 2048] and one row ours takes
# 23.5 us at best, cuBLAS 17.1; with [2048, 3648], 6.9 and 6.9; with [2048, 2048], 6.5 and 6.1.
SKINNY_ROWS = 16
SKINNY_BYTES = 128 << 20
SKINNY_WIDTH = 4096


def empty_weight(size_in: int, size_out: int, dtype: torch.dtype, device: torch.device, *count: int) -> Tensor:
    """An uninitialised weight [in, out], or as many as ``count``, [count, in, out]."""
    if device.type == "cpu":
        return torch.empty(*count, size_in, size_out, dtype=dtype, device=device)
    return torch.empty(*count, size_out, size_in, dtype=dtype, device=device).transpose(-2, -1)


def as_weight(rows: Tensor) -> Tensor:
    """Rows [out, in] of a checkpoint as a weight [in, out]; shares their memory where the layout allows."""
    return rows.t().contiguous() if rows.device.type == "cpu" else rows.t()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x [n, in] @ weight [in, out] + bias [out] -> [n, out]."""
    if bias is not None:
        return torch.addmm(bias, x, weight)
    if _is_skinny(x, weight):
        from specdebug.engine.kernels.triton.products import skinny_gemm

        return skinny_gemm(x, weight)
    return torch.mm(x, weight)


def linear_into(base: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Add x [n, in] @ weight [in, out] to base [n, out] in place: ``addmm`` out of place first copies its addend."""
    if _is_skinny(x, weight):
        from specdebug.engine.kernels.triton.products import skinny_gemm

        return skinny_gemm(x, weight, base=base, out=base)
    return base.addmm_(x, weight)


def head_linear(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Write x [n, Hq, in] @ weight [Hq, in, out], head by head, to ``out`` [n, Hq, out]; return it."""
    if x.is_cuda:
        from specdebug.engine.kernels.triton import products

        return products.head_linear(x, weight, out)
    torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
    return out


def _is_skinny(x: Tensor, weight: Tensor) -> bool:
    if not x.is_cuda or x.shape[0] > SKINNY_ROWS or x.dtype not in (torch.bfloat16, torch.float16):
        return False
    return weight.shape[1] >= SKINNY_WIDTH and weight.numel() * weight.element_size() <= SKINNY_BYTES


class Norm:
    """Root-mean-square norm over the last dimension by a weight [H]; ``folds_gain`` leaves its gain to the next linear.

    x * rsqrt(mean(x^2) + eps) * gain = x / hypot(|x|, sqrt(H*eps)) * (sqrt(H) * gain); ``gain`` holds the bracket.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        size = weight.shape[0]
        self._on_gpu = weight.is_cuda
        self.folds_gain = weight.dtype == torch.float32 and not self._on_gpu
        self.gain = weight * math.sqrt(size) if self.folds_gain else weight
        self._floor = torch.tensor(math.sqrt(size * eps), device=weight.device)
        self._shape = (size,)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """[n, H] -> [n, H]; times the gain unless it is folded."""
        if self._on_gpu:
            from specdebug.engine.kernels.triton.layers import rms_norm

            return rms_norm(x, self.gain, self.eps)
        if self.folds_gain:
            length: Tensor = torch.linalg.vector_norm(x, 2, -1, True)
            return x / length.hypot_(self._floor)
        return F.rms_norm(x, self._shape, None, self.eps) * self.gain

    def with_gain(self, x: Tensor) -> Tensor:
        """The norm in full, for more readers than one linear layer."""
        return self(x).mul_(self.gain) if self.folds_gain else self(x)

    def fold_into(self, weight: Tensor) -> Tensor:
        """Fold the gain, if it must be, into the [in, out] weight of the linear layer that reads this norm."""
        return weight.mul_(self.gain[:, None]) if self.folds_gain else weight


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterAttention:
    """The part of a layer behind its attention: the output projection and the MLP, with their residuals.

    Weights are [in, out], so that no transposed view is made per call.
    """

    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Norm
    gate_up: Tensor
    down: Tensor

    def finish(self, attended: Tensor, residual: Tensor) -> Tensor:
        """Attended values [n, Hq*D] and residual [n, H] -> [n, H], which takes the residual's place in memory."""
        if self.output_bias is not None:
            residual.add_(self.output_bias)
        x = linear_into(residual, attended, self.output)
        return gated_mlp_into(x, self.mlp_norm(x), self.gate_up, self.down)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer(AfterAttention):
    """Attention and MLP with their residuals; the norm before attention belongs to the model around it."""

    layer_id: int
    rotary: Rotary
    qkv: Tensor
    qkv_bias: Tensor | None

    def forward(
        self,
        normed: Tensor,
        residual: Tensor,
        phases: Tensor,
        attn: LayerAttention,
        qkv_share: Tensor | None = None,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Normed input [n, in] and residual [n, H] -> [n, H]; ``phases`` from ``Rotary.at``.

        The result takes the residual's place in memory. ``qkv_share`` [n, q+k+v] stands for the bias: a share of the
        projection computed elsewhere, which is used up as well. ``wanted``: int64 [m], the rows to return, as [m, H];
        of the others only keys and values are needed.
        """
        qkv = linear(normed, self.qkv, self.qkv_bias) if qkv_share is None else linear_into(qkv_share, normed, self.qkv)
        if self.rotary.stores and isinstance(attn, StoredAttention):
            q = self.rotary.split_and_store(qkv, phases, attn.destination(self.layer_id))
            attended = attn.attend(self.layer_id, q)
        else:
            attended = attn(self.layer_id, *self.rotary.split(qkv, phases))
        if wanted is not None:
            attended, residual = attended.index_select(0, wanted), residual.index_select(0, wanted)
        return self.finish(attended, residual)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLayer(AfterAttention):
    """A layer without keys and values of its own: its queries attend those that a layer of the target has written.

    ``rotary`` turns the query heads and knows of no others. q: [H, Hq*D].
    """

    target_layer: int
    rotary: Rotary
    norm: Norm
    q: Tensor

    def forward(self, x: Tensor, phases: Tensor, attn: LayerAttention) -> Tensor:
        """x [n, H] -> [n, H], in its place in memory; ``phases`` from ``Rotary.at``."""
        q, _, _ = self.rotary.split(linear(self.norm(x), self.q), phases)
        return self.finish(attn.attend(self.target_layer, q), x)


def gated_mlp_into(base: Tensor, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Add an MLP of x [n, H] to base [n, H] in place; gate_up [H, 2*I], down [I, H]."""
    return linear_into(base, silu_mul(linear(x, gate_up)), down)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Multiply SiLU of the first half of each row by the second: [n, 2*I] -> [n, I]."""
    if gate_up.is_cuda:
        from specdebug.engine.kernels.triton import layers as kernels

        return kernels.silu_mul(gate_up)
    gate, up = torch.chunk(gate_up, 2, 1)
    return F.silu(gate).mul_(up)
