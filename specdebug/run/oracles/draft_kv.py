"""Draft KV: what the draft head reads must have been written from the right tokens and states.

Position p of the draft cache is a function of token p+1 and the target's state at p; it is compared with the
reference's at every committed position whose next token is known. Of multi-token prediction layer i is compared where
token p+1+i is known: the positions behind that were written from drafts, and will be again. A wrong draft cache never
changes the output, only how much of a draft is accepted, so nothing else would notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from specdebug.events import Aborting, Finishing, Going, OfRequest, Prefilled
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings
from specdebug.run.oracles.kv import all_zero, report_first_bad


class DraftKV(Oracle):
    """Compares the draft cache of a request with the reference's."""

    name = "draft_kv"
    needs = frozenset({"kv", "draft_kv"})
    hears = (Prefilled, Going, Finishing, Aborting)

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.spec.draft_kv and settings.target.drafts and settings.target.draft_kv

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.zero_filled: dict[str, int] = {}
        """By request: positions whose draft KV was zero-filled by policy, and so not compared."""
        self._zeroed: dict[str, torch.Tensor] = {}
        """By request: those positions when it was last prefilled. Another that computes one of them mends it."""

    def notes(self) -> Iterator[str]:
        for rid, count in self.zero_filled.items():
            yield f"{rid}: draft KV of {count} cached positions zero-filled by policy, not compared"

    def on(self, event: OfRequest) -> None:
        rid = event.request.rid
        if isinstance(event, Prefilled):
            self._zeroed.pop(rid, None)
        if not isinstance(event, Aborting):
            self._compare(event.request)
        if isinstance(event, Finishing | Aborting):
            self._zeroed.pop(rid, None)

    @torch.no_grad()
    def _compare(self, request: Any) -> None:
        stop = min(request.kv_len, len(request.all_ids)) - 1
        reference = self.bench.reference
        if not request.speculative or stop < 1 or reference is None:
            return
        self.bench.looked(self.name)
        ours = tuple(side.float().cpu() for side in self.bench.session.draft_kv(request, 0, stop))
        skipped = torch.zeros(stop, dtype=torch.bool)
        if self.bench.settings.target.zero_fill:
            skipped = all_zero(ours)
            skipped[request.hit_len :] = False
            if bool(skipped.any()):
                self.zero_filled[request.rid] = int(skipped.sum())
        zeroed = skipped.nonzero().flatten()
        expected = reference.draft_kv(request.all_ids, stop, zeroed)
        if reference.chained and not torch.equal(self._zeroed.setdefault(request.rid, zeroed), zeroed):
            expected = expected[:1]  # what the others read was zeros at times
        every = (~skipped).nonzero().flatten()
        for layer, (keys, values) in enumerate(expected):
            kept = every[: int((every < len(keys)).sum())]
            pairs = ((ours[0][layer][kept], keys[kept]), (ours[1][layer][kept], values[kept]))
            number = layer if len(ours[0]) > 1 else None
            if report_first_bad(self.bench, "draft", request, stop, pairs, partial(_at, kept), number):
                return


def _at(kept: torch.Tensor, row: int) -> int:
    return int(kept[row])
