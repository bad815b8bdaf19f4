"""What SGLang's EAGLE worker stores, drafts, verifies and caches of each request, for the oracles of our own engine.

Functions at the boundaries of its stages are wrapped, none is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.inside.looks import Event, Looks, kept
from specdebug.targets.inside.wrapping import wrap_all
from specdebug.targets.sglang.inside.requests import held
from specdebug.targets.sglang.inside.seats import KERNELS, Seat

LOOKS = "requests inside"
_DRAFTS = "srt.speculative.eagle_worker_v2:EagleDraftWorker"
DRAFT, DRAFT_PREFILL, DRAFT_EXTEND = (
    Seat(LOOKS, (f"{_DRAFTS}.{name}",)) for name in ("draft", "_draft_extend_for_prefill", "_draft_extend_for_decode")
)
RELEASE = Seat(LOOKS, ("srt.managers.scheduler_components.batch_result_processor:release_kv_cache",))
SAMPLE = Seat(
    LOOKS,
    (
        "srt.speculative.eagle_worker_common:eagle_sample",
        "srt.speculative.eagle_worker_v2:eagle_sample",
        "srt.speculative.eagle_info:EagleVerifyInput.sample",
    ),
)
"""The method that decides a verify."""
TOSS = Seat(
    LOOKS,
    tuple(
        f"{module}:tree_speculative_sampling_target_only"
        for module in (
            "srt.speculative.eagle_utils",
            "srt.speculative.eagle_info_v2",
            "kernels.ops.speculative.sampling",
            KERNELS,
        )
    ),
)
"""The kernel that samples a verify, by the name that it is called by."""
NEEDED = (DRAFT, DRAFT_PREFILL, DRAFT_EXTEND, RELEASE, SAMPLE, TOSS)


def look(looks: Looks, *, coin_of_step: bool) -> None:
    """Remember every request of this process's scheduler, if it has one. ``coin_of_step``: a verify's coins are by the
    number of the step, as our stand-in for the kernel has them, and not by the node. Raises NoSeat."""
    taps = _Taps(looks, coin_of_step)
    wrap_all(
        (
            (*DRAFT.find(), taps.draft),
            (*DRAFT_PREFILL.find(), taps.draft_prefill),
            (*DRAFT_EXTEND.find(), taps.draft_extend),
            (*RELEASE.find(), taps.release),
            (*SAMPLE.find(), taps.sample),
            (*TOSS.find(), taps.toss),
        ),
        EngineLook(LOOKS),
    )


class _Taps:
    """One for each wrapped function."""

    def __init__(self, looks: Looks, coin_of_step: bool) -> None:
        self._looks = looks
        self._coin_of_step = coin_of_step
        self._draft_worker: Any = None
        self._stored: list[Event] = []  # what each request of the batch drafts from
        self._coins: tuple[Tensor, Tensor] | None = None  # of the verify that is sampled, by node and for the bonus

    def draft(self, call: Callable[..., Any], worker: Any, batch: Any, *args: Any, **named: Any) -> Any:
        self._draft_worker = worker
        self._stored = [] if batch.forward_mode.is_idle() else _stored(batch.spec_info, batch.seq_lens)
        return call(batch, *args, **named)

    def toss(self, call: Callable[..., Any], **named: Any) -> Any:
        self._coins = kept(named["uniform_samples"]), kept(named["uniform_samples_for_final_sampling"])
        return call(**named)

    def sample(self, call: Callable[..., Any], verify: Any, batch: Any, output: Any, *args: Any, **named: Any) -> Any:
        self._coins = None
        answer = call(batch, output, *args, **named)
        if not batch.forward_mode.is_idle():
            self._verified(verify, batch, output.next_token_logits, answer)
        return answer

    def draft_prefill(self, call: Callable[..., Any], worker: Any, batch: Any, *args: Any, **named: Any) -> Any:
        self._draft_worker = worker
        answer = call(batch, *args, **named)
        if answer is not None and not batch.forward_mode.is_idle():
            for request, stored in zip(batch.reqs, _stored(answer, batch.seq_lens), strict=True):
                self._looks.add(request.rid, {"what": "prefilled", "stored": stored})
        return answer

    def draft_extend(self, call: Callable[..., Any], _: Any, batch: Any, result: Any, *args: Any, **named: Any) -> Any:
        answer = call(batch, result, *args, **named)
        if not batch.forward_mode.is_idle():
            lengths = batch.seq_lens + result.accept_lens
            for request, stored in zip(batch.reqs, _stored(result.next_draft_input, lengths), strict=True):
                self._looks.extend(request.rid, {"stores": stored})
        return answer

    def release(self, call: Callable[..., Any], request: Any, cache: Any, *args: Any, **named: Any) -> Any:
        if request.finished() and request.finished_reason.to_json().get("type") != "abort":
            holds = held(request)
            self._looks.end(request.rid, self._kv(holds.row, holds.committed, cache))
        else:
            self._looks.forget(request.rid)
        return call(cache, *args, **named)

    def _verified(self, verify: Any, batch: Any, logits: Tensor, answer: Any) -> None:
        predict, accept_lens, accept_index = (kept(each) for each in answer)
        count, nodes = len(batch.reqs), verify.draft_token_num
        trees = {
            name: kept(getattr(verify, theirs).reshape(-1)[: count * nodes].view(count, nodes))
            for name, theirs in (
                ("tokens", "draft_token"),
                ("positions", "positions"),
                ("retrieve_next_token", "retrieve_next_token"),
                ("retrieve_next_sibling", "retrieve_next_sibling"),
            )
        }
        alone = _of_nodes_alone(self._draft_worker)
        masks = tree_masks(verify.custom_mask, batch.seq_lens.tolist(), nodes, alone=alone)
        coins = self._coins
        for number, (request, stored) in enumerate(zip(batch.reqs, self._stored, strict=True)):
            index = torch.where(accept_index[number] < 0, -1, accept_index[number] - number * nodes)
            event: Event = {
                "what": "verified",
                "stored": stored,
                "tree": {name: each[number] for name, each in trees.items()} | {"mask": masks[number]},
                "logits": kept(logits[number * nodes : (number + 1) * nodes]),
                "predict": predict[number * nodes : (number + 1) * nodes],
                "accept_index": index,
                "accepted": int(accept_lens[number]),
                "coins": None if coins is None else self._of_path(coins[0][number], coins[1][number], index),
            }
            self._looks.add(request.rid, event)

    def _of_path(self, by_node: Tensor, last: Tensor, path: Tensor) -> Tensor:
        """The coins of a request's walk: one for each node that it came to, and last that of the bonus."""
        steps = torch.arange(path.numel()) if self._coin_of_step else path.clamp(min=0)
        return torch.cat((by_node[steps.clamp(max=by_node.numel() - 1).long()], last.reshape(1)))

    def _kv(self, row: int, length: int, cache: Any) -> dict[str, Tensor]:
        slots = cache.req_to_token_pool.req_to_token[row, :length].long()
        pools = {"target": cache.token_to_kv_pool_allocator.get_kvcache()}
        if self._draft_worker is not None:
            pools["draft"] = self._draft_worker.draft_runner.token_to_kv_pool
        return {
            f"{name}_{kind}": torch.stack([kept(each[slots]) for each in getattr(pool, f"{kind}_buffer")])
            for name, pool in pools.items()
            for kind in ("k", "v")
            if hasattr(pool, "k_buffer")  # latent attention packs both into one
        }


def _stored(spec_info: Any, lengths: Tensor) -> list[Event]:
    """What each request stores for its next draft, after ``lengths`` positions. Of a chain SGLang stores no
    probabilities but ones."""
    names = ("bonus_tokens", "topk_p", "topk_index", "hidden_states")
    rows = {name: kept(getattr(spec_info, name)) for name in names}
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
    mode = draft_worker.tree_mask_mode if owned is None else owned.mode
    return bool(mode.name == "QLEN_ONLY")


def tree_masks(mask: Tensor, lengths: list[int], nodes: int, *, alone: bool) -> list[Tensor]:
    """Each request's tree, bool [nodes, nodes], out of rows of context and tree, or of the tree ``alone``. ``lengths``:
    of the contexts. What is behind the last request's is another batch's."""
    flat, masks, start = mask.reshape(-1), [], 0
    lengths = [0] * len(lengths) if alone else lengths
    for length in lengths:
        rows = flat[start : start + nodes * (length + nodes)].view(nodes, length + nodes)
        masks.append(rows[:, length:].detach().to("cpu", copy=True).bool())
        start += rows.numel()
    return masks
