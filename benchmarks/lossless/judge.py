"""A judge compares a greedy output with what transformers generates, and says whether it may part from that.

Two sound implementations may part where two logits are nearly equal, and the texts differ from there on. So the first
difference from transformers' text of the same dtype is a near-tie if the float32 model tells the two tokens apart by no
more than the dtype's rounding explains (``TIE_MARGIN``), and every token of the engine's own text is judged by the
float32 model, given what precedes it. In float32 the margin is what another order of summation explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.lossless.draw import Ask
from benchmarks.lossless.reference import HuggingFace
from specdebug.campaign.loops.compare import first_difference
from specdebug.engine import Request
from specdebug.run.oracles.lossless import TIE_MARGIN, judge_output
from specdebug.verdict.outcome import Tie


@dataclass(frozen=True)
class Judged:
    """One output. ``same``: it is transformers' own. ``ties``: of its tokens, and where it parts; ``wrong``: what is
    neither."""

    same: bool
    ties: tuple[Tie, ...]
    wrong: tuple[str, ...]


def judge(ask: Ask, request: Request, dtype: str, theirs: HuggingFace, exact: HuggingFace) -> Judged:
    """Judge what a greedy request returned. ``theirs`` computes in ``dtype``, ``exact`` in float32."""
    ours = list(request.output_ids)
    expected = theirs.expected(ask.prompt, ask.max_new_tokens, ask.stop)
    if request.finish_reason == "abort":
        expected = expected[: len(ours)]
    position = first_difference(ours, expected)
    ties, wrong = list[Tie](), list[str]()
    if position is not None and position >= min(len(ours), len(expected)):
        wrong.append(f"it ends after {len(ours)} tokens, transformers' after {len(expected)}")
    elif position is not None:
        ties.append(parting(ask.prompt, ours, expected, position, dtype, exact))
    found = judge_output(exact, ask.prompt, ours, TIE_MARGIN[dtype])
    known = {(tie.position, tie.token, tie.preferred) for tie in found.ties}
    wrong += [_told(tie) for tie in ties if tie.margin > tie.allowed]
    kept = [tie for tie in ties if tie.margin <= tie.allowed and (tie.position, tie.token, tie.preferred) not in known]
    wrong += [_told(Tie(at, found.gaps[at], found.allowed[at], ours[at], found.choices[at])) for at in found.wrong]
    return Judged(position is None, (*kept, *found.ties), tuple(dict.fromkeys(wrong)))


def parting(
    prompt: Sequence[int], ours: Sequence[int], expected: Sequence[int], at: int, dtype: str, exact: HuggingFace
) -> Tie:
    """Return how far the float32 model tells apart the two tokens at which two texts part."""
    logits = exact.logits([*prompt, *ours[:at]])
    apart = float((logits[ours[at]] - logits[expected[at]]).abs())
    return Tie(at, apart, TIE_MARGIN[dtype] * float(logits.abs().max()), ours[at], expected[at])


def _told(tie: Tie) -> str:
    apart = f"{tie.margin:.3g} logits apart, {tie.allowed:.2g} allowed"
    return f"output {tie.position} is {tie.token} for {tie.preferred}, {apart}"
