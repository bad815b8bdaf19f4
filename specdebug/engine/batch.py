"""Batches as the workers get them: device tensors plus the requests they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.engine.memory.req_to_token import ReqToToken
from specdebug.engine.request import Request


@dataclass(frozen=True)
class PrefillBatch:
    """Prompt chunks, one per request, one after another.

    prefix_lens, extend_lens, req_pool_indices: int64 [B]. input_ids, positions, out_cache_loc: int64 [Σext].
    final: bool [B], whether the chunk ends the prompt. next_prompt_ids: int64 [B], the prompt token after the
    chunk (0 when there is none).
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

    @classmethod
    def build(
        cls, chunks: Sequence[tuple[Request, int]], req_to_token: ReqToToken, device: torch.device
    ) -> PrefillBatch:
        """From (request, chunk length) pairs; the chunk starts at the request's ``kv_len``."""
        ids: list[int] = []
        upcoming: list[int] = []
        positions, locs = [], []
        for request, length in chunks:
            start, stop = request.kv_len, request.kv_len + length
            tokens = request.all_ids
            ids += tokens[start:stop]
            upcoming.append(tokens[stop] if stop < len(tokens) else 0)
            positions.append(torch.arange(start, stop))
            locs.append(req_to_token.slots(request.row, start, stop))
        requests = tuple(request for request, _ in chunks)
        return cls(
            requests=requests,
            prefix_lens=torch.tensor([r.kv_len for r in requests], device=device),
            extend_lens=torch.tensor([length for _, length in chunks], device=device),
            req_pool_indices=torch.tensor([r.row for r in requests], device=device),
            input_ids=torch.tensor(ids, device=device),
            positions=torch.cat(positions).to(device),
            out_cache_loc=torch.cat(locs),
            final=torch.tensor([r.kv_len + n == len(r.all_ids) for r, n in chunks], device=device),
            next_prompt_ids=torch.tensor(upcoming, device=device),
        )

    def last_rows(self) -> Tensor:
        """Row of each request's last token: int64 [B]."""
        return self.extend_lens.cumsum(0) - 1

    def select(self, keep: Sequence[int]) -> PrefillBatch:
        """The sub-batch of the requests numbered ``keep``, ascending."""
        index = torch.tensor(keep, device=self.extend_lens.device)
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
        )

    def rows_of(self, keep: Sequence[int]) -> Tensor:
        """Token rows of the requests numbered ``keep``: int64."""
        ends = self.extend_lens.cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        return torch.cat([torch.arange(starts[i], ends[i]) for i in keep]).to(self.extend_lens.device)
