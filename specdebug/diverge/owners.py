"""The owners of rows: which requests the rows of a site's tensor belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from specdebug.diverge.stream import BATCH, PADDING
from specdebug.engine.sites import SITES, held_at, rows_per_request
from specdebug.events import BatchKind

LISTS = frozenset(name for name, each in SITES.items() if each.rows == "positions")
"""Sites whose tensors' length changes with each step."""

Segment = tuple[int, int, int]
"""Owner, first row and the row behind the last."""


@dataclass(eq=False)
class Batch:
    """The batch that is computed at the moment: requests by their place in the step's batch.

    ``lens``: rows that each has of a prefill. ``known``: segments found before, by the key of their finder.
    """

    kind: BatchKind | Literal["none"]
    requests: Sequence[Any]
    places: tuple[int, ...]
    lens: tuple[int, ...] = ()
    branches: int = 1
    nodes: int = 1
    known: dict[Any, Any] = field(default_factory=dict)

    def segments(
        self, name: str, rows: int, *, grid: bool = False, drafting: bool = False, nth: int = 0
    ) -> list[Segment]:
        """The owners of the rows that a site handed over, in their order.

        ``grid``: they are slots that the draft loop wrote, a row for each branch. ``drafting``: the draft loop runs.
        ``nth``: the number of calls of the site before in this step.
        """
        count, held = len(self.places), held_at(name)
        whole = [(BATCH, 0, rows)]
        if not count or held.rows == "untold":
            return whole
        if self.kind == "prefill":
            if rows == sum(self.lens):
                return self._cut(self.lens)
            return self._cut((1,) * count) if rows == count else whole
        if self.kind == "plain":
            return self._even(1, rows) or whole
        if held.rows == "sampled":
            sampled = [p for p, request in zip(self.places, self.requests, strict=True) if not request.sampling.greedy]
            return [(sampled[nth], 0, rows)] if nth < len(sampled) else whole
        if held.rows == "even":
            return self._cut((rows // count,) * count) if rows and rows % count == 0 else whole
        each = rows_per_request(name, branches=self.branches, nodes=self.nodes)
        if held.rows == "written":
            each = self.branches if grid or drafting else self.nodes
        if each is None or (rows != each * count and not held.padded):
            return whole
        return self._even(each, rows) or whole

    def _even(self, each: int, rows: int) -> list[Segment] | None:
        used = each * len(self.places)
        if rows < used:
            return None
        padding = [(PADDING, used, rows)] if rows > used else []
        return [*self._cut((each,) * len(self.places)), *padding]

    def _cut(self, lens: Sequence[int]) -> list[Segment]:
        return [(place, end - n, end) for place, n, end in zip(self.places, lens, accumulate(lens), strict=True)]
