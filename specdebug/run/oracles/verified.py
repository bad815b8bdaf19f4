"""Verified logits: what a verify computes along the path that it accepts is what the reference makes of the text.

A wrong logit need not turn a token, and a token that it turns does not say which stage was wrong. What each verify
computed is kept for its most likely tokens, and compared when the request ends, or goes on and is looked at.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdebug.base.features import features_of
from specdebug.events import Aborting, Decided, Event, Finishing, Going
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings
from specdebug.run.oracles.draft_state import DRAFT_MARGIN, MOST_LIKELY
from specdebug.verdict.outcome import Violation


@dataclass(frozen=True)
class _Verified:
    """What a verify in ``step`` after ``length`` positions computed at each place of its accepted path [S+1]: the most
    likely tokens, int64 [S+1, N], and their log-probabilities. ``drafts``: int32 [], how many it accepted."""

    step: int
    length: int
    likely: Tensor
    logs: Tensor
    drafts: Tensor


class VerifiedLogits(Oracle):
    """Compares the logits of accepted nodes with the reference's. In float32 only: how far half precision moves the
    odds of unlikely tokens was not measured."""

    name = "verified"
    needs = frozenset({"draft", "decisions"})
    hears = (Decided, Going, Finishing, Aborting)
    asks = "acceptance"
    of = ("drafts",)

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._kept: dict[str, list[_Verified]] = {}
        self._wrong: set[str] = set()

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.target.dtype == "float32" and settings.reference is not None and super().wanted(settings)

    def on(self, event: Event) -> None:
        match event:
            case Decided():
                self._keep(event)
            case Going(request) | Finishing(request):
                self._compare(request, self._kept.pop(request.rid, []))
            case Aborting(request):
                self._kept.pop(request.rid, None)

    @torch.no_grad()
    def _keep(self, decision: Decided) -> None:
        nodes = decision.accept_index.clamp(0, len(decision.logits) - 1).to(torch.int64)
        rows = decision.logits.index_select(0, nodes.view(-1)).float()
        logs, likely = rows.log_softmax(-1).topk(min(MOST_LIKELY, rows.shape[-1]))
        logs, likely = (each.view(*nodes.shape, -1) for each in (logs, likely))
        for b, request in enumerate(decision.requests):
            kept = _Verified(self.bench.step, request.kv_len, likely[b], logs[b], decision.num_correct_drafts[b])
            self._kept.setdefault(request.rid, []).append(kept)

    @torch.no_grad()
    def _compare(self, request: Any, kept: list[_Verified]) -> None:
        reference = self.bench.reference
        if not kept or reference is None or request.rid in self._wrong or features_of(request.sampling).steers:
            return
        self.bench.looked(self.name)
        ids, first = list(request.all_ids), kept[0].length + 1
        logits = reference.logits(ids, first)
        expected, allowed = logits.log_softmax(-1), DRAFT_MARGIN["float32"] * logits.abs().amax(-1, keepdim=True)
        for each in kept:
            start = each.length + 1 - first
            known = max(min(int(each.drafts) + 1, len(expected) - start), 0)  # an end may cut the last path short
            likely, logs = (side[:known].cpu() for side in (each.likely, each.logs))
            theirs = expected[start : start + known].gather(-1, likely)
            bad = (~((logs - theirs).abs() <= allowed[start : start + known])).nonzero()
            if len(bad):
                place, n = bad[0].tolist()
                self._report(request.rid, each, place, *(side[place, n].item() for side in (likely, logs, theirs)))
                return

    def _report(self, rid: str, verified: _Verified, place: int, token: float, got: float, expected: float) -> None:
        self._wrong.add(rid)
        position = verified.length + place
        odds = f"log-probability {got:.4g} of token {int(token)}, expected {expected:.4g}"
        detail = f"{rid}: the verify after {verified.length} positions has at position {position} {odds}"
        # Rounded, since the last digits differ between processes.
        data = {
            "rid": rid,
            "position": position,
            "token": int(token),
            "got": round(got, 3),
            "expected": round(expected, 3),
        }
        self.bench.report(Violation("mismatch", "verify.logits", verified.step, detail, data=data))
