"""Judges of a run, called by the engine while a request's memory is still there to be looked at.

**Lossless.** Every token of a greedy request must be the target's argmax given what precedes it. Checked
against an independent dense model, teacher-forced, one forward a request. Where the reference's own logits for the
two tokens are closer than the engine's dtype can tell apart (:data:`TIE_MARGIN`), either is right: a tie, reported
with its margin. What follows it is judged given what was emitted, so a tie excuses one token and nothing after it.

**Draft KV.** Position p of the draft cache is a function of token p+1 and the target's state at p; it is
compared with the reference's at every committed position whose next token is known. A wrong draft cache
never changes the output, only how much of a draft is accepted, so nothing else would notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from specdebug.engine.observer import EngineObserver
from specdebug.verdict.device_errors import device_lost
from specdebug.verdict.outcome import Tie, Violation

TIE_MARGIN = {"float32": 1e-4, "float16": 3e-3, "bfloat16": 2.5e-2}
"""By the engine's dtype: how far the reference (always float32) may prefer another token, as a part of the largest
logit it has at that position.

Rounding moves an engine's logits in proportion to their size, so the margin is relative. It is twice what one logit
moves, because the chosen one may rise while the best one falls. Measured on the shipped target, 14 layers, logits of 8
to 18, over 2,400 positions of source code: one logit moves by at most 1.3e-2 of the largest in bfloat16 and 1.6e-3 in
float16. Of bfloat16's choices 17 differed from the reference's, the widest gap among them 5e-3 of the largest logit.
In float32 only the order of summation and a device's faster exponentials differ (some 1e-6); the margin leaves room
for deeper models and is still far below what a wrong token is off by.
"""

KV_TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
"""By the engine's dtype, relative to the norm of one position's key or value.

Measured as above, both draft heads: at most 1e-2 in bfloat16 and 1.4e-3 in float16. What a position holds that was
written from another token or state, or not at all, is off by a good part of its norm.
"""


class Reference(Protocol):
    """What the oracles ask of the dense model."""

    def judge(self, ids: Sequence[int], start: int) -> tuple[list[int], list[float], list[float]]: ...

    def draft_kv(self, ids: Sequence[int], stop: int) -> tuple[Tensor, Tensor]: ...

    def target_kv(self, ids: Sequence[int], stop: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class OracleSettings:
    """Which oracles judge, and by what measure. ``zero_fill``: unwritten draft KV is zeroed on a hit by
    policy. ``each_step``: after every step, too, target KV included."""

    lossless: bool
    draft_kv: bool
    dtype: str = "float32"
    zero_fill: bool = False
    each_step: bool = False

    @property
    def tie_margin(self) -> float:
        return TIE_MARGIN[self.dtype]

    @property
    def kv_tolerance(self) -> float:
        return KV_TOLERANCE[self.dtype]


@dataclass(frozen=True)
class Losslessness:
    """What the lossless oracle says of one request: positions (of the output) that are wrong, and ties.

    ``choices``, ``gaps``: at every position the reference's token, and by how many logits it prefers that to the
    output's; ``allowed``: by how many it may.
    """

    wrong: tuple[int, ...]
    ties: tuple[Tie, ...]
    choices: tuple[int, ...] = ()
    gaps: tuple[float, ...] = ()
    allowed: tuple[float, ...] = ()


def judge_output(
    reference: Reference, prompt_ids: Sequence[int], output_ids: Sequence[int], tie_margin: float
) -> Losslessness:
    """Judge a greedy output. Positions count from the first output token.

    A token that is not the reference's choice is a tie when its logit lies within ``tie_margin`` times the largest
    logit of that position below the choice's; the tie's margin is that distance, in logits.
    """
    if not output_ids:
        return Losslessness((), ())
    choices, gaps, sizes = reference.judge([*prompt_ids, *output_ids], len(prompt_ids))
    wrong, ties = [], []
    allowed = [tie_margin * size for size in sizes]
    judged = zip(output_ids, choices, gaps, allowed, strict=True)
    for position, (token, choice, gap, most) in enumerate(judged):
        if token == choice:
            continue
        if gap <= most:
            ties.append(Tie(position, gap, most, token, choice))
        else:
            wrong.append(position)
    return Losslessness(tuple(wrong), tuple(ties), tuple(choices), tuple(gaps), tuple(allowed))


def first_bad_position(ours: Tensor, expected: Tensor, tolerance: float) -> tuple[int, float] | None:
    """First row of [n, heads, D] that is off by more than ``tolerance`` of its norm, and by how much; else
    None."""
    difference = (ours.float() - expected).flatten(1).norm(dim=1)
    off = difference / expected.flatten(1).norm(dim=1).clamp_min(1e-6)
    bad = ~(off <= tolerance)  # written so that NaN is bad
    if not bool(bad.any()):
        return None
    index = int(bad.nonzero()[0])
    return index, float(off[index])


class Judge(EngineObserver):
    """Observes the engine: runs the oracles and hands what they find to ``report``.

    ``seconds`` is the time spent judging by ``clock``; it is not the engine's.
    """

    def __init__(
        self,
        settings: OracleSettings,
        reference: Reference | None,
        report: Callable[[Violation], None],
        tie: Callable[[str, Tie], None],
        decode: Callable[[Sequence[int]], str],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        self._settings = settings
        self._reference = reference

        def counted(violation: Violation) -> None:
            self._reported += 1
            report(violation)

        self._report = counted
        self._reported = 0
        self._condemned: set[str] = set()
        self._tie = tie
        self._decode = decode
        self._boundaries: dict[str, set[int]] = {}
        self._steps: dict[str, list[int]] = {}
        self.step = 0
        self.seconds = 0.0
        self.active = True
        self.looks: dict[str, int] = {}
        """By oracle: how often it compared something with the reference."""
        self.zero_filled: dict[str, int] = {}
        """By request: positions whose draft KV was zero-filled by policy, and so not compared."""

    def on_prefilled(self, engine: Any, request: Any) -> None:
        """The prompt has its KV in both pools."""
        self._timed(self._check_draft_kv, engine, request)

    def on_finishing(self, engine: Any, request: Any) -> None:
        """The request is done, its slots not yet released."""
        self._timed(self._check_draft_kv, engine, request)
        if self._settings.each_step:
            self._timed(self._check_target_kv, engine, request)  # what the last step wrote may stay cached
        self._timed(self._check_output, engine, request)

    def after_step(self, requests: Sequence[Any], emitted: dict[str, list[int]]) -> None:
        """Note how far prefills have come and in which step each token was emitted: both place a failure."""
        for request in requests:
            if not request.output_ids:
                self._boundaries.setdefault(request.rid, set()).add(request.kv_len)
        for rid, tokens in emitted.items():
            self._steps.setdefault(rid, []).extend([self.step] * len(tokens))

    def look(self, engine: Any, requests: Sequence[Any]) -> None:
        """With ``each_step``: judge requests that go on, as far as they have come; each until something is wrong with
        it."""
        if not self._settings.each_step:
            return
        for request in requests:
            if request.rid in self._condemned or request.finish_reason is not None or not request.output_ids:
                continue
            before = self._reported
            self._timed(self._check_draft_kv, engine, request)
            self._timed(self._check_target_kv, engine, request)
            self._timed(self._check_output_so_far, engine, request)
            if self._reported > before:
                self._condemned.add(request.rid)

    def _timed(self, check: Callable[[Any, Any], None], engine: Any, request: Any) -> None:
        if not self.active or self._reference is None:
            return
        began = self.clock()
        try:
            check(engine, request)
        except Exception as error:  # not the engine's, though a damaged engine may have provoked it
            if device_lost(error):
                raise  # the engine's after all: reading its memory is where a failed kernel first shows
            what = " ".join(str(error).split())
            detail = f"cannot judge {request.rid}: {type(error).__name__}: {what}"
            self._report(Violation("error", "oracle", self.step, detail))
        self.seconds += self.clock() - began

    @torch.no_grad()
    def _check_draft_kv(self, engine: Any, request: Any) -> None:
        stop = min(request.kv_len, len(request.all_ids)) - 1
        if not self._settings.draft_kv or not request.speculative or stop < 1 or self._reference is None:
            return
        self._looked("draft_kv")
        expected = self._reference.draft_kv(request.all_ids, stop)
        ours = tuple(pool[0].float().cpu() for pool in engine.draft_kv(request, 0, stop))
        skipped = torch.zeros(stop, dtype=torch.bool)
        if self._settings.zero_fill:
            skipped = (ours[0].flatten(1) == 0).all(1) & (ours[1].flatten(1) == 0).all(1)
            skipped[request.cached_tokens :] = False
            if bool(skipped.any()):
                self.zero_filled[request.rid] = int(skipped.sum())
        kept = (~skipped).nonzero().flatten()
        for name, got, want in zip(("key", "value"), ours, expected, strict=True):
            found = first_bad_position(got[kept], want[kept], self._settings.kv_tolerance)
            if found is not None:
                position, off = int(kept[found[0]]), found[1]
                detail = (
                    f"draft {name} of {request.rid} is off by {off:.2g} of its norm at position {position} "
                    f"of {stop}, {self._place(request, position)}"
                )
                data = {"rid": request.rid, "position": position, "off": off}
                self._report(Violation("mismatch", "draft_kv", self.step, detail, data=data))
                return

    @torch.no_grad()
    def _check_target_kv(self, engine: Any, request: Any) -> None:
        """All layers of a position together. In float32 only: how far half precision moves deep layers' KV was not
        measured."""
        if not self._settings.lossless or self._settings.dtype != "float32" or self._reference is None:
            return
        self._looked("target_kv")
        expected = self._reference.target_kv(request.all_ids, request.kv_len)
        ours = engine.target_kv(request, 0, request.kv_len)
        for name, got, want in zip(("key", "value"), ours, expected, strict=True):
            found = first_bad_position(got.cpu().transpose(0, 1).flatten(1, 2), want, self._settings.kv_tolerance)
            if found is not None:
                position, off = found
                detail = (
                    f"target {name} of {request.rid} is off by {off:.2g} of its norm at position {position} of "
                    f"{request.kv_len}, {self._place(request, position)}"
                )
                data = {"rid": request.rid, "position": position, "off": off}
                self._report(Violation("mismatch", "target_kv", self.step, detail, data=data))
                return

    def _looked(self, oracle: str) -> None:
        self.looks[oracle] = self.looks.get(oracle, 0) + 1

    def _place(self, request: Any, position: int) -> str:
        if position == request.cached_tokens - 1:
            return "the last of the cached prefix"
        if position < request.cached_tokens:
            return "inside the cached prefix"
        if position + 1 in self._boundaries.get(request.rid, ()) and position + 1 < len(request.prompt_ids):
            return "the last of a prefill chunk"
        return "in the prompt" if position < len(request.prompt_ids) - 1 else "in the output"

    def _check_output_so_far(self, engine: Any, request: Any) -> None:
        """Near-ties of a request that goes on are told when it ends."""
        self._check_output(engine, request, ended=False)

    def _check_output(self, engine: Any, request: Any, *, ended: bool = True) -> None:
        if not self._settings.lossless or request.sampling.temperature != 0 or self._reference is None:
            return
        self._looked("lossless")
        output = list(request.output_ids)
        found = judge_output(self._reference, request.prompt_ids, output, self._settings.tie_margin)
        for tie in found.ties if ended else ():
            self._tie(request.rid, tie)
        if not found.wrong:
            return
        position = found.wrong[0]
        got, expected = output[position], found.choices[position]
        steps = self._steps.get(request.rid, [])
        self._report(
            Violation(
                "mismatch",
                "request",
                steps[position] if position < len(steps) else self.step,
                f"{request.rid} output {position}: got {got} {self._decode([got])!r}, expected {expected} "
                f"{self._decode([expected])!r} by {found.gaps[position]:.3g} logits ({found.allowed[position]:.2g} is "
                f"a tie; {len(found.wrong)} of {len(output)} tokens differ)",
                data={
                    "rid": request.rid,
                    "position": position,
                    "got": got,
                    "expected": expected,
                    "margin": found.gaps[position],
                    "allowed": found.allowed[position],
                },
            )
        )
