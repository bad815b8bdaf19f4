"""What several tests of recordings are made on."""

import torch
from torch import Tensor

from specdebug.diverge.recording import Segment

SCENARIO = """
name: two-arms
engine:
  model: tiny
  page_size: 4
  context_length: 96
  max_running_requests: 4
  speculative: {algorithm: EAGLE, num_steps: 3, eagle_topk: 2, num_draft_tokens: 6}
  cuda_graph: {max_bs: 4, capture_bs: [4]}
  memory: {num_slots: 512, fill: zeros}
workload:
  - {id: r, requests: 2, prompt: {corpus: stdlib, tokens: 16}, max_new_tokens: 8}
arms:
  base: {}
  same: {}
  one: {engine: {max_running_requests: 1, cuda_graph: {max_bs: 1, capture_bs: [1]}}}
  eager: {engine: {cuda_graph: {enabled: false}}}
  v1: {engine: {speculative: {worker: v1}}}
  chain: {engine: {speculative: {eagle_topk: 1, num_draft_tokens: 4}}}
"""

SEGMENTS: list[Segment] = [(0, 0, 2), (1, 2, 5), (-1, 5, 6)]
"""Of six rows."""


def flipped(tensor: Tensor, row: int, column: int, bit: int) -> tuple[Tensor, int]:
    """A copy in which one bit is another, and the segment that it lies in."""
    changed = tensor.clone()
    size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    changed.view(size)[row, column] ^= 1 << bit
    return changed, next(n for n, (_, start, stop) in enumerate(SEGMENTS) if start <= row < stop)
