"""vLLM's model runner V2 and its speculator, wrapped at the boundaries of their stages: what
:mod:`specdebug.targets.vllm.inside.boundaries` tells of the runner V1, by the functions that V2 has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.inside.guard import Call, EngineLook, after, wrap_method
from specdebug.targets.vllm.inside.boundaries import Boundaries, BoundaryOnlooker, Doing, StepRequests

RUNNER_TAPS = {
    "prepare_inputs": "_inputs_prepared",
    "prepare_attn": "_slots_computed",
    "execute_model": "_executed",
    "sample": "_sampled",
    "sample_tokens": "_finished",
}
SPECULATOR_TAPS = {"propose": "_drafts_proposed", "sample_draft": "_draft_sampled"}
"""Functions of the runner and of a head's speculator, and the taps of each."""


def is_second(runner: Any) -> bool:
    """Return True for a runner V2."""
    return hasattr(runner, "req_states")


class SecondBoundaries(Boundaries):
    """Wraps a runner V2."""

    def __init__(
        self,
        runner: Any,
        onlookers: Sequence[BoundaryOnlooker],
        *,
        drafts: bool = True,
        blocks_of: Callable[[str], Sequence[int]],
    ) -> None:
        """As :class:`Boundaries`. ``blocks_of``: of a request those that the scheduler gave it."""
        self._blocks_of = blocks_of
        super().__init__(runner, onlookers, drafts=drafts)

    def _attach(self, look: EngineLook, *, drafts: bool) -> None:
        for name, tap in RUNNER_TAPS.items():
            wrap_method(self._runner, name, getattr(self, tap), look, bound=0)
        wrap_method(self._runner.model, "compute_logits", self._target_logits, look, bound=0)
        hook = self._target_begins
        self._runner.model.register_forward_pre_hook(
            lambda *told: look.attempt(lambda: hook(*told), None), with_kwargs=True
        )
        self._sampling = False
        self._drafter = self._runner.speculator
        if self._drafter is not None and drafts:
            for name, tap in SPECULATOR_TAPS.items():
                wrap_method(self._drafter, name, getattr(self, tap), look, bound=0)
            wrap_method(self._drafter.block_tables, "compute_slot_mappings", self._draft_slots_computed, look, bound=0)
            self._attach_draft(self._drafter.model, look)

    @after(bound=0)
    def _inputs_prepared(self, batch: Any, *args: Any, **named: Any) -> None:
        count, states = batch.num_reqs, self._runner.req_states
        starts = states.num_computed_tokens.gpu[batch.idx_mapping].tolist()
        known = states.total_len.gpu[batch.idx_mapping].tolist()
        rows = [int(each) for each in batch.num_scheduled_tokens]
        ends = [start + each for start, each in zip(starts, rows, strict=True)]
        texts = states.all_token_ids.gpu
        drafts = batch.num_draft_tokens_per_req
        held = zip(batch.idx_mapping.tolist(), ends, known, strict=True)
        self._all = StepRequests(
            "plain",
            tuple(range(count)),
            tuple(batch.req_ids),
            tuple(starts),
            tuple(rows),
            tuple(int(each) for each in batch.prefill_len_np),
            (0,) * count if drafts is None else tuple(int(each) for each in drafts),
            tuple(int(texts[row, end]) if end < whole else -1 for row, end, whole in held),
            tuple(tuple(self._blocks_of(rid)) for rid in batch.req_ids),
        )
        self._begun()

    @after(bound=0)
    def _slots_computed(self, answer: Any, *args: Any, **named: Any) -> None:
        slots = answer[1]
        if self._shares and len(slots) == 1:  # else one request has several tables
            self._tell("kv_pool.write.loc", slots[0], self._all.rows)

    def _target_begins(self, model: Any, args: Any, named: dict[str, Any]) -> None:
        if self._shares and named.get("input_ids") is not None:
            self._tell_forward("input_ids", named["input_ids"], self._all.rows)
            self._tell({"speculative": "look.positions"}, named["positions"], self._all.rows)

    def _executed(self, call: Call, *args: Any, **named: Any) -> Any:
        try:
            answer = call(*args, **named)
        except BaseException:
            self._over()
            raise
        state = self._runner.execute_model_state
        if state is not None and self._shares:
            self._tell_forward(
                "hidden_states", _hidden(state.hidden_states, state.aux_hidden_states), self._all.rows, plain=False
            )
        return answer

    @after(bound=0)
    def _target_logits(self, logits: Tensor, *args: Any, **named: Any) -> None:
        if self._sampling:
            self._tell_forward("logits", logits, [count + 1 for count in self._all.drafts])

    def _sampled(self, call: Call, *args: Any, **named: Any) -> Any:
        self._sampling = bool(self._shares)
        try:
            answer = call(*args, **named)
        finally:
            self._sampling = False
        if self._shares:
            output, counts, _ = answer
            ids = output.sampled_token_ids
            self._tell({"prefill": "sampler.next_token_ids", "plain": "sampler.next_token_ids"}, ids[:, 0], self._one)
            told = torch.arange(ids.shape[1]) < counts.unsqueeze(1)
            self._tell({"speculative": "accept.predict"}, torch.where(told, ids, -1), self._one)
            self._tell({"speculative": "accept.num_correct_drafts"}, counts - 1, self._one)
        return answer

    def _drafts_proposed(
        self, call: Call, batch: Any, metadata: Any, slots: Any, hidden: Tensor, aux: Any, *args: Any, **named: Any
    ) -> Any:
        if self._shares:
            self._tell({"speculative": "draft_extend.features"}, _hidden(hidden, aux), self._all.rows)
        return call(batch, metadata, slots, hidden, aux, *args, **named)

    def _draft_begins(self, model: Any, args: Any, named: dict[str, Any]) -> None:
        if self._shares and not self._forwards:
            ids, count = named["input_ids"], len(self._one)
            self._last = self._drafter.last_token_indices[:count].clone()
            self._tell("draft.bonus", ids[self._last], self._one)
            names: dict[Doing, str] = {"prefill": "draft_prefill.input_ids", "speculative": "draft_extend.input_ids"}
            self._tell(names, ids, self._all.rows)
        super()._draft_begins(model, args, named)

    @after(bound=0)
    def _draft_slots_computed(self, slots: Tensor, *args: Any, **named: Any) -> None:
        if self._shares and self._forwards and len(slots) == 1:
            self._tell("draft.out_cache_loc", slots[0], self._one)

    @after(bound=0)
    def _draft_sampled(self, answer: Tensor, *args: Any, **named: Any) -> None:
        self._tell_first(answer)


def _hidden(last: Tensor, aux: Any) -> Tensor:
    """The states that a draft reads: those of several layers beside each other, else the last one's."""
    return torch.cat(list(aux), dim=-1) if aux else last
