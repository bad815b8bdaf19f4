"""vLLM's model runner V1 and its proposer, wrapped at the boundaries of their stages, by our names of the sites. A step
may prefill some requests and verify the drafts of others in one forward: an onlooker is told of each kind apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from specdebug.targets.inside.guard import Call, EngineLook, after, wrap_method

Doing = Literal["prefill", "speculative", "plain"]
DOINGS: tuple[Doing, ...] = ("prefill", "speculative", "plain")

SCHEDULER_TAPS = ("_update_request_with_output", "_preempt_request", "_free_request")
"""Functions of the scheduler that a session listens to, by its methods without the underscore."""
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
HEADS = ("eagle", "eagle3")
"""Methods of vLLM whose draft is a head that reads the target's rows: those that the taps of a proposer fit."""
LOOKS = ("look.positions", "look.stored.positions", "look.stored.input_ids", "look.stored.hidden_states")
"""Beside our sites: the positions of a verify's rows, and what each request stores for its next draft."""
_FORWARD: dict[Doing, str] = {"prefill": "target_prefill", "speculative": "verify", "plain": "target_decode"}
"""The first part of our names of a target forward's sites."""


@dataclass(frozen=True)
class StepRequests:
    """Requests of a step, in its order. Of each: ``places`` in vLLM's batch; ``starts``, positions that had KV before;
    ``rows`` in the forward; ``totals``, tokens whose KV a prefill is to make; ``drafts`` that are verified; ``behind``,
    the token after its last row, -1 where that is not known yet; ``blocks`` of KV that the scheduler gave it."""

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
    """Told what passes, between a step's begin and its end or failure. ``among``: whose rows a tensor has, as many for
    each request as ``rows`` says."""

    def on_step(self, shares: Sequence[StepRequests]) -> None: ...
    def on_site(self, site: str, among: StepRequests, values: Tensor, rows: Sequence[int]) -> None: ...
    def on_step_over(self) -> None: ...


class Boundaries:
    """Wraps a runner."""

    def __init__(self, runner: Any, onlookers: Sequence[BoundaryOnlooker], *, drafts: bool = True) -> None:
        """``drafts``: its drafter is a head, whose stages are told, too. Raises AttributeError where a release has
        other functions."""
        self._runner = runner
        self._onlookers = onlookers
        self._shares: tuple[StepRequests, ...] = ()
        self._all = StepRequests("plain", (), (), (), (), (), (), (), ())
        self._one: Sequence[int] = ()  # a row for each request
        self._forwards = 0  # of the draft model, in this step
        self._last: Any = None  # of the first of them the row of each request that is drafted from
        self._drafter: Any = None
        self._attach(EngineLook("the stages of a step"), drafts=drafts)

    def _attach(self, look: EngineLook, *, drafts: bool) -> None:
        for name, tap in RUNNER_TAPS.items():
            wrap_method(self._runner, name, getattr(self, tap), look, bound=0)
        self._drafter = getattr(self._runner, "drafter", None)
        if self._drafter is not None and drafts:
            for name, tap in DRAFTER_TAPS.items():
                wrap_method(self._drafter, name, getattr(self, tap), look, bound=0)
            self._attach_draft(self._drafter.model, look)

    def _attach_draft(self, model: Any, look: EngineLook) -> None:
        wrap_method(model, "compute_logits", self._draft_logits, look, bound=0)
        hooks = self._draft_begins, self._draft_ends
        begins, ends = (lambda *told, hook=hook: look.attempt(lambda: hook(*told), None) for hook in hooks)
        model.register_forward_pre_hook(begins, with_kwargs=True)
        model.register_forward_hook(ends)

    @after(bound=0)
    def _prepared(self, answer: Any, scheduled: Any, counts: Any, *args: Any, **named: Any) -> None:
        verified, batch = answer[1], self._runner.input_batch
        places, rids = range(batch.num_reqs), batch.req_ids[: batch.num_reqs]
        starts = [int(batch.num_computed_tokens_cpu[place]) for place in places]
        known = [int(batch.num_tokens_no_spec[place]) for place in places]
        ends = [start + int(counts[place]) for place, start in enumerate(starts)]
        self._all = StepRequests(
            "plain",
            tuple(places),
            tuple(rids),
            tuple(starts),
            tuple(int(counts[place]) for place in places),
            # a prompt, or after a preemption all but the newest token
            tuple(max(int(batch.num_prompt_tokens[place]), known[place] - 1) for place in places),
            tuple(verified.num_draft_tokens) if verified is not None else (0,) * batch.num_reqs,
            tuple(int(batch.token_ids_cpu[n, end]) if end < known[n] else -1 for n, end in enumerate(ends)),
            tuple(tuple(self._runner.requests[rid].block_ids[0]) for rid in rids),
        )
        self._begun()

    def _begun(self) -> None:
        """Tell of the step that ``_all`` is of."""
        self._shares = tuple(share for doing in DOINGS if (share := self._share(doing)).places)
        self._one = (1,) * len(self._all.places)
        self._forwards = 0
        for each in self._onlookers:
            each.on_step(self._shares)

    def _share(self, doing: Doing) -> StepRequests:
        every = self._all
        decodes: Doing = "plain" if self._drafter is None else "speculative"
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

    @after(bound=0)
    def _target_slots(self, answer: Any, *args: Any, **named: Any) -> None:
        by_group = answer[0]
        if self._shares and by_group is not None and len(by_group) == 1:  # else one request has several tables
            self._tell("kv_pool.write.loc", next(iter(by_group.values())), self._all.rows)

    def _target_forward(self, call: Call, *args: Any, **named: Any) -> Any:
        ids = named.get("input_ids")
        if self._shares and ids is not None:
            self._tell_forward("input_ids", ids, self._all.rows)
            self._tell({"speculative": "look.positions"}, named["positions"], self._all.rows)
        return call(*args, **named)

    def _executed(self, call: Call, *args: Any, **named: Any) -> Any:
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

    @after(bound=0)
    def _sampled(self, answer: Any, *args: Any, **named: Any) -> None:
        ids = answer.sampled_token_ids
        self._tell({"prefill": "sampler.next_token_ids", "plain": "sampler.next_token_ids"}, ids[:, 0], self._one)
        self._tell({"speculative": "accept.predict"}, ids, self._one)

    def _finished(self, call: Call, *args: Any, **named: Any) -> Any:
        try:
            return call(*args, **named)
        finally:
            self._over()

    def _over(self) -> None:
        if self._shares:
            self._shares = ()
            for each in self._onlookers:
                each.on_step_over()

    @after(bound=0)
    def _next_tokens(self, answer: Any, *args: Any, **named: Any) -> None:
        tokens, counts = answer
        self._tell({"speculative": "accept.num_correct_drafts"}, counts - 1, self._one)
        self._tell("draft.bonus", tokens, self._one)

    def _proposed(self, call: Call, **named: Any) -> Any:
        self._tell({"speculative": "draft_extend.features"}, named["target_hidden_states"], self._all.rows)
        return call(**named)

    @after(bound=0)
    def _first_pass(self, answer: Any, **named: Any) -> None:
        if self._shares:
            names: dict[Doing, str] = {"prefill": "draft_prefill.input_ids", "speculative": "draft_extend.input_ids"}
            self._tell(names, self._drafter.input_ids, self._all.rows)
            self._last = answer[1]

    @after(bound=0)
    def _draft_slots(self, answer: Any, positions: Any, metadata: Any, *args: Any, **named: Any) -> None:
        if self._shares:
            self._tell("draft.out_cache_loc", metadata.slot_mapping, self._one)

    def _draft_begins(self, model: Any, args: Any, named: dict[str, Any]) -> None:
        """A forward of the draft model. The first is over the rows of the target's, every other a row a request."""
        for name in ("positions", "input_ids") if self._shares else ():
            if self._forwards:
                self._tell(f"draft.forward.{name}", named[name], self._one)
            else:
                self._tell(f"look.stored.{name}", named[name][self._last], self._one)

    def _draft_ends(self, model: Any, args: Any, answer: Any) -> None:
        if self._shares and not self._forwards:
            self._tell({"prefill": "draft_prefill.hidden_states"}, answer[-1], self._all.rows)
            self._tell("look.stored.hidden_states", answer[-1][self._last], self._one)
        self._forwards += 1

    @after(bound=0)
    def _draft_logits(self, logits: Tensor, *args: Any, **named: Any) -> None:
        if self._shares:
            site = "draft_extend.logits" if self._forwards == 1 else "draft.forward.logits"
            targets = self._target_ids()  # over which vLLM spreads the logits of the draft's own tokens
            self._tell(site, logits if targets is None else logits[:, targets], self._one)

    def _target_ids(self) -> Tensor | None:
        """The target's ids of the draft's own tokens, ascending; None where their vocabularies are one."""
        shift = getattr(self._drafter.model, "draft_id_to_target_id", None)
        return None if shift is None else torch.arange(shift.numel(), device=shift.device) + shift

    @after(bound=0)
    def _draft_sampled(self, answer: Any, *args: Any, **named: Any) -> None:
        self._tell_first(answer[0])

    def _tell_first(self, drafted: Tensor) -> None:
        """Tell of the first token that is drafted for each request. int [B], of the target's vocabulary."""
        if self._shares and self._forwards == 1:
            ids, targets = drafted.reshape(-1, 1), self._target_ids()
            index = ids if targets is None else torch.searchsorted(targets, ids)
            self._tell("draft_extend.topk_index", index, self._one)
