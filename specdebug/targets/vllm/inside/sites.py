"""What passes vLLM's stages, for recorders. It drafts at the end of a step what the next one verifies, and may prefill
some requests and verify others in one forward: beside our engine, what it drafts is held back until the verify, and
each kind is a batch of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdebug.events import Observers, ShownNoMore
from specdebug.targets.requests import RequestView
from specdebug.targets.vllm.inside.boundaries import LOOKS, StepRequests

HELD = ("draft.bonus", "draft.forward.positions", "draft.forward.input_ids", "draft.forward.logits")
"""Sites of what is drafted ahead of the step that verifies it."""
PLACES = ("kv_pool.write.loc", "draft.out_cache_loc")
"""Sites that say where something lies, which two engines do not share."""
_Rows = list[tuple[str, Tensor]]


class StepSites:
    """Tells ``observers`` of batches and ``hear`` of what passes in them, as it passes; as a ``BoundaryOnlooker``."""

    def __init__(self, request_of: Callable[[str], RequestView], observers: Observers, num_steps: int) -> None:
        """``num_steps``: drafts of a whole chain."""
        self.hear: Callable[[str, Tensor], None] = lambda site, tensor: None
        self.also: Callable[[str, Tensor], None] = lambda site, tensor: None  # of several ranks, what compares them
        self._request_of, self._observers, self._num_steps = request_of, observers, num_steps

    def on_step(self, shares: Sequence[StepRequests]) -> None:
        """What passes says whose it is."""

    def on_site(self, site: str, among: StepRequests, values: Tensor, rows: Sequence[int]) -> None:
        if site not in LOOKS:
            flat = values.reshape(-1) if site == "accept.predict" else values
            self._tell(among, range(len(among.rids)), [(site, flat)])

    def on_step_over(self) -> None:
        """All was told."""

    def _tell(self, share: StepRequests, places: Sequence[int], calls: _Rows) -> None:
        """Tell of a batch of some requests of a share, and what passes in it."""
        prefill = share.doing == "prefill"
        lens, starts = (tuple(each[n] for n in places if prefill) for each in (share.rows, share.starts))
        with self._observers.computing(share.doing, [self._request_of(share.rids[n]) for n in places], lens, starts):
            for site, values in calls:
                self.hear(site, values)
                self.also(site, values)


class StepSitesInOrder(StepSites):
    """In the order of our engine's stages, and with what has a counterpart there."""

    def __init__(self, request_of: Callable[[str], RequestView], observers: Observers, num_steps: int) -> None:
        super().__init__(request_of, observers, num_steps)
        self._held: dict[str, _Rows] = {}
        self._drafted: dict[str, _Rows] = {}
        self._passed: dict[StepRequests, list[tuple[str, Tensor, Sequence[int]]]] = {}
        self._left_out: set[str] = set()
        self._decoded: set[str] = set()

    def on_step(self, shares: Sequence[StepRequests]) -> None:
        self._drafted = {rid: self._held.pop(rid) for share in shares for rid in share.rids if rid in self._held}
        self._passed = {share: [] for share in shares}

    def on_site(self, site: str, among: StepRequests, values: Tensor, rows: Sequence[int]) -> None:
        if site in PLACES or site in LOOKS:
            return
        values = values.detach().clone()  # vLLM goes on in the same buffers
        if site in HELD:
            for place, rid in enumerate(among.rids):
                self._held.setdefault(rid, []).append((site, values[place : place + 1]))
            return
        if site == "accept.predict":
            values = values.clamp(min=0)  # -1 behind the last token
        self._passed[among].append((site, values, rows))

    def on_step_over(self) -> None:
        for share, calls in self._passed.items():
            for place, rid in enumerate(share.rids):
                if rid not in self._left_out and (why := self._why_left_out(share, place)):
                    self._left_out.add(rid)
                    self._observers.tell(ShownNoMore, rid, why)
            if share.doing != "prefill":
                self._decoded.update(share.rids)
            places = [n for n, rid in enumerate(share.rids) if rid not in self._left_out]
            if places:
                self._tell(share, places, self._in_order(share, places, calls))

    def _why_left_out(self, share: StepRequests, place: int) -> str:
        """Why a request is not written any more: what our engine does has no counterpart here. Of a whole chain there
        are the bonus token and three tensors of each forward after the first."""
        rid = share.rids[place]
        if share.doing == "prefill" and rid in self._decoded:
            return "was preempted there, and computed again"
        if share.doing == "speculative" and share.drafts[place] < self._num_steps:
            return "had fewer drafts to verify there than a chain has"
        if share.doing == "speculative" and len(self._drafted.get(rid, ())) < 3 * self._num_steps - 2:
            return "was not drafted for there, so near to the end of its context"
        return ""

    def _in_order(
        self, share: StepRequests, places: Sequence[int], calls: Sequence[tuple[str, Tensor, Sequence[int]]]
    ) -> _Rows:
        """The rows of some requests, what was drafted for them first."""
        told: _Rows = []
        if share.doing == "speculative":
            for each in zip(*(self._drafted[share.rids[n]] for n in places), strict=True):
                told.append((each[0][0], torch.cat([values for _, values in each])))
        for site, values, counts in calls:
            parts = [values[sum(counts[:n]) : sum(counts[: n + 1])] for n in range(len(counts))]
            if site == "draft_extend.input_ids":
                accepted = next(each for name, each, _ in calls if name == "accept.num_correct_drafts")
                for part, count in zip(parts, accepted.tolist(), strict=True):
                    part[int(count) + 1 :] = 0  # behind the accepted tokens, as ours has them
            chosen = torch.cat([parts[n] for n in places])
            told.append((site, chosen.reshape(-1) if site == "accept.predict" else chosen))
        return told
