"""What the oracles see of vLLM's drafts and verifies, told as our engine tells it. vLLM drafts at a step's end what the
next one verifies, so what it drafts is held back until then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from specdebug.base.features import features_of
from specdebug.events import Decided, DraftForward, Observers
from specdebug.targets.requests import NotShown, RequestView
from specdebug.targets.vllm.inside.boundaries import StepRequests

_STORED = {
    "look.stored.positions": "positions",
    "look.stored.input_ids": "bonus",
    "look.stored.hidden_states": "hidden_states",
    "draft_extend.logits": "logits",
    "draft_extend.topk_index": "topk_index",
}
_VERIFIED = ("verify.input_ids", "look.positions", "verify.logits")


@dataclass(frozen=True)
class StoredRows:
    """As ``base.StoredDrafts``. vLLM stores no probability of a draft; it is that of its logits."""

    seq_lens: Tensor
    bonus: Tensor
    topk_p: Tensor
    topk_index: Tensor
    hidden_states: Tensor

    @classmethod
    def of(cls, parts: Sequence[StoredRows]) -> StoredRows:
        """The rows of all parts."""
        names = [each.name for each in fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


@dataclass
class _Drafted:
    """What was drafted for a request, a row each: what it stores, by name, and by forward of the loop what that read
    and said."""

    stored: dict[str, Tensor] = field(default_factory=dict)
    tokens: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


class DraftLook:
    """Tells ``observers``, as a ``BoundaryOnlooker``. ``num_steps``: drafts of a whole chain. A verify of a shorter
    one, as there is near the end of a context, is not told."""

    def __init__(self, request_of: Callable[[str], RequestView], observers: Observers, num_steps: int) -> None:
        self._request_of, self._observers, self._num_steps = request_of, observers, num_steps
        self._drafted: dict[str, _Drafted] = {}
        self._verified: dict[str, Tensor] = {}

    def on_step(self, shares: Sequence[StepRequests]) -> None:
        self._verified = {}

    def on_step_over(self) -> None:
        """What was drafted is told with the step that verifies it."""

    def on_site(self, site: str, among: StepRequests, values: Tensor, rows: Sequence[int]) -> None:
        with torch.inference_mode(False):  # what oracles keep outlives the step
            if site in _VERIFIED and among.doing == "speculative":
                self._verified[site] = values.detach().clone()
            elif site == "accept.predict":
                self._decided(among, values.detach().clone())
            elif (name := _STORED.get(site)) is not None or site.startswith("draft.forward."):
                self._add(name or site, among.rids, values.detach().clone())

    def _add(self, name: str, rids: Sequence[str], values: Tensor) -> None:
        for row, rid in enumerate(self._request_of(each).rid for each in rids):
            if name == "positions":  # the first of a draft
                self._drafted[rid] = _Drafted()
            drafted, value = self._drafted[rid], values[row : row + 1]
            match name:
                case "draft.forward.input_ids":
                    drafted.tokens.append(value)
                case "draft.forward.logits":
                    drafted.logits.append(value)
                case "draft.forward.positions":
                    continue
                case _:
                    drafted.stored[name] = value

    def forget(self, rid: str) -> None:
        """Nothing is drafted for a request any more."""
        self._drafted.pop(rid, None)

    def stored(self, requests: Sequence[RequestView]) -> StoredRows:
        """What these requests store. Raises NotShown."""
        drafted = [self._drafted.get(each.rid) for each in requests]
        rows = [each.stored for each in drafted if each is not None and len(each.stored) == len(_STORED)]
        if len(rows) < len(requests):
            raise NotShown(requests[0].rid)
        of = {name: torch.cat([row[name] for row in rows]) for name in _STORED.values()}
        index = of["topk_index"].long()
        return StoredRows(
            of["positions"].long() + 1,
            of["bonus"].long(),
            of["logits"].float().softmax(-1).gather(1, index.clamp(0, of["logits"].shape[1] - 1)),
            index,
            of["hidden_states"],
        )

    def _decided(self, among: StepRequests, sampled: Tensor) -> None:
        """Tell of the verify of these requests, but of those whose logits, which are seen before that, vLLM changes by
        penalties or a grammar. sampled: int [B, T], -1 behind the last token."""
        nodes, forwards = self._num_steps + 1, self._num_steps - 1
        requests = [self._request_of(rid) for rid in among.rids]
        drafted = [self._drafted.get(request.rid) for request in requests]
        whole = [
            n
            for n, (request, each) in enumerate(zip(requests, drafted, strict=True))
            if among.drafts[n] == self._num_steps and each is not None and len(each.logits) == forwards
            if not features_of(request.sampling).steers
        ]
        if not whole:
            return
        chains = [each for n, each in enumerate(drafted) if n in whole and each is not None]
        parents = torch.zeros(len(whole), dtype=torch.int64, device=sampled.device)
        for step in range(forwards):
            tokens = torch.cat([each.tokens[step] for each in chains]).long()
            logits = torch.cat([each.logits[step] for each in chains])
            self._observers.tell(DraftForward, step, tokens, parents, logits)
        ids, positions, logits = (torch.cat([self._rows(site, among, n) for n in whole]) for site in _VERIFIED)
        self._observers.tell(
            Decided,
            requests=[requests[n] for n in whole],
            tokens=ids.view(-1, nodes).long(),
            positions=positions.view(-1, nodes).long(),
            logits=logits,
            coins=None,
            topk=1,
            num_steps=self._num_steps,
            threshold_single=1.0,
            threshold_acc=1.0,
            **chains_of(sampled[whole]),
        )

    def _rows(self, site: str, among: StepRequests, place: int) -> Tensor:
        first = sum(drafts + 1 for drafts in among.drafts[:place])
        return self._verified[site][first : first + among.drafts[place] + 1]


def chains_of(sampled: Tensor) -> Mapping[str, Any]:
    """What ``events.Decided`` has of chains and of what was accepted of them. sampled: int [B, T], the tokens that
    follow the accepted nodes, -1 behind the last."""
    batch, nodes = sampled.shape
    node = torch.arange(nodes, device=sampled.device)
    following = torch.where(node < nodes - 1, node + 1, -1)
    flat = node + nodes * torch.arange(batch, device=sampled.device).unsqueeze(1)
    accepted = sampled >= 0
    return {
        "mask": (node <= node.unsqueeze(1)).expand(batch, -1, -1),
        "retrieve_next_token": following.expand(batch, -1),
        "retrieve_next_sibling": torch.full_like(flat, -1),
        "predict": sampled.clamp(min=0).flatten().int(),
        "accept_index": torch.where(accepted, flat, -1).int(),
        "num_correct_drafts": (accepted.sum(1) - 1).int(),
    }
