"""Drafting with an assistant that reads the target's KV and keeps none: frozen-KV MTP.

Stage 1 is S passes: a seed pass on the bonus token and the target's hidden state at L - 1, whose K best tokens are the
roots, then S - 1 passes, each on the tokens drafted last and the hidden states of the pass before. All of them ask from
position L - 1 and attend the target's KV of [0, L): what was drafted has no KV, and positions never advance. With K
branches a request has K rows, in the seed pass all alike. Stage 6 computes nothing: the target's hidden state at the
last accepted position is kept.

There is no draft KV that a prefix hit could lack, and slots depend on no token but their own.

Source: SGLang ``frozen_kv_mtp_worker.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.graph.runner import launcher
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.textbook.attention.planner import SequenceLayout
from specdebug.engine.textbook.batch import PrefillBatch
from specdebug.engine.textbook.speculative.commit import Compacted, last_accepted_rows
from specdebug.engine.textbook.speculative.draft import LengthTable, StepState
from specdebug.engine.textbook.speculative.tree import DraftCandidates
from specdebug.engine.workers.drafter import DrafterParts
from specdebug.engine.workers.frozen_kv_loop import FrozenKVInputs, FrozenKVLoop, frozen_kv_table, last_positions


@dataclass(frozen=True)
class FrozenKVState(StepState):
    """hidden_states: [B, H], the target's at position L - 1. There is no top-k yet: the seed pass finds it."""

    hidden_states: Tensor
    topk_p: None = None
    topk_index: None = None


class FrozenKVStateTable(LengthTable):
    """``FrozenKVState`` for every row of ``req_to_token``."""

    def __init__(self, rows: int, *, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(rows, device)
        self._hidden = torch.zeros((rows + 1, hidden_size), dtype=dtype, device=device)

    def gather(self, rows: Tensor) -> FrozenKVState:
        """Return the start of the next draft of the given rows (int64 [B])."""
        return self.read(rows)

    def read(self, rows: Tensor) -> FrozenKVState:
        """Copies of the given rows (int64 [B])."""
        seq_lens, bonus, hidden = (each.index_select(0, rows) for each in (self.seq_lens, self.bonus, self._hidden))
        return FrozenKVState(seq_lens, bonus, hidden)

    def store_hidden(self, rows: Tensor, hidden_states: Tensor) -> None:
        """Keep the target's hidden states [B, H] of the given rows' last positions."""
        self._hidden.index_copy_(0, rows, hidden_states)


class FrozenKVDrafter:
    """The ``Drafter`` of one assistant: it owns the target's hidden states that drafts start from, and one runner."""

    extend_runner = None

    def __init__(self, parts: DrafterParts) -> None:
        worker, spec = parts.worker, parts.worker.spec
        self.model = assistant = cast(DraftModel, worker.draft)  # the loader of this algorithm made it
        self._vocab_size, self._tree_size = worker.vocab_size, spec.tree_size
        self.state = FrozenKVStateTable(
            worker.config.max_running_requests,
            hidden_size=assistant.hidden_size,
            dtype=worker.dtype,
            device=worker.device,
        )
        self._loop = loop = FrozenKVLoop(
            assistant,
            worker.pools.target,
            topk=spec.eagle_topk,
            num_steps=spec.num_steps,
            tree_size=spec.tree_size,
            target_vocab_size=worker.vocab_size,
            observers=worker.observers,
        )
        table = frozen_kv_table(worker, loop)
        self._draft = launcher(worker, loop, worker.attention.draft, parts.workspace, table)
        self.draft_runner = self._draft.runner

    def draft(self, rows: Tensor, state: FrozenKVState, slots: Tensor, lens_cpu: tuple[int, ...]) -> DraftCandidates:
        with grouped():
            maybe_detect_oob(state.bonus, 0, self._vocab_size, "draft.bonus")
            maybe_detect_nan(state.hidden_states, "draft.hidden_states")
        positions = last_positions(state.seq_lens, self._loop.topk)
        inputs = FrozenKVInputs(state.bonus, state.hidden_states, rows, state.seq_lens, positions)
        return self._draft.run(inputs, lens_cpu)

    def extend(self, batch: SequenceLayout, compacted: Compacted, slots: Tensor) -> None:
        maybe_detect_nan(compacted.features, "draft_extend.features")
        self._keep(
            batch.req_pool_indices, compacted.features, last_accepted_rows(compacted.accept_lengths, self._tree_size)
        )

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        self._keep(batch.req_pool_indices, features, batch.last_rows())

    def _keep(self, rows: Tensor, features: Tensor, last: Tensor) -> None:
        """Keep the features [n, F] at rows ``last`` (int64 [B]), one of each request."""
        self.state.store_hidden(rows, self.model.project(features.index_select(0, last)))
