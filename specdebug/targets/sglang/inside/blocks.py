"""SGLang's drafters of blocks (DFLASH, DSPARK), of n-grams and by frozen keys: what goes in and out of them, for
recorders, and what must hold there, for probes. Their target runs as EAGLE's does, and is seen there
(``stages.py``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.targets.inside.guard import Call, Tap, after
from specdebug.targets.sglang.inside.seats import Seat

BLOCKS = "drafters of blocks, n-grams and by frozen keys"
_FLASH, _SPARK = "srt.speculative.dflash_worker_v2", "srt.speculative.dspark_components"
_NGRAM = "srt.speculative.ngram_worker"
_FROZEN = "srt.speculative.frozen_kv_mtp_worker_v2:FrozenKVMTPDraftWorker"
BLOCK_SEATS = {
    "context": (
        Seat(BLOCKS, (f"{_FLASH}:DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc",)),
        Seat(BLOCKS, (f"{_SPARK}.dspark_kv_inject:TargetHiddenKvInjector._inject",)),
    ),
    "flash_accepted": (Seat(BLOCKS, (f"{_FLASH}:DFlashWorkerV2._accept_block",)),),
    "spark_accepted": (Seat(BLOCKS, (f"{_SPARK}.dspark_verify:TargetVerifyExecutor.accept_and_finalize",)),),
    "looked_up": (Seat(BLOCKS, (f"{_NGRAM}:NGRAMWorker._prepare_draft_tokens",)),),
    "linked": (Seat(BLOCKS, (f"{_NGRAM}:NGRAMWorker._prepare_for_speculative_decoding",)),),
    "prefilled": (Seat(BLOCKS, (f"{_FROZEN}._draft_extend_for_prefill",)),),
    "extended": (Seat(BLOCKS, (f"{_FROZEN}._draft_extend_for_decode",)),),
    "drafted": (Seat(BLOCKS, (f"{_FROZEN}.draft",)),),
}
"""The functions that are tapped, by the tap; a worker that is not imported drafts nothing."""
FORWARD = Seat(BLOCKS, ("srt.model_executor.model_runner:ModelRunner.forward",))
ROUNDING = 0.02
"""The part of the greatest logit by which the choice's, made of the same state again, may be less."""
NGRAM_SAMPLE = Seat(BLOCKS, (f"{_NGRAM}:eagle_sample",))


class BlockSites:
    """Taps that tell ``add`` a site and a tensor, rows first."""

    def __init__(self, add: Callable[[str, Tensor], None]) -> None:
        self._add = add

    def taps(self) -> Iterator[tuple[Any, str, Tap]]:
        """Where this process's workers are tapped. Raises NoSeat where one of them has another form."""
        for name, seats in BLOCK_SEATS.items():
            for seat in seats:
                if imported(seat):
                    yield *seat.find(), getattr(self, name)

    @after(bound=1)
    def context(self, _: Any, worker: Any, **named: Any) -> None:
        """The target's states that become a draft's context, at which positions; zeros in the place of the rejected."""
        states, positions, lengths = named["target_hidden"], named["positions"], named.get("commit_lens")
        states = states[: positions.numel()]
        if lengths is not None:
            kept = certain(positions.numel(), lengths)
            states, positions = states.where(kept.unsqueeze(1), 0), positions.where(kept, 0)
        self._add("context.positions", positions)
        self._add("context.hidden_states", states)

    @after(bound=1)
    def flash_accepted(self, answer: Any, *args: Any, **named: Any) -> None:
        _, commit_lens, bonus, out_tokens, _ = answer
        self._accepted(out_tokens, commit_lens, bonus)

    @after(bound=1)
    def spark_accepted(self, answer: Any, *args: Any, **named: Any) -> None:
        self._accepted(answer.out_tokens, answer.commit_lens, answer.bonus)
        self._add("accept.new_seq_lens", answer.new_seq_lens)

    def _accepted(self, out_tokens: Tensor, commit_lens: Tensor, bonus: Tensor) -> None:
        self._add("accept.num_correct_drafts", commit_lens - 1)
        flat = out_tokens.reshape(-1)
        self._add("accept.predict", flat.where(certain(flat.numel(), commit_lens), 0))
        self._add("accept.bonus", bonus)

    @after(bound=1)
    def looked_up(self, answer: Any, _: Any, batch: Any, *args: Any, **named: Any) -> None:
        """What each request's last verify handed on, and the tree that the table has for it."""
        tokens, mask = answer
        if batch.spec_info is not None:
            self._add("relay.accept_lens", batch.spec_info.accept_lens)
        self._add("ngram.draft_tokens", torch.from_numpy(tokens))
        self._add("ngram.mask", torch.from_numpy(mask))

    @after(bound=1)
    def linked(self, _: Any, worker: Any, batch: Any, *args: Any, **named: Any) -> None:
        verify = batch.spec_info
        if not batch.forward_mode.is_target_verify():
            return
        self._add("tree.positions", verify.positions)
        for name in ("retrieve_next_token", "retrieve_next_sibling"):
            self._add(f"tree.{name}", getattr(verify, name).reshape(len(batch.reqs), -1))

    @after(bound=1)
    def prefilled(self, seed: Any, *args: Any, **named: Any) -> None:
        """Tell the state that each request's next draft by frozen keys begins from."""
        self._add("seed.bonus", seed.bonus_tokens)
        self._add("seed.hidden_states", seed.hidden_states)

    @after(bound=1)
    def extended(self, _: Any, worker: Any, batch: Any, result: Any, *args: Any, **named: Any) -> None:
        self.prefilled(lambda *_: result.next_draft_input, worker)

    @after(bound=1)
    def drafted(self, verify: Any, _: Any, batch: Any, *args: Any, **named: Any) -> None:
        if not batch.forward_mode.is_idle():
            self._add("draft.organize.draft_tokens", verify.draft_token.reshape(batch.batch_size(), -1)[:, 1:])
            self._add("tree.positions", verify.positions)


class BlockProbes:
    """Holds what drafters of blocks and of n-grams do against what must hold. A row of ``req_to_token`` stands for its
    request."""

    def __init__(self) -> None:
        self._bonus: dict[int, int] = {}  # the newest token of each row, as its last verify gave it
        self._rows: list[int] = []  # of the verify whose logits are judged next
        self._committed: Tensor | None = None  # how much of it is
        self._frozen = imported(BLOCK_SEATS["drafted"][0])

    def taps(self) -> Iterator[tuple[Any, str, Tap]]:
        """Where this process's workers are tapped; nowhere if none of them is. Raises NoSeat."""
        names = ("context", "flash_accepted", "spark_accepted", "prefilled", "extended")
        found = [(*seat.find(), getattr(self, name)) for name in names for seat in BLOCK_SEATS[name] if imported(seat)]
        if imported(NGRAM_SAMPLE):
            found.append((*NGRAM_SAMPLE.find(), self.ngram_accepted))
            found.append((*BLOCK_SEATS["looked_up"][0].find(), self.looked_up))
        if found:
            yield *FORWARD.find(), self.forward
        yield from found

    def forward(self, call: Call, runner: Any, batch: Any, *args: Any, **named: Any) -> Any:
        mode = batch.forward_mode
        if mode.is_target_verify() and async_probe.live():
            self._verified(runner, batch)
        elif self._frozen and runner.is_draft_worker and mode.is_decode():  # all from the last position with keys
            due = (batch.seq_lens - 1).clamp(min=0)
            async_probe.maybe_detect_oob(batch.positions, 0, 1, "draft.forward.positions", due)
        elif mode.is_extend() and not runner.is_draft_worker:
            for row in batch.req_pool_indices.tolist():
                self._bonus.pop(row, None)
        return call(batch, *args, **named)

    def _verified(self, runner: Any, batch: Any) -> None:
        """A block, or a tree, begins with the request's newest token, behind all that it has."""
        place, slot = ("block", "draft") if runner.is_draft_worker else ("verify", "verify")
        rows, lengths = batch.req_pool_indices.long(), batch.seq_lens.long()
        width = batch.input_ids.numel() // max(lengths.numel(), 1)
        due = torch.arange(width).unsqueeze(0) + lengths.unsqueeze(1)
        cells, written = runner.req_to_token_pool.req_to_token, batch.out_cache_loc
        slots = cells[rows.unsqueeze(1), due].reshape(-1)
        async_probe.maybe_detect_oob(written, 0, 1, f"{slot}.out_cache_loc", slots)
        page = runner.token_to_kv_pool_allocator.page_size  # the first is for padding, and where nothing is reserved
        async_probe.maybe_detect_oob(written, page, cells.max() + 1, f"{slot}.out_cache_loc")
        branches = getattr(batch.spec_info, "tree_topk", getattr(batch.spec_info, "topk", 1))
        if branches == 1:  # else its depths are not known here
            async_probe.maybe_detect_oob(batch.positions, 0, 1, f"{place}.positions", due.reshape(-1))
        first = batch.input_ids.reshape(-1, width)[:, 0]
        newest = [self._bonus.get(row, int(token)) for row, token in zip(rows.tolist(), first.tolist(), strict=True)]
        async_probe.maybe_detect_oob(first, 0, 1, f"{place}.input_ids", torch.tensor(newest))
        if place == "verify":
            self._rows = rows.tolist()

    @after(bound=1)
    def flash_accepted(self, answer: Any, _: Any, **named: Any) -> None:
        _, commit_lens, bonus, _, new_seq_lens = answer
        self._accepted(named, named["candidates"], named["next_token_logits"], commit_lens, bonus, new_seq_lens)

    @after(bound=1)
    def spark_accepted(self, answer: Any, _: Any, **named: Any) -> None:
        logits = named["target_logits"] if named["layout"] is None else None
        lengths = answer.commit_lens, answer.bonus, answer.new_seq_lens
        self._accepted(named, named["verify_ids_2d"], logits, *lengths)

    def _accepted(
        self,
        named: Mapping[str, Any],
        candidates: Tensor,
        logits: Tensor | None,
        commit_lens: Tensor,
        bonus: Tensor,
        new_seq_lens: Tensor | None,
    ) -> None:
        """Of a chain as many drafts are accepted as are the target's choice, and the bonus is its next."""
        self._committed = commit_lens.clone()
        self._bonus |= dict(zip(self._rows, bonus.tolist(), strict=False))
        sampling = named["sampling_info"]
        if logits is not None and (sampling is None or sampling.is_all_greedy):
            choice = logits.argmax(-1).reshape(candidates.shape)
            right = (candidates[:, 1:] == choice[:, :-1]).long().cumprod(1).sum(1)
            async_probe.maybe_detect_oob(commit_lens - 1, 0, 1, "accept.num_correct_drafts", right)
            last = choice.gather(1, (commit_lens - 1).long().unsqueeze(1)).squeeze(1)
            async_probe.maybe_detect_oob(bonus, 0, 1, "accept.bonus", last)
        if new_seq_lens is not None:
            due = named["prefix_lens"] + commit_lens
            async_probe.maybe_detect_oob(new_seq_lens, 0, 1, "accept.new_seq_lens", due)

    @after(bound=1)
    def looked_up(self, _: Any, worker: Any, batch: Any, *args: Any, **named: Any) -> None:
        """A request that has ended may be in one batch more, and its grammar may have cut what it had accepted."""
        for row, own in zip(batch.req_pool_indices.tolist(), batch.reqs, strict=True):
            if own.finished():
                self._bonus.pop(row, None)

    @after(bound=1)
    def ngram_accepted(self, answer: Any, verify: Any, *args: Any, **named: Any) -> None:
        predict, accept_lens, accept_index = answer
        last = accept_index.gather(1, (accept_lens - 1).long().unsqueeze(1)).squeeze(1)
        self._bonus |= dict(zip(self._rows, predict[last.long()].tolist(), strict=False))

    @after(bound=1)
    def extended(self, _: Any, worker: Any, batch: Any, result: Any, *args: Any, **named: Any) -> None:
        seed = result.next_draft_input
        self._bonus |= dict(zip(self._rows, seed.bonus_tokens.tolist(), strict=False))
        self.prefilled(lambda *_: seed, worker, batch)

    @after(bound=1)
    def prefilled(self, seed: Any, worker: Any, batch: Any, *args: Any, **named: Any) -> None:
        """The state that a draft by frozen keys begins from is the one by which the target chose the newest token."""
        chosen = batch.sampling_info
        if not async_probe.live() or not chosen.is_all_greedy or chosen.grammars or chosen.logit_bias is not None:
            return
        if chosen.penalizer_orchestrator is not None and chosen.penalizer_orchestrator.is_required:
            return
        logits = seed.hidden_states.float() @ worker.target_worker.model_runner.model.lm_head.weight.float().T
        best, own = logits.amax(-1), logits.gather(-1, seed.bonus_tokens.unsqueeze(1)).squeeze(1)
        async_probe.maybe_detect_oob((best - own > best.abs() * ROUNDING).long(), 0, 1, "seed.hidden_states")

    @after(bound=1)
    def context(self, _: Any, worker: Any, **named: Any) -> None:
        """What is context is all that was committed, each position in a slot that a request has for it."""
        if not async_probe.live():
            return
        cells = worker.model_runner.req_to_token_pool.req_to_token
        positions, slots, lengths = named["positions"].long(), named["cache_loc"], named.get("commit_lens")
        held = (cells[:, positions] == slots).any(0)
        async_probe.maybe_detect_oob(slots.where(held, -1), 0, cells.max() + 1, "kv_pool.write.loc")
        if lengths is not None and self._committed is not None:
            async_probe.maybe_detect_oob(lengths, 0, 1, "context.commit_lens", self._committed)


def imported(seat: Seat) -> bool:
    """Return True if this process has imported the module of a seat."""
    return f"sglang.{seat.module}" in sys.modules


def certain(rows: int, lengths: Tensor) -> Tensor:
    """Of rows, as many for each request, bool: it is among the first ``lengths`` of its request's."""
    width = rows // max(lengths.numel(), 1)
    return (torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)).reshape(-1)
