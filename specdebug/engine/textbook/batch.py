"""Batches as the workers get them: device tensors plus the requests they came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from specdebug.engine.device import upload
from specdebug.engine.textbook.attention.planner import ExtendLayout
from specdebug.engine.textbook.memory.req_to_token import ReqToToken
from specdebug.engine.textbook.request import Request


@dataclass(frozen=True)
class PrefillBatch:
    """Prompt chunks, one per request, one after another.

    prefix_lens, extend_lens, req_pool_indices: int64 [B]. input_ids, positions, out_cache_loc: int64 [Σext].
    final: bool [B], true where the chunk ends the prompt. next_prompt_ids: int64 [B], the prompt token after the chunk
    (0 when there is none). prefix_lens_cpu, extend_lens_cpu, ends_prompt: lengths and ``final`` as the host knows them.
    """

    requests: tuple[Request, ...]
    prefix_lens: Tensor
    extend_lens: Tensor
    req_pool_indices: Tensor
    input_ids: Tensor
    positions: Tensor
    out_cache_loc: Tensor
    final: Tensor
    next_prompt_ids: Tensor
    prefix_lens_cpu: tuple[int, ...]
    extend_lens_cpu: tuple[int, ...]
    ends_prompt: tuple[bool, ...]

    @classmethod
    def build(
        cls, chunks: Sequence[tuple[Request, int]], req_to_token: ReqToToken, device: torch.device
    ) -> PrefillBatch:
        """From (request, chunk length) pairs; the chunk starts at the request's ``kv_len``."""
        requests, extend_lens = zip(*chunks, strict=True)
        prefix_lens = tuple(request.kv_len for request in requests)
        spans = [(request.all_ids, request.kv_len, request.kv_len + length) for request, length in chunks]
        ends_prompt = tuple(stop == len(ids) for ids, _, stop in spans)
        locs = [req_to_token.slots(request.row, request.kv_len, request.kv_len + n) for request, n in chunks]
        return cls(
            requests=requests,
            prefix_lens=upload(prefix_lens, device),
            extend_lens=upload(extend_lens, device),
            req_pool_indices=upload([request.row for request in requests], device),
            input_ids=upload([token for ids, start, stop in spans for token in ids[start:stop]], device),
            positions=upload([position for _, start, stop in spans for position in range(start, stop)], device),
            out_cache_loc=torch.cat(locs),
            final=upload(ends_prompt, device),
            next_prompt_ids=upload([ids[stop] if stop < len(ids) else 0 for ids, _, stop in spans], device),
            prefix_lens_cpu=prefix_lens,
            extend_lens_cpu=extend_lens,
            ends_prompt=ends_prompt,
        )

    def chunks(self) -> Iterator[tuple[Request, int, int]]:
        """Each request, the position at which its chunk starts, and the chunk's length, as the host knows them."""
        return zip(self.requests, self.prefix_lens_cpu, self.extend_lens_cpu, strict=True)

    def layout(self) -> ExtendLayout:
        """The lengths and rows for an attention plan."""
        return ExtendLayout(
            self.req_pool_indices, self.prefix_lens, self.extend_lens, self.prefix_lens_cpu, self.extend_lens_cpu
        )

    def last_rows(self) -> Tensor:
        """Row of each request's last token: int64 [B]."""
        return self.extend_lens.cumsum(0) - 1

    def select(self, keep: Sequence[int]) -> PrefillBatch:
        """The sub-batch of the requests numbered ``keep``, ascending."""
        index = upload(keep, self.extend_lens.device)
        rows = self.rows_of(keep)
        return PrefillBatch(
            requests=tuple(self.requests[i] for i in keep),
            prefix_lens=self.prefix_lens[index],
            extend_lens=self.extend_lens[index],
            req_pool_indices=self.req_pool_indices[index],
            input_ids=self.input_ids[rows],
            positions=self.positions[rows],
            out_cache_loc=self.out_cache_loc[rows],
            final=self.final[index],
            next_prompt_ids=self.next_prompt_ids[index],
            prefix_lens_cpu=tuple(self.prefix_lens_cpu[i] for i in keep),
            extend_lens_cpu=tuple(self.extend_lens_cpu[i] for i in keep),
            ends_prompt=tuple(self.ends_prompt[i] for i in keep),
        )

    def rows_of(self, keep: Sequence[int]) -> Tensor:
        """Token rows of the requests numbered ``keep``: int64."""
        ends = list(accumulate(self.extend_lens_cpu))
        starts = [0, *ends[:-1]]
        rows = [row for i in keep for row in range(starts[i], ends[i])]
        return upload(rows, self.extend_lens.device)
