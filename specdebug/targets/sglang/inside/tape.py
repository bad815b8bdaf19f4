"""Record what passes SGLang's EAGLE worker by our names of the sites (``engine/sites.py``).

Functions at the boundaries of its stages are wrapped, none is changed. What a CUDA graph does within itself passes no
function on the host, so the forwards of the draft are recorded where they run eagerly, or are replayed on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.inside.tape import Tape
from specdebug.targets.inside.wrapping import wrap_all
from specdebug.targets.sglang.inside.batches import RUN, TAKE
from specdebug.targets.sglang.inside.graph_buffers import EXTEND_REPLAY
from specdebug.targets.sglang.inside.looks import DRAFT, DRAFT_EXTEND, DRAFT_PREFILL, SAMPLE
from specdebug.targets.sglang.inside.seats import Seat

RECORDING = "a recording"
_DRAFTS = "srt.speculative.eagle_worker_v2:EagleDraftWorker"
SEATS = {
    "run_batch": RUN,
    "process_batch_result": TAKE,
    "target_forward": Seat(RECORDING, ("srt.managers.tp_worker:TpModelWorker.forward_batch_generation",)),
    "model_forward": Seat(RECORDING, ("srt.model_executor.model_runner:ModelRunner.forward",)),
    "draft": DRAFT,
    "draft_forward": Seat(RECORDING, (f"{_DRAFTS}.draft_forward",)),
    "draft_prefill": DRAFT_PREFILL,
    "draft_extend": DRAFT_EXTEND,
    "organize": Seat(RECORDING, ("srt.speculative.eagle_worker_v2:organize_draft_results",)),
    "sample": SAMPLE,
    "extend_replay": EXTEND_REPLAY,
}
"""The functions that are tapped, by the tap."""


def record(path: str) -> Callable[[], None]:
    """Record every batch of this process's scheduler, if it has one, to a file; returns what waits until all of it is
    written. Raises NoSeat."""
    tape = Tape(path)
    taps = _Taps(tape)
    wrap_all([(*seat.find(), getattr(taps, name)) for name, seat in SEATS.items()], EngineLook(RECORDING))
    return tape.wait


class _Taps:
    """One for each wrapped method: calls it and records what goes in and comes out."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._steps = 0
        self._told: set[str] = set()
        self._drafted: Any = None  # what the draft model said last of a prefill, or of accepted tokens

    def run_batch(self, call: Callable[..., Any], _: Any, batch: Any, *args: Any, **named: Any) -> Any:
        mode = batch.forward_mode
        if not batch.reqs or not (mode.is_extend() or mode.is_decode()):
            return call(batch, *args, **named)
        self._steps += 1
        kind = "prefill" if mode.is_extend() else "plain" if batch.spec_algorithm.is_none() else "speculative"
        lens = [int(each) for each in batch.extend_lens] if kind == "prefill" else []
        self._tape.begin(self._steps, kind, [request.rid for request in batch.reqs], lens)
        try:
            return call(batch, *args, **named)
        finally:
            self._tape.end()

    def process_batch_result(self, call: Callable[..., Any], _: Any, batch: Any, *args: Any, **named: Any) -> Any:
        answer = call(batch, *args, **named)
        for request in batch.reqs:
            if request.finished() and request.rid not in self._told:
                self._told.add(request.rid)
                plain = batch.spec_algorithm.is_none()
                self._tape.ended(request.rid, len(request.output_ids) - 1 if plain else request.spec_verify_ct)
        return answer

    def target_forward(self, call: Callable[..., Any], worker: Any, *args: Any, **named: Any) -> Any:
        answer = call(*args, **named)
        if not worker.model_runner.is_draft_worker and not named.get("is_verify") and answer.next_token_ids is not None:
            self._tape.add("sampler.next_token_ids", answer.next_token_ids)
        return answer

    def model_forward(self, call: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **named: Any) -> Any:
        if not self._tape.recording:
            return call(forward_batch, *args, **named)
        place = _place(runner.is_draft_worker, forward_batch.forward_mode)
        if place is None:
            return call(forward_batch, *args, **named)
        self._tape.add(
            f"{place}.input_ids", _certain_ids(forward_batch) if place == "draft_extend" else forward_batch.input_ids
        )
        if place == "draft.forward":
            self._tape.add("draft.forward.positions", forward_batch.positions)
        answer = call(forward_batch, *args, **named)
        if place in ("draft_prefill", "draft_extend"):
            self._drafted = answer.logits_output
        if place in ("target_prefill", "verify", "target_decode", "draft.forward"):
            output = answer.logits_output
            if place in ("target_prefill", "verify") and output.hidden_states is not None:
                self._tape.add(f"{place}.hidden_states", output.hidden_states)
            self._tape.add(f"{place}.logits", output.next_token_logits)
        return answer

    def extend_replay(self, call: Callable[..., Any], _: Any, forward_batch: Any, *args: Any, **named: Any) -> Any:
        self._tape.add("draft_extend.input_ids", _certain_ids(forward_batch))
        self._drafted = call(forward_batch, *args, **named)
        return self._drafted

    def draft(self, call: Callable[..., Any], _: Any, batch: Any, *args: Any, **named: Any) -> Any:
        self._tape.add("draft.bonus", batch.spec_info.bonus_tokens)
        answer = call(batch, *args, **named)
        requests = len(batch.reqs)
        if requests and answer.retrieve_next_token is not None:
            for name in ("retrieve_next_token", "retrieve_next_sibling"):
                self._tape.add(f"tree.{name}", getattr(answer, name).reshape(requests, -1))
        return answer

    def draft_forward(self, call: Callable[..., Any], worker: Any, *args: Any, **named: Any) -> Any:
        answer = call(*args, **named)
        if worker.topk > 1:  # a chain has nothing to organize
            _, top_scores_index, draft_tokens = answer[:3]  # from 0.5.18 on probabilities follow
            self._tape.add("draft.organize.top_scores_index", top_scores_index)
            self._tape.add("draft.organize.draft_tokens", draft_tokens)
        return answer

    def organize(self, call: Callable[..., Any], score_list: Any, *args: Any, **named: Any) -> Any:
        if self._tape.recording:
            self._tape.add("draft.organize.scores", torch.cat(score_list, dim=1).flatten(1))
        return call(*args, **named)

    def draft_prefill(self, call: Callable[..., Any], _: Any, *args: Any, **named: Any) -> Any:
        answer = call(*args, **named)
        self._start(answer)
        return answer

    def draft_extend(self, call: Callable[..., Any], _: Any, batch: Any, result: Any, *args: Any, **named: Any) -> Any:
        answer = call(batch, result, *args, **named)
        self._start(result.next_draft_input)
        return answer

    def sample(self, call: Callable[..., Any], _: Any, *args: Any, **named: Any) -> Any:
        predict, accept_lens, accept_index = call(*args, **named)
        self._tape.add("accept.predict", predict)
        self._tape.add("accept.accept_index", accept_index)
        self._tape.add("accept.num_correct_drafts", accept_lens - 1)
        return predict, accept_lens, accept_index

    def _start(self, drafted: Any) -> None:
        """The start of the next draft: what the draft says after the last token that is certain."""
        if drafted is None or drafted.topk_index is None:
            return
        if self._drafted is not None:
            self._tape.add("draft_extend.logits", self._drafted.next_token_logits)  # by now of the last rows only
        self._tape.add("draft_extend.topk_index", drafted.topk_index)
        if drafted.topk_index.shape[-1] > 1:  # of a chain it is 1 and never read
            self._tape.add("draft_extend.topk_p", drafted.topk_p)


def _place(drafts: bool, mode: Any) -> str | None:
    """The first part of our names of a forward's sites."""
    if drafts:
        if mode.is_decode():
            return "draft.forward"
        if mode.is_draft_extend_v2():
            return "draft_extend"
        return "draft_prefill" if mode.is_extend() else None
    if mode.is_target_verify():
        return "verify"
    if mode.is_decode():
        return "target_decode"
    return "target_prefill" if mode.is_extend() else None


def _certain_ids(forward_batch: Any) -> Any:
    """The tokens that a draft extends over, zeros in the place of those behind the accepted ones, as ours has them."""
    ids, accepted = forward_batch.input_ids, forward_batch.spec_info.num_accept_tokens
    rows = ids.reshape(accepted.numel(), -1)
    places = torch.arange(rows.shape[1], device=ids.device)
    return rows.where(places < accepted.unsqueeze(1), 0).reshape(-1)
