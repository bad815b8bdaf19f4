"""Keys and values: what a request's caches hold is what the reference would have written.

Position p of a draft cache follows from token p+1 and the target's state at p; of layer i from token p+1+i. A wrong
draft cache never changes the output, only how much of a draft is accepted, so nothing else would notice.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from specdebug.events import Aborting, Finishing, Going, OfRequest, Prefilled
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings
from specdebug.verdict.outcome import Violation

KV_TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
"""By the engine's dtype, relative to the norm of one position's key or value.

Measured as above, both draft heads: at most 1e-2 in bfloat16 and 1.4e-3 in float16. What a position holds that was
written from another token or state, or not at all, is off by a good part of its norm.
"""


def first_bad_position(ours: Tensor, expected: Tensor, tolerance: float) -> tuple[int, float] | None:
    """First row of [n, heads, D] that is off by more than ``tolerance`` of its norm, and by how much; else None."""
    difference = (ours.float() - expected).flatten(1).norm(dim=1)
    off = difference / expected.flatten(1).norm(dim=1).clamp_min(1e-6)
    bad = ~(off <= tolerance)  # written so that NaN is bad
    if not bool(bad.any()):
        return None
    index = int(bad.nonzero()[0])
    return index, float(off[index])


def all_zero(kv: tuple[Tensor, ...]) -> Tensor:
    """The positions of keys and values [layers, n, heads, D] that hold nothing but zeros: bool [n]."""
    return torch.stack([(side == 0).flatten(2).all(-1).all(0) for side in kv]).all(0)


def report_first_bad(
    bench: Bench,
    what: str,
    request: Any,
    stop: int,
    pairs: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
    positions: Tensor | None = None,
    layer: int | None = None,
    step: Callable[[int], int] | None = None,
) -> bool:
    """Report the first position of [0, stop) whose key or value is off, as ``mismatch@<what>_kv``; False if none is.
    ``pairs``: keys, then values; each ours and the reference's, rows [n, heads, D]. ``positions``: of the rows.
    ``layer``: of a draft that has several. ``step``: the step in which a position was written; this one, if None."""
    for name, (ours, expected) in zip(("key", "value"), pairs, strict=True):
        found = first_bad_position(ours, expected, KV_TOLERANCE[bench.settings.target.dtype])
        if found is None:
            continue
        row, off = found
        position = row if positions is None else int(positions[row])
        whose = f"{what} {name}" if layer is None else f"layer {layer}'s {what} {name}"
        detail = (
            f"{whose} of {request.rid} is off by {off:.2g} of its norm at position {position} of {stop}, "
            f"{bench.place(request, position)}"
        )
        data = {"rid": request.rid, "position": position, "off": off, **({} if layer is None else {"layer": layer})}
        bench.report(
            Violation("mismatch", f"{what}_kv", bench.step if step is None else step(position), detail, data=data)
        )
        return True
    return False


class DraftKV(Oracle):
    """Compares the draft cache of a request with the reference's."""

    name = "draft_kv"
    needs = frozenset({"kv", "draft_kv"})
    hears = (Prefilled, Going, Finishing, Aborting)
    of = ("drafts", "draft_kv")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.zero_filled: dict[str, int] = {}
        """By request: positions whose draft KV was zero-filled by policy, and so not compared."""
        self._zeroed: dict[str, Tensor] = {}
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
            if report_first_bad(self.bench, "draft", request, stop, pairs, kept, number):
                return


class TargetKV(Oracle):
    """Compares the target's cache of a request with the reference's, all layers of a position together. In float32
    only: how far half precision moves deep layers' KV was not measured. What is wrong in the output was written by the
    verify that chose the token behind it, and what it was written from, where a path is moved."""

    name = "target_kv"
    needs = frozenset({"kv"})
    hears = (Finishing, Going)

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.spec.lossless and settings.target.dtype == "float32"

    @torch.no_grad()
    def on(self, event: OfRequest) -> None:
        reference, request = self.bench.reference, event.request
        if reference is None:
            return
        self.bench.looked(self.name)
        stop = request.kv_len
        expected = reference.target_kv(request.all_ids, stop)
        keys, values = (
            (ours.cpu().transpose(0, 1).flatten(1, 2), want)
            for ours, want in zip(self.bench.session.target_kv(request, 0, stop), expected, strict=True)
        )
        prompt, rid, bench = len(request.prompt_ids), request.rid, self.bench

        def written(position: int) -> int:
            return bench.step if position < prompt - 1 else bench.step_of(rid, position + 1 - prompt)

        report_first_bad(bench, "target", request, stop, (keys, values), step=written)
