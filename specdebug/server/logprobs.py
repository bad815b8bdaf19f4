"""Log probabilities of emitted tokens, of the requests that want them: by the target's logits as they are, whatever the
temperature. An engine none of whose requests wants any is not observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from specdebug.engine.observer import Decision, EngineObserver

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.engine import Engine, Request

TokenLogprobs = tuple[float, list[tuple[float, int]]]
"""The token's own, and the greatest of its position, each with its token."""


class LogprobRecorder(EngineObserver):
    """Keeps the log probabilities of a step's tokens until :meth:`take` asks for them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted: dict[str, int] = {}
        self._kept: dict[str, list[TokenLogprobs]] = {}

    def want(self, rid: str, top: int) -> None:
        """Keep those of a request from now on, and of each position the ``top`` greatest."""
        if not self._wanted:
            self._engine.observers.add(self)
        self._wanted[rid] = top

    def forget(self, rid: str) -> None:
        """The request has ended."""
        if self._wanted.pop(rid, None) is not None and not self._wanted:
            self._engine.observers.remove(self)

    def take(self, emitted: Mapping[str, Sequence[int]]) -> dict[str, list[TokenLogprobs]]:
        """Those of a step's tokens; a verify's tokens beyond what was emitted have none."""
        kept, self._kept = self._kept, {}
        return {rid: found[: len(emitted[rid])] for rid, found in kept.items() if rid in emitted}

    def on_sampled(self, requests: Sequence[Request], logits: Tensor, ids: Tensor) -> None:
        for row, request in enumerate(requests):
            if request.rid in self._wanted:
                self._keep(request.rid, logits[row : row + 1], ids[row : row + 1])

    def on_decided(self, decision: Decision) -> None:
        acceptance = decision.acceptance
        for row, request in enumerate(decision.requests):
            if request.rid in self._wanted:
                nodes = acceptance.accept_index[row]
                nodes = nodes[nodes >= 0].to(torch.int64)
                self._keep(request.rid, decision.logits[nodes], acceptance.predict[nodes].to(torch.int64))

    def _keep(self, rid: str, logits: Tensor, ids: Tensor) -> None:
        """logits [n, V], ids [n]."""
        table = torch.log_softmax(logits.float(), dim=-1)
        chosen = table.gather(1, ids.unsqueeze(1)).squeeze(1).tolist()
        best: Any = torch.topk(table, min(self._wanted[rid], table.shape[1]), dim=1)
        pairs = [
            list(zip(*both, strict=True)) for both in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        self._kept[rid] = list(zip(chosen, pairs, strict=True))
