"""Weights on their way to the L2 cache while small kernels run: the product that reads them next starts further on.

A step of few rows is bound by reading its weights once, and memory idles during every norm, rotation and activation
and the gap after each. Such a kernel takes along programs that ask for the first inputs of many outputs of the next
weight, by ``cp.async.bulk.prefetch.L2`` (PTX ISA 8.0, compute capability 9.0), and end without waiting. Nothing is
computed from a prefetch, so what a kernel returns cannot depend on it.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

PART = 256  # bytes that one thread asks for
MAX_ROWS = 16  # of activations; with more, products are no longer bound by the weights alone
FIRST_WAVE = 64 * 132  # outputs that a product's first programs read; later ones have time
NEXT_BYTES = 8 << 20  # before a product that follows at once: what memory delivers in about two microseconds
AFTER_ATTENTION_BYTES = 16 << 20  # before one that attention precedes; its own reads queue behind these


class Prefetch(NamedTuple):
    """``parts`` × 256 bytes from the start of each of the weight's first outputs, by ``programs`` programs."""

    weight: Tensor | None
    stride: int
    parts: int
    programs: int


NOTHING = Prefetch(None, 0, 1, 0)


def parts_of(outputs: int, row_bytes: int, budget: int) -> tuple[int, int]:
    """How many outputs, and parts of each, make up at most ``budget`` bytes; even shares, for programs start evenly."""
    outputs = min(outputs, FIRST_WAVE)
    return outputs, min(budget // max(outputs, 1), row_bytes) // PART


def prefetch_of(weight: Tensor | None, rows: int, lanes: int, budget: int) -> Prefetch:
    """What a kernel of ``lanes`` threads a program, at work on ``rows`` rows, should ask for of weight [in, out].

    Nothing where that would not pay or cannot be: no weight, no Hopper, inputs that are not adjacent, many rows.
    """
    if weight is None or rows > MAX_ROWS or not weight.is_cuda or not _can_prefetch(weight.device):
        return NOTHING
    item = weight.element_size()
    stride = weight.stride(1) * item
    if weight.stride(0) != 1 or weight.data_ptr() % 16 or stride % 16:
        return NOTHING
    outputs, parts = parts_of(weight.shape[1], weight.shape[0] * item, budget)
    programs = outputs * parts // lanes
    return Prefetch(weight, stride, parts, programs) if programs else NOTHING


@lru_cache(maxsize=16)
def _can_prefetch(device: torch.device) -> bool:
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def prefetch(weight_ptr, stride, parts, program, LANES: tl.constexpr):
    """Ask for parts ``program * LANES`` and on; LANES is the number of threads, so that each asks once."""
    lane = program * LANES + tl.arange(0, LANES)
    # 256 is PART
    address = weight_ptr.to(tl.int64) + (lane // parts).to(tl.int64) * stride + (lane % parts) * 256
    tl.inline_asm_elementwise(
        "{ cp.async.bulk.prefetch.L2.global [$1], 256; mov.b32 $0, 0; }",
        "=r,l",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
