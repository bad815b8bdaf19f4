"""Our probes at the boundaries of vLLM's stages, which has none of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.targets.vllm.inside.boundaries import StepRequests

IDS = (
    *("target_prefill.input_ids", "verify.input_ids", "target_decode.input_ids", "sampler.next_token_ids"),
    *("draft.bonus", "draft_prefill.input_ids", "draft_extend.input_ids", "draft.forward.input_ids"),
)
"""Tokens of the target's vocabulary."""
_FORWARDS = ("target_prefill", "verify", "target_decode", "draft_extend", "draft.forward")
LOGITS = tuple(f"{forward}.logits" for forward in _FORWARDS)
"""Neither NaN nor infinite."""
FEATURES = (
    "target_prefill.hidden_states",
    "verify.hidden_states",
    "draft_extend.features",
    "draft_prefill.hidden_states",
)
"""No NaN."""


class SiteProbes:
    """Looks at what passes, as a ``BoundaryOnlooker``. ``block_size``, ``num_slots``: of the pool of KV."""

    def __init__(self, *, vocab_size: int, num_steps: int, block_size: int, num_slots: int) -> None:
        self._vocab_size = vocab_size
        self._num_steps = num_steps
        self._block_size = block_size
        self._num_slots = num_slots
        self._lengths: dict[str, int] = {}
        self._passed: dict[tuple[str, StepRequests], int] = {}
        self._known: dict[str, Callable[[str, StepRequests, Tensor], None]] = {
            **dict.fromkeys(IDS, self._ids),
            **dict.fromkeys(LOGITS, lambda site, _, values: async_probe.maybe_detect_nonfinite(values, site)),
            **dict.fromkeys(FEATURES, lambda site, _, values: async_probe.maybe_detect_nan(values, site)),
            "draft_prefill.input_ids": self._prefill_ids,
            "draft_extend.topk_index": lambda site, _, ids: async_probe.maybe_detect_oob(
                ids, 0, self._draft_vocab, site
            ),
            # -1 behind the last token
            "accept.predict": lambda site, _, ids: async_probe.maybe_detect_oob(ids, -1, vocab_size, site),
            "accept.num_correct_drafts": self._counts,
            "draft.forward.positions": self._positions,
            "kv_pool.write.loc": self._target_slots,
            "draft.out_cache_loc": self._draft_slots,
        }
        self._draft_vocab = vocab_size

    def on_step(self, shares: Sequence[StepRequests]) -> None:
        self._passed.clear()
        self._lengths = {
            rid: start + rows
            for share in shares
            for rid, start, rows in zip(share.rids, share.starts, share.rows, strict=True)
        }

    def on_site(self, site: str, among: StepRequests, values: Tensor, rows: Sequence[int]) -> None:
        if site == "draft_extend.logits":
            self._draft_vocab = values.shape[-1]
        if (check := self._known.get(site)) is not None:
            check(site, among, values)
        self._passed[site, among] = self._passed.get((site, among), 0) + 1

    def on_step_over(self) -> None:
        """Findings are read after each step."""

    def _ids(self, site: str, among: StepRequests, values: Tensor) -> None:
        async_probe.maybe_detect_oob(values, 0, self._vocab_size, site)

    def _prefill_ids(self, site: str, among: StepRequests, values: Tensor) -> None:
        """Behind a chunk that is not the prompt's last comes the prompt's next token."""
        self._ids(site, among, values)
        ends = torch.tensor(among.rows).cumsum(0) - 1
        known = torch.tensor(among.behind)
        last = values[ends.to(values.device)].to(torch.int64)
        known = torch.where(known < 0, last.cpu(), known).to(last.device)
        async_probe.maybe_detect_oob(last, 0, 1, site, known)

    def _counts(self, site: str, among: StepRequests, values: Tensor) -> None:
        """No more than were verified, for each request."""
        verified = torch.tensor(among.drafts, device=values.device)
        async_probe.maybe_detect_oob(values, 0, self._num_steps + 1, site)
        async_probe.maybe_detect_oob(values, -self._num_steps, 1, site, verified)
        for rid, start, count in zip(among.rids, among.starts, values.tolist(), strict=True):
            self._lengths[rid] = start + int(count) + 1

    def _positions(self, site: str, among: StepRequests, values: Tensor) -> None:
        """Forward i of a draft is at L + i."""
        step = self._passed.get((site, among), 0)
        lengths = torch.tensor([self._lengths[rid] for rid in among.rids], device=values.device)
        async_probe.maybe_detect_oob(values, step, step + 1, site, lengths)

    def _target_slots(self, site: str, among: StepRequests, values: Tensor) -> None:
        spans = zip(among.starts, among.rows, among.blocks, strict=True)
        self._slots(site, values, [(at, blocks) for start, rows, blocks in spans for at in range(start, start + rows)])

    def _draft_slots(self, site: str, among: StepRequests, values: Tensor) -> None:
        step = self._passed.get((site, among), 0)
        spans = zip(among.rids, among.blocks, strict=True)
        self._slots(site, values, [(self._lengths[rid] + step, blocks) for rid, blocks in spans])

    def _slots(self, site: str, values: Tensor, places: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Slots lie in the pool, and in the block that the scheduler gave a request for the position. What is drafted
        behind a chunk has none yet."""
        async_probe.maybe_detect_oob(values, 0, self._num_slots, site)
        size, expected = self._block_size, values.tolist()
        for place, (at, blocks) in enumerate(places):
            if at // size < len(blocks):
                expected[place] = blocks[at // size] * size + at % size
        async_probe.maybe_detect_oob(values, 0, 1, site, torch.tensor(expected, device=values.device))
