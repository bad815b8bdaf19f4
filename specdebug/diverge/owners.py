"""Whose rows are whose: which requests the rows of a site's tensor belong to."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specdebug.diverge.stream import BATCH, PADDING

Kind = Literal["prefill", "plain", "decode", "none"]

PADDED = (
    ("draft_graph.replay.*", "request"),
    ("draft.forward.*", "branches"),
    ("draft.select.*", "request"),
    ("draft.organize.*", "request"),
    ("draft_extend_graph.replay.input_ids", "nodes"),
    ("draft_extend_graph.replay.accept_lengths", "request"),
    ("draft_extend.logits", "request"),
)
"""Sites in a decode step whose tensors may have rows of padding behind those of the batch, and rows per request."""

SHARED = ("*.kv_indptr", "prefix_cache.*")
"""Sites whose tensors are nobody's in particular."""

LISTS = ("attention.plan.kv_indices",)
"""Sites with one element for each position that a request attends to, so that their length changes with each step."""

Segment = tuple[int, int, int]
"""Owner, first row and the row behind the last."""


@dataclass(eq=False)
class Batch:
    """What is computed at the moment: requests by their place in the step's batch.

    ``lens``: rows that each has of a prefill. ``known``: segments found before, by whoever keeps them.
    """

    kind: Kind
    requests: Sequence[Any]
    places: tuple[int, ...]
    lens: tuple[int, ...] = ()
    branches: int = 1
    nodes: int = 1
    known: dict[Any, Any] = field(default_factory=dict)

    def segments(
        self, site: str, rows: int, *, grid: bool = False, drafting: bool = False, nth: int = 0
    ) -> list[Segment]:
        """Whose the rows are, in their order.

        Args:
            site: where they were handed over.
            rows: how many there are.
            grid: they are slots that the draft loop wrote: a row for each branch.
            drafting: the site was reached in the draft loop.
            nth: how often the site was reached before in this step.
        """
        count = len(self.places)
        whole = [(BATCH, 0, rows)]
        if not count or _among(site, SHARED):
            return whole
        if self.kind == "prefill":
            if rows == sum(self.lens):
                return self._cut(self.lens)
            return self._cut((1,) * count) if rows == count else whole
        if self.kind == "plain":
            return self._even(1, rows) or whole
        if site.startswith("sampler."):
            sampled = [p for p, request in zip(self.places, self.requests, strict=True) if not request.sampling.greedy]
            return [(sampled[nth], 0, rows)] if nth < len(sampled) else whole
        each = next((unit for pattern, unit in PADDED if fnmatch.fnmatchcase(site, pattern)), None)
        if site.startswith("kv_pool.write."):
            if grid or drafting:
                each = "branches"
            elif site == "kv_pool.write.loc":
                each = "nodes"
        if each is not None:
            unit = {"request": 1, "branches": self.branches, "nodes": self.nodes}[each]
            return self._even(unit, rows) or whole
        return (self._even(rows // count, rows) if rows and rows % count == 0 else None) or whole

    def _even(self, each: int, rows: int) -> list[Segment] | None:
        used = each * len(self.places)
        if rows < used:
            return None
        found = self._cut((each,) * len(self.places))
        if rows > used:
            found.append((PADDING, used, rows))
        return found

    def _cut(self, lens: Sequence[int]) -> list[Segment]:
        found, at = [], 0
        for place, length in zip(self.places, lens, strict=True):
            found.append((place, at, at + length))
            at += length
        return found


def _among(site: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(site, pattern) for pattern in patterns)
