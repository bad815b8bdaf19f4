"""The stages of SGLang's EAGLE worker, wrapped where they are: looks at requests for oracles, sites for recorders. What
a CUDA graph does within itself passes no function on the host, so a draft's forwards are seen where they run
eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.inside.guard import Call, EngineLook, after, wrap_all
from specdebug.targets.requests import NotShown
from specdebug.targets.sglang.inside.blocks import BlockSites
from specdebug.targets.sglang.inside.memory import EXTEND_REPLAY
from specdebug.targets.sglang.inside.seats import KERNELS, Seat
from specdebug.targets.sglang.inside.stored import StoredSites

Event = dict[str, Any]
"""What was seen of a request in a batch: ``what`` is ``prefilled`` or ``verified``; the rest is by name."""
LOOKS, RECORDING = "requests inside", "a recording"
_WORKER = "srt.speculative.eagle_worker_v2"
DRAFT, DRAFT_PREFILL, DRAFT_EXTEND = (
    Seat(LOOKS, (f"{_WORKER}:EagleDraftWorker.{name}",))
    for name in ("draft", "_draft_extend_for_prefill", "_draft_extend_for_decode")
)
SAMPLE = Seat(
    LOOKS,
    (
        "srt.speculative.eagle_worker_common:eagle_sample",
        f"{_WORKER}:eagle_sample",
        "srt.speculative.eagle_info:EagleVerifyInput.sample",
    ),
)
"""The method that decides a verify."""
_TOSSES = ("srt.speculative.eagle_utils", "srt.speculative.eagle_info_v2", "kernels.ops.speculative.sampling", KERNELS)
MODEL = "srt.model_executor.model_runner:ModelRunner.forward"
LOOK_SEATS = {
    "draft": DRAFT,
    "select": Seat(LOOKS, (f"{_WORKER}:select_top_k_tokens",)),
    "model_forward": Seat(LOOKS, (MODEL,)),
    "draft_prefill": DRAFT_PREFILL,
    "draft_extend": DRAFT_EXTEND,
    "sample": SAMPLE,
    "toss": Seat(LOOKS, tuple(f"{module}:tree_speculative_sampling_target_only" for module in _TOSSES)),
}
SITE_SEATS = {
    "target_forward": Seat(RECORDING, ("srt.managers.tp_worker:TpModelWorker.forward_batch_generation",)),
    "model_forward": Seat(RECORDING, (MODEL,)),
    "draft": DRAFT,
    "draft_forward": Seat(RECORDING, (f"{_WORKER}:EagleDraftWorker.draft_forward",)),
    "draft_prefill": DRAFT_PREFILL,
    "draft_extend": DRAFT_EXTEND,
    "organize": Seat(RECORDING, (f"{_WORKER}:organize_draft_results",)),
    "sample": SAMPLE,
    "extend_replay": EXTEND_REPLAY,
}
"""The functions that are tapped, by the tap."""


PARTS = 3
"""What is seen of a draft's forward: tokens, parents and logits. Of the last selection there is no forward."""


def look() -> StageLook:
    """StageLook at what this process's scheduler computes. Raises NoSeat."""
    taps = StageLook(coin_of_step=not torch.cuda.is_available())
    wrap_all([(*seat.find(), getattr(taps, name)) for name, seat in LOOK_SEATS.items()], EngineLook(LOOKS))
    return taps


def record() -> StageSites:
    """What passes the stages of this process's scheduler from now on. Raises NoSeat."""
    sites = StageSites()
    taps = [(*seat.find(), getattr(sites, name)) for name, seat in SITE_SEATS.items()]
    wrap_all([*taps, *BlockSites(sites.add).taps(), *sites.stored.taps()], EngineLook(RECORDING))
    return sites


class StageLook:
    """Sees what is stored, drafted and verified of each request of a batch while that is launched. ``coin_of_step``: a
    verify's coins are by the number of the step, as our stand-in for the kernel has them, and not by the node."""

    def __init__(self, *, coin_of_step: bool) -> None:
        self._coin_of_step = coin_of_step
        self._draft_worker: Any = None
        self._events: dict[str, Event] = {}
        self._stored: list[Event] = []  # what each request of the batch drafts from
        self._forwards: list[list[Tensor]] | None = None  # of the draft that is made: tokens, parents and logits
        self._drafted: list[list[Tensor]] = []  # those of the last one that was
        self._coins: tuple[Tensor, Tensor] | None = None  # of the verify that is sampled, by node and for the bonus

    def begin(self) -> None:
        """A batch is launched."""
        self._events = {}

    def seen(self) -> dict[str, Event]:
        """What was seen of the batch, by request."""
        return self._events

    def draft(self, call: Call, worker: Any, batch: Any, *args: Any, **named: Any) -> Any:
        self._draft_worker = worker
        self._stored = [] if batch.forward_mode.is_idle() else _stored(batch.spec_info, batch.seq_lens)
        self._forwards = []
        answer = call(batch, *args, **named)
        self._drafted, self._forwards = [each for each in self._forwards if len(each) == PARTS], None
        return answer

    def select(self, call: Call, step: int, *args: Any, **named: Any) -> Any:
        answer = call(*args, **named)
        if self._forwards is not None:
            tokens, _, _, (_, _, chosen) = answer
            topk = chosen.shape[1] - (step == 0)
            place = (
                torch.arange(topk).expand(len(chosen), topk) if step == 0 else chosen - topk * (topk * (step - 1) + 1)
            )
            self._forwards.append([kept(tokens), kept(place if step == 0 else place // topk).reshape(-1)])
        return answer

    def model_forward(self, call: Call, runner: Any, batch: Any, *args: Any, **named: Any) -> Any:
        answer = call(batch, *args, **named)
        if self._forwards and runner.is_draft_worker and batch.forward_mode.is_decode():
            self._forwards[-1].append(kept(answer.logits_output.next_token_logits))
        return answer

    def toss(self, call: Call, **named: Any) -> Any:
        self._coins = kept(named["uniform_samples"]), kept(named["uniform_samples_for_final_sampling"])
        return call(**named)

    def sample(self, call: Call, verify: Any, batch: Any, output: Any, *args: Any, **named: Any) -> Any:
        self._coins = None
        answer = call(batch, output, *args, **named)
        if not batch.forward_mode.is_idle():
            self._verified(verify, batch, output.next_token_logits, answer)
        return answer

    @after(bound=1)
    def draft_prefill(self, answer: Any, worker: Any, batch: Any, *args: Any, **named: Any) -> None:
        self._draft_worker = worker
        if answer is not None and not batch.forward_mode.is_idle():
            for request, stored in zip(batch.reqs, _stored(answer, batch.seq_lens), strict=True):
                self._events[request.rid] = {"what": "prefilled", "stored": stored}

    @after(bound=1)
    def draft_extend(self, answer: Any, _: Any, batch: Any, result: Any, *args: Any, **named: Any) -> None:
        if not batch.forward_mode.is_idle():
            lengths = batch.seq_lens + result.accept_lens
            told = kept(result.new_seq_lens).tolist()
            for number, stored in enumerate(_stored(result.next_draft_input, lengths)):
                self._events[batch.reqs[number].rid] |= {"stores": stored, "told_length": told[number]}

    def _verified(self, verify: Any, batch: Any, logits: Tensor, answer: Any) -> None:
        predict, accept_lens, accept_index = (kept(each) for each in answer)
        count, nodes = len(batch.reqs), verify.draft_token_num
        theirs = ("draft_token", "positions", "retrieve_next_token", "retrieve_next_sibling")
        trees = {
            name.replace("draft_token", "tokens"): kept(getattr(verify, name).reshape(-1)[: count * nodes])
            for name in theirs
        }
        alone = _of_nodes_alone(self._draft_worker)
        masks = tree_masks(verify.custom_mask, batch.seq_lens.tolist(), nodes, alone=alone)
        for number, (request, stored) in enumerate(zip(batch.reqs, self._stored, strict=True)):
            mine, topk = slice(number * nodes, (number + 1) * nodes), stored["topk_index"].numel()
            branches = slice(number * topk, (number + 1) * topk)
            index = torch.where(accept_index[number] < 0, -1, accept_index[number] - number * nodes)
            event: Event = {
                "what": "verified",
                "stored": stored,
                "forwards": [[part[branches] for part in each] for each in self._drafted],
                "tree": {name: each[mine] for name, each in trees.items()} | {"mask": masks[number]},
                "logits": kept(logits[mine]),
                "predict": predict[mine],
                "accept_index": index,
                "accepted": int(accept_lens[number]),
                "coins": self._of_path(number, index),
            }
            self._events[request.rid] = event

    def _of_path(self, number: int, path: Tensor) -> Tensor | None:
        """The coins of a request's walk: one for each node that it came to, and last that of the bonus."""
        if self._coins is None:
            return None
        by_node, last = (each[number] for each in self._coins)
        steps = torch.arange(path.numel()) if self._coin_of_step else path.clamp(min=0)
        return torch.cat((by_node[steps.clamp(max=by_node.numel() - 1).long()], last.reshape(1)))


def kept(tensor: Tensor) -> Tensor:
    """A copy on the host, which is written once."""
    return tensor.detach().to("cpu", copy=True)


def kv_of(scheduler: Any, pool: str, row: Any, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Keys and values of the positions of a row, in the pool of the ``draft`` or the ``target``: each [layers, n,
    heads, head_dim], on the host. Raises NotShown for latent attention, which packs both into one."""
    slots = scheduler.req_to_token_pool.req_to_token[row, start:stop].long()
    if pool == "draft":
        kept_in = scheduler.draft_worker._draft_worker.draft_runner.token_to_kv_pool
    else:
        kept_in = scheduler.token_to_kv_pool_allocator.get_kvcache()
    if not hasattr(kept_in, "k_buffer"):
        raise NotShown(pool)
    keys, values = (torch.stack([kept(each[slots]) for each in side]) for side in (kept_in.k_buffer, kept_in.v_buffer))
    return keys, values


@dataclass(frozen=True)
class DraftRows:
    """What some requests store, a row each, as ``base.StoredDrafts``."""

    seq_lens: Tensor
    bonus: Tensor
    topk_p: Tensor | None
    topk_index: Tensor
    hidden_states: Tensor

    @classmethod
    def of(cls, rows: Sequence[Event]) -> DraftRows:
        """Of rows as :func:`_stored` has them."""
        stored = all("topk_p" in row for row in rows)
        return cls(
            torch.tensor([row["seq_len"] for row in rows]),
            torch.stack([row["bonus_tokens"] for row in rows]),
            torch.stack([row["topk_p"] for row in rows]) if stored else None,
            torch.stack([row["topk_index"] for row in rows]),
            torch.stack([row["hidden_states"] for row in rows]),
        )


def _stored(spec_info: Any, lengths: Tensor) -> list[Event]:
    """What each request stores for its next draft, after ``lengths`` positions. Of a chain SGLang stores no
    probabilities but ones. Hidden states that it lacks are of width 0."""
    rows = {name: kept(getattr(spec_info, name)) for name in ("bonus_tokens", "topk_p", "topk_index")}
    hidden = spec_info.hidden_states
    rows["hidden_states"] = torch.empty(len(lengths), 0) if hidden is None else kept(hidden)
    if rows["topk_p"].shape[-1] == 1:
        del rows["topk_p"]
    return [
        {name: each[number] for name, each in rows.items()} | {"seq_len": length}
        for number, length in enumerate(lengths.tolist())
    ]


def _of_nodes_alone(draft_worker: Any) -> bool:
    """Return True if masks are of trees alone: so they are from 0.5.18 on where the target's backend does not read
    them, such as FA3 for chains. Its buffer is as long as its largest batch needs."""
    owned = getattr(draft_worker.target_worker.model_runner.attn_backend, "verify_mask", None)
    return bool((draft_worker.tree_mask_mode if owned is None else owned.mode).name == "QLEN_ONLY")


def tree_masks(mask: Tensor, lengths: list[int], nodes: int, *, alone: bool) -> list[Tensor]:
    """Each request's tree, bool [nodes, nodes], out of rows of context and tree, or of the tree ``alone``. ``lengths``:
    of the contexts. What is behind the last request's is another batch's."""
    flat, masks, start = mask.reshape(-1), [], 0
    for length in [0] * len(lengths) if alone else lengths:
        rows = flat[start : start + nodes * (length + nodes)].view(nodes, length + nodes)
        masks.append(rows[:, length:].detach().to("cpu", copy=True).bool())
        start += rows.numel()
    return masks


class StageSites:
    """Taps that tell ``hear`` what goes in and comes out, rows first, by our names of the sites (``engine/sites.py``),
    while a batch is ``computing``."""

    def __init__(self) -> None:
        self.hear: Callable[[str, Tensor], None] = lambda site, tensor: None
        self.also: Callable[[str, Tensor], None] = lambda site, tensor: None  # of several ranks, what compares them
        self.computing = False
        self.stored = StoredSites(self.add, lambda: self.computing)
        self._drafted: Any = None  # what the draft model said last of a prefill, or of accepted tokens
        self._block = False  # True once a block was drafted that is not verified yet

    def add(self, site: str, tensor: Tensor) -> None:
        if self.computing:
            self.hear(site, tensor.detach())
            self.also(site, tensor)

    @after(bound=1)
    def target_forward(self, answer: Any, worker: Any, *args: Any, **named: Any) -> None:
        if not worker.model_runner.is_draft_worker and not named.get("is_verify") and answer.next_token_ids is not None:
            self.add("sampler.next_token_ids", answer.next_token_ids)

    def model_forward(self, call: Call, runner: Any, forward_batch: Any, *args: Any, **named: Any) -> Any:
        place = _place(runner.is_draft_worker, forward_batch.forward_mode) if self.computing else None
        if place is None:
            return call(forward_batch, *args, **named)
        self.stored.before(place, runner, forward_batch)
        if place == "verify" and self._block:  # behind the first token, which no draft chose
            self.add("block.draft_tokens", forward_batch.input_ids.reshape(forward_batch.batch_size, -1)[:, 1:])
        self._block = place == "block"
        ids = _certain_ids(forward_batch) if place == "draft_extend" else forward_batch.input_ids
        self.add(f"{place}.input_ids", ids)
        if place in ("draft.forward", "block"):
            self.add(f"{place}.positions", forward_batch.positions)
        answer = call(forward_batch, *args, **named)
        output = answer.logits_output
        if place in ("draft_prefill", "draft_extend"):
            self._drafted = output
            return answer
        if not hasattr(output, "next_token_logits"):  # a stage of a pipeline hands on what it has
            return answer
        if place in ("target_prefill", "verify", "block") and output.hidden_states is not None:
            self.add(f"{place}.hidden_states", output.hidden_states)
        if place != "block":  # whose tokens are chosen behind it
            self.add(f"{place}.logits", output.next_token_logits)
        return answer

    def extend_replay(self, call: Call, _: Any, forward_batch: Any, *args: Any, **named: Any) -> Any:
        self.add("draft_extend.input_ids", _certain_ids(forward_batch))
        self._drafted = call(forward_batch, *args, **named)
        return self._drafted

    def draft(self, call: Call, worker: Any, batch: Any, *args: Any, **named: Any) -> Any:
        self.add("draft.bonus", batch.spec_info.bonus_tokens)
        if not batch.forward_mode.is_idle():
            self.stored.drafts(worker.draft_runner, batch, worker.speculative_num_draft_tokens)
        answer = call(batch, *args, **named)
        requests = len(batch.reqs)
        if requests and answer.retrieve_next_token is not None:
            for name in ("retrieve_next_token", "retrieve_next_sibling"):
                self.add(f"tree.{name}", getattr(answer, name).reshape(requests, -1))
        return answer

    @after(bound=1)
    def draft_forward(self, answer: Any, worker: Any, *args: Any, **named: Any) -> None:
        if worker.topk > 1:  # a chain has nothing to organize
            _, top_scores_index, draft_tokens = answer[:3]  # from 0.5.18 on probabilities follow
            self.add("draft.organize.top_scores_index", top_scores_index)
            self.add("draft.organize.draft_tokens", draft_tokens)

    def organize(self, call: Call, score_list: Any, *args: Any, **named: Any) -> Any:
        if self.computing:
            self.add("draft.organize.scores", torch.cat(score_list, dim=1).flatten(1))
        return call(*args, **named)

    @after(bound=1)
    def draft_prefill(self, answer: Any, _: Any, *args: Any, **named: Any) -> None:
        self._start(answer)

    @after(bound=1)
    def draft_extend(self, answer: Any, _: Any, batch: Any, result: Any, *args: Any, **named: Any) -> None:
        self._start(result.next_draft_input)

    @after(bound=1)
    def sample(self, answer: Any, _: Any, *args: Any, **named: Any) -> None:
        predict, accept_lens, accept_index = answer
        self.add("accept.predict", predict)
        self.add("accept.accept_index", accept_index)
        self.add("accept.num_correct_drafts", accept_lens - 1)

    def _start(self, drafted: Any) -> None:
        """The start of the next draft: what the draft says after the last token that is certain."""
        if drafted is None or drafted.topk_index is None:
            return
        if self._drafted is not None:
            self.add("draft_extend.logits", self._drafted.next_token_logits)  # by now of the last rows only
        self.add("draft_extend.topk_index", drafted.topk_index)
        if drafted.topk_index.shape[-1] > 1:  # of a chain it is 1 and never read
            self.add("draft_extend.topk_p", drafted.topk_p)


def _place(drafts: bool, mode: Any) -> str | None:
    """The first part of our names of a forward's sites."""
    if mode.is_target_verify():
        return "block" if drafts else "verify"
    if mode.is_decode():
        return "draft.forward" if drafts else "target_decode"
    if drafts and mode.is_draft_extend_v2():
        return "draft_extend"
    return ("draft_prefill" if drafts else "target_prefill") if mode.is_extend() else None


def _certain_ids(forward_batch: Any) -> Any:
    """The tokens that a draft extends over, zeros in the place of those behind the accepted ones, as ours has them."""
    ids, accepted = forward_batch.input_ids, forward_batch.spec_info.num_accept_tokens
    if not accepted.numel():  # of a rank without requests
        return ids
    rows = ids.reshape(accepted.numel(), -1)
    places = torch.arange(rows.shape[1], device=ids.device)
    return rows.where(places < accepted.unsqueeze(1), 0).reshape(-1)
