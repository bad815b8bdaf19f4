"""vLLM's model runner and its proposer, watched at the boundaries of their stages, by our names of the sites.

The functions of the one runner and the one proposer that a process has are wrapped; nothing of theirs is changed. A
step of vLLM may prefill some requests and verify the drafts of others in one forward: an observer is told of each
kind apart, with the rows of its requests and our name for what it does.

This is about the model runner V1, which vLLM takes where there is no Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.inside.wrapping import wrap_bound

Doing = Literal["prefill", "speculative", "plain"]
DOINGS: tuple[Doing, ...] = ("prefill", "speculative", "plain")

RUNNER_TAPS = {
    "_prepare_inputs": "_prepared",
    "_get_slot_mappings": "_target_slots",
    "_model_forward": "_target_forward",
    "execute_model": "_executed",
    "_sample": "_sampled",
    "sample_tokens": "_finished",
}
DRAFTER_TAPS = {
    "prepare_next_token_ids_padded": "_next_tokens",
    "propose": "_proposed",
    "set_inputs_first_pass": "_first_pass",
    "_update_positions_dependent_metadata": "_draft_slots",
    "_sample_draft_tokens": "_draft_sampled",
}
"""Functions of the runner and of the proposer, and the taps of each."""
_FORWARD: dict[Doing, str] = {"prefill": "target_prefill", "speculative": "verify", "plain": "target_decode"}
"""The first part of our names of a target forward's sites."""


@dataclass(frozen=True)
class StepRequests:
    """Requests of a step, in its order.

    ``places``: in vLLM's batch. ``starts``: positions of each that had KV before the step. ``rows``: of each in the
    forward. ``totals``: tokens of each whose KV a prefill is to make. ``drafts``: of each that are verified.
    ``behind``: of each the token after its last row, -1 where that is not known yet. ``blocks``: of each the blocks of
    KV that the scheduler gave it.
    """

    doing: Doing
    places: tuple[int, ...]
    rids: tuple[str, ...]
    starts: tuple[int, ...]
    rows: tuple[int, ...]
    totals: tuple[int, ...]
    drafts: tuple[int, ...]
    behind: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]


class BoundaryOnlooker(Protocol):
    """Told what passes. ``among``: whose rows they are, as many for each request as ``rows`` says."""

    def on_step(self, number: int, shares: Sequence[StepRequests]) -> None:
        """A step begins."""

    def on_site(self, site: str, among: StepRequests, values: Tensor, rows: Sequence[int]) -> None:
        """A tensor passes, with its rows of those requests."""

    def on_step_over(self) -> None:
        """The step is over, or has failed."""


class Boundaries:
    """Wraps a runner. ``name_of``: the id that a request was given, by vLLM's own of it."""

    def __init__(self, runner: Any, name_of: Callable[[str], str], onlookers: Sequence[BoundaryOnlooker]) -> None:
        """Raises AttributeError where a release has other functions."""
        look = EngineLook("the stages of a step")
        self._runner = runner
        self._name_of = name_of
        self._onlookers = onlookers
        self._steps = 0
        self._shares: tuple[StepRequests, ...] = ()
        self._all = StepRequests("plain", (), (), (), (), (), (), (), ())
        self._forwards = 0  # of the draft model, in this step
        for name, tap in RUNNER_TAPS.items():
            wrap_bound(runner, name, getattr(self, tap), look)
        drafter = getattr(runner, "drafter", None)
        if drafter is not None:
            for name, tap in DRAFTER_TAPS.items():
                wrap_bound(drafter, name, getattr(self, tap), look)
            wrap_bound(drafter.model, "compute_logits", self._draft_logits, look)
            begins, ends = self._draft_begins, self._draft_ends
            drafter.model.register_forward_pre_hook(
                lambda *told: look.attempt(lambda: begins(*told), None), with_kwargs=True
            )
            drafter.model.register_forward_hook(lambda *told: look.attempt(lambda: ends(*told), None))
            self._drafter = drafter

    def _prepared(self, call: Callable[..., Any], scheduled: Any, counts: Any, *args: Any, **named: Any) -> Any:
        answer = call(scheduled, counts, *args, **named)
        verified = answer[1]
        batch = self._runner.input_batch
        places = range(batch.num_reqs)
        self._all = StepRequests(
            "plain",
            tuple(places),
            tuple(self._name_of(rid) for rid in batch.req_ids[: batch.num_reqs]),
            tuple(int(batch.num_computed_tokens_cpu[place]) for place in places),
            tuple(int(counts[place]) for place in places),
            tuple(self._to_prefill(place) for place in places),
            tuple(verified.num_draft_tokens) if verified is not None else (0,) * batch.num_reqs,
            tuple(self._behind(place, int(counts[place])) for place in places),
            tuple(tuple(self._runner.requests[rid].block_ids[0]) for rid in batch.req_ids[: batch.num_reqs]),
        )
        self._shares = tuple(share for doing in DOINGS if (share := self._share(doing)).places)
        self._steps += 1
        self._forwards = 0
        for each in self._onlookers:
            each.on_step(self._steps, self._shares)
        return answer

    def _to_prefill(self, place: int) -> int:
        """The tokens whose KV a prefill makes: the prompt, or after a preemption all but the newest token."""
        batch = self._runner.input_batch
        return max(int(batch.num_prompt_tokens[place]), int(batch.num_tokens_no_spec[place]) - 1)

    def _behind(self, place: int, rows: int) -> int:
        batch = self._runner.input_batch
        end = int(batch.num_computed_tokens_cpu[place]) + rows
        return int(batch.token_ids_cpu[place, end]) if end < int(batch.num_tokens_no_spec[place]) else -1

    def _share(self, doing: Doing) -> StepRequests:
        every = self._all
        decodes: Doing = "plain" if getattr(self._runner, "drafter", None) is None else "speculative"
        chosen = [n for n in every.places if ("prefill" if every.starts[n] < every.totals[n] else decodes) == doing]
        facts = (getattr(every, each.name) for each in fields(every)[1:])
        share = StepRequests(doing, *(tuple(each[n] for n in chosen) for each in facts))
        if doing != "prefill":
            return share
        rows = tuple(count - pad for count, pad in zip(share.rows, share.drafts, strict=True))
        return replace(share, rows=rows, drafts=(0,) * len(rows))

    def _tell(self, names: dict[Doing, str] | str, values: Tensor, rows: Sequence[int]) -> None:
        """Hand each share its rows of a tensor. ``rows``: how many each request of the batch has."""
        ends = [sum(rows[: n + 1]) for n in range(len(rows))]
        for share in self._shares:
            site = names if isinstance(names, str) else names.get(share.doing)
            if site is None:
                continue
            mine = [rows[place] for place in share.places]
            if share.doing == "prefill":  # one of a single token is padded to the size of a verify
                mine = [max(1, rows[place] - self._all.drafts[place]) for place in share.places]
            firsts = [ends[place] - rows[place] for place in share.places]
            parts = [values[first : first + count] for first, count in zip(firsts, mine, strict=True)]
            for each in self._onlookers:
                each.on_site(site, share, torch.cat(parts), mine)

    def _tell_forward(self, what: str, values: Tensor, rows: Sequence[int], *, plain: bool = True) -> None:
        names: dict[Doing, str] = {doing: f"{name}.{what}" for doing, name in _FORWARD.items()}
        if not plain:
            del names["plain"]
        self._tell(names, values, rows)

    def _target_slots(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        answer = call(*args, **named)
        by_group = answer[0]
        if self._shares and by_group is not None and len(by_group) == 1:  # else one request has several tables
            (slots,) = by_group.values()
            self._tell("kv_pool.write.loc", slots, self._all.rows)
        return answer

    def _target_forward(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        ids = named.get("input_ids")
        if self._shares and ids is not None:
            self._tell_forward("input_ids", ids, self._all.rows)
        return call(*args, **named)

    def _executed(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        try:
            answer = call(*args, **named)
        except BaseException:
            self._over()
            raise
        state = self._runner.execute_model_state
        if state is not None and self._shares:
            self._tell_forward("logits", state.logits, [count + 1 for count in self._all.drafts])
            aux = state.aux_hidden_states
            hidden = state.hidden_states if aux is None else torch.cat(list(aux), dim=-1)
            self._tell_forward("hidden_states", hidden, self._all.rows, plain=False)
        return answer

    def _sampled(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        answer = call(*args, **named)
        ids = answer.sampled_token_ids
        one = (1,) * len(self._all.places)
        self._tell({"prefill": "sampler.next_token_ids", "plain": "sampler.next_token_ids"}, ids[:, 0], one)
        self._tell({"speculative": "accept.predict"}, ids, one)
        return answer

    def _finished(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        try:
            return call(*args, **named)
        finally:
            self._over()

    def _over(self) -> None:
        if self._shares:
            self._shares = ()
            for each in self._onlookers:
                each.on_step_over()

    def _next_tokens(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        tokens, counts = call(*args, **named)
        one = (1,) * len(self._all.places)
        self._tell({"speculative": "accept.num_correct_drafts"}, counts - 1, one)
        self._tell("draft.bonus", tokens, one)
        return tokens, counts

    def _proposed(self, call: Callable[..., Any], **named: Any) -> Any:
        self._tell({"speculative": "draft_extend.features"}, named["target_hidden_states"], self._all.rows)
        return call(**named)

    def _first_pass(self, call: Callable[..., Any], **named: Any) -> Any:
        answer = call(**named)
        if self._shares:
            self._tell(
                {"prefill": "draft_prefill.input_ids", "speculative": "draft_extend.input_ids"},
                self._drafter.input_ids,
                self._all.rows,
            )
        return answer

    def _draft_slots(self, call: Callable[..., Any], positions: Any, metadata: Any, *args: Any, **named: Any) -> Any:
        answer = call(positions, metadata, *args, **named)
        if self._shares:
            self._tell("draft.out_cache_loc", metadata.slot_mapping, (1,) * len(self._all.places))
        return answer

    def _draft_begins(self, model: Any, args: Any, named: dict[str, Any]) -> None:
        """A forward of the draft model. The first is over the rows of the target's, every other a row a request."""
        if not self._shares:
            return
        if self._forwards:
            one = (1,) * len(self._all.places)
            self._tell("draft.forward.positions", named["positions"], one)
            self._tell("draft.forward.input_ids", named["input_ids"], one)

    def _draft_ends(self, model: Any, args: Any, answer: Any) -> None:
        if self._shares and not self._forwards:
            self._tell({"prefill": "draft_prefill.hidden_states"}, answer[-1], self._all.rows)
        self._forwards += 1

    def _draft_logits(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        logits = call(*args, **named)
        if self._shares:
            site = "draft_extend.logits" if self._forwards == 1 else "draft.forward.logits"
            self._tell(site, self._in_draft_vocabulary(logits), (1,) * len(self._all.places))
        return logits

    def _in_draft_vocabulary(self, logits: Tensor) -> Tensor:
        """The logits of the draft's own tokens, where it has a vocabulary of its own; vLLM spreads them over the
        target's."""
        targets = self._target_ids()
        return logits if targets is None else logits[:, targets]

    def _target_ids(self) -> Tensor | None:
        """The target's ids of the draft's own tokens, ascending; None where their vocabularies are one."""
        shift = getattr(self._drafter.model, "draft_id_to_target_id", None)
        return None if shift is None else torch.arange(shift.numel(), device=shift.device) + shift

    def _draft_sampled(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        answer = call(*args, **named)
        if self._shares and self._forwards == 1:
            ids, targets = answer[0].reshape(-1, 1), self._target_ids()
            if targets is not None:
                ids = torch.searchsorted(targets, ids)
            self._tell("draft_extend.topk_index", ids, (1,) * len(self._all.places))
        return answer
