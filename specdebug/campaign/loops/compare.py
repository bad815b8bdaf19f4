"""Two arms side by side: their metrics, and for each request where they part.

Two runs **agree** when their verdicts are equal and every request came out with the same tokens. Accept lengths, cached
tokens and speed are shown but are no differences: arms are compared for them. Groups whose accept lengths differ by
more than chance are named all the same, and what an arm loses against a baseline is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specdebug.verdict.accept import MIN_VERIFIES, AcceptSample, samples
from specdebug.verdict.outcome import EXIT_CODES, Outcome, RequestResult, first_difference

CONTEXT_TOKENS = 12  # the tokens of each side that are shown from the first difference on


@dataclass(frozen=True)
class RequestDifference:
    """One request in both arms. ``position`` is that of the first output token that differs, None if none does."""

    rid: str
    left: RequestResult | None
    right: RequestResult | None
    position: int | None
    left_text: str = ""
    right_text: str = ""

    @property
    def same_output(self) -> bool:
        return self.left is not None and self.right is not None and self.position is None

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"rid": self.rid, "same_output": self.same_output, "position": self.position}
        sides = (("left", self.left, self.left_text), ("right", self.right, self.right_text))
        for side, request, text in sides:
            plain[side] = request and {
                "accept_mean": request.accept_mean,
                "cold_accept_mean": request.cold_accept_mean,
                "cached_tokens": request.cached_tokens,
                "output_tokens": len(request.output_ids),
                "finish_reason": request.finish_reason,
                "text_at_difference": text,
            }
        return plain


@dataclass(frozen=True)
class Comparison:
    """Two outcomes of one scenario under two names. ``drafts``: each group's accept lengths, the right one's beside the
    left one's. ``against``: the comparisons with a baseline, if there is one."""

    names: tuple[str, str]
    outcomes: tuple[Outcome, Outcome]
    requests: tuple[RequestDifference, ...]
    drafts: tuple[GroupAgainst, ...] = ()
    against: tuple[Against | None, ...] = ()

    @property
    def unavailable(self) -> bool:
        """Return True if this machine could not run one of them: then there is nothing to compare."""
        return any(outcome.unavailable for outcome in self.outcomes)

    @property
    def agree(self) -> bool:
        left, right = self.outcomes
        same_verdict = left.verdict == right.verdict and not self.unavailable
        return same_verdict and all(request.same_output for request in self.requests)

    @property
    def same_trace(self) -> bool:
        """Return True if the two took the very same steps."""
        return self.outcomes[0].trace_hash == self.outcomes[1].trace_hash

    @property
    def drafting_apart(self) -> tuple[GroupAgainst, ...]:
        return tuple(group for group in self.drafts if group.status in ("lost", "more"))

    @property
    def losing(self) -> tuple[str, ...]:
        """The arms that lost accept length against a baseline."""
        named = zip(self.names, self.against, strict=False)
        return tuple(name for name, against in named if against is not None and against.status == "lost")

    @property
    def exit_code(self) -> int:
        """0 when they agree, 1 when they differ or lose against a baseline, 125 when one could not be run here."""
        return EXIT_CODES["unknown"] if self.unavailable else int(not self.agree or bool(self.losing))

    def to_dict(self) -> dict[str, Any]:
        return {
            "arms": list(self.names),
            "agree": self.agree,
            "unavailable": self.unavailable,
            "same_trace": self.same_trace,
            "outcomes": [
                {
                    "verdict": outcome.verdict,
                    "signature": outcome.signature,
                    "detail": outcome.detail,
                    "trace_hash": outcome.trace_hash,
                    "metrics": asdict(outcome.metrics),
                    "not_engine_code": list(outcome.not_engine_code),
                }
                for outcome in self.outcomes
            ],
            "accept_lengths": [
                {
                    "group": group.group,
                    "left": group.baseline,
                    "right": group.got,
                    "verifies": [group.baseline_verifies, group.verifies],
                    "low": group.wanted,
                    "high": group.high,
                    "differ": group in self.drafting_apart,
                }
                for group in self.drafts
            ],
            "baseline": [against and against.to_dict() for against in self.against],
            "requests": [request.to_dict() for request in self.requests],
        }


def compare(
    names: tuple[str, str],
    outcomes: tuple[Outcome, Outcome],
    decode: Callable[[Sequence[int]], str],
    against: tuple[Against | None, ...] = (),
) -> Comparison:
    """Line the two up by request id, in the left one's order. ``decode`` turns token ids into text."""
    left = {request.rid: request for request in outcomes[0].requests}
    right = {request.rid: request for request in outcomes[1].requests}
    requests = []
    for rid in left | right:
        one, other = left.get(rid), right.get(rid)
        position = first_difference(one.output_ids, other.output_ids) if one and other else None
        texts = ("", "")
        if one and other and position is not None:
            part = slice(position, position + CONTEXT_TOKENS)
            texts = decode(one.output_ids[part]), decode(other.output_ids[part])
        requests.append(RequestDifference(rid, one, other, position, *texts))
    groups = list(dict.fromkeys(request.group for outcome in outcomes for request in outcome.requests))
    ours, theirs = (samples(outcome, groups) for outcome in outcomes)
    drafts = tuple(beside(name, ours[name], theirs[name]) for name in groups)
    return Comparison(names, outcomes, tuple(requests), drafts, against)


SLOWER = 2.0  # tokens a second that are fewer by more than this factor are told, on the machine that wrote the baseline

_TINY = 1e-9


@dataclass(frozen=True)
class GroupAgainst:
    """One group beside its baseline. ``status``: ``kept``, ``lost``, ``more`` or ``not judged``. ``wanted``: the least
    that is no loss; ``got`` and ``baseline``: mean accept lengths, None where nothing was verified."""

    group: str
    status: str
    got: float | None
    verifies: int
    wanted: float
    high: float
    baseline: float | None
    baseline_verifies: int

    @property
    def line(self) -> str:
        got, base = ("none" if each is None else f"{each:.2f}" for each in (self.got, self.baseline))
        few = f" (fewer than {MIN_VERIFIES})" if self.status == "not judged" else ""
        return (
            f"{self.group} accepts {got} over {self.verifies} verifies, baseline {base} over {self.baseline_verifies}, "
            f"at least {self.wanted:.2f}: {self.status}{few}"
        )


@dataclass(frozen=True)
class Against:
    """A run beside its baseline. ``status``: ``kept``, ``lost``, ``no baseline`` or ``not compared``; ``why`` says more
    of the last two. ``slower``: on the same machine, by more than :data:`SLOWER`."""

    file: str
    status: str
    why: str = ""
    groups: tuple[GroupAgainst, ...] = ()
    tokens_per_s: float | None = None
    baseline_tokens_per_s: float | None = None
    same_machine: bool = False
    slower: bool = False

    @property
    def lines(self) -> list[str]:
        if self.why:
            return [f"{self.status}: {self.why}"]
        lines = [f"baseline: {group.line}" for group in self.groups] or ["baseline: nothing speculates"]
        if self.tokens_per_s and self.baseline_tokens_per_s:
            speeds = f"{self.tokens_per_s:.0f} tokens/s, baseline {self.baseline_tokens_per_s:.0f}"
            where = "" if self.same_machine else ", on another machine"
            lines.append(f"slower: {speeds}" if self.slower else f"baseline: {speeds}{where}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def beside(name: str, base: AcceptSample, now: AcceptSample, drop: float | None = None) -> GroupAgainst:
    """A group beside its baseline. ``drop``: the largest part of it that may be lost; None: what its interval says."""
    low, high = base.interval(now)
    if drop is not None:
        low = (base.accept or 0.0) * (1 - drop)
    if base.verifies < MIN_VERIFIES or 0 < now.verifies < MIN_VERIFIES:
        status = "not judged"
    elif now.accept is None or now.accept < low - _TINY:
        status = "lost"
    else:
        status = "more" if now.accept > high + _TINY else "kept"
    return GroupAgainst(name, status, now.accept, now.verifies, low, high, base.accept, base.verifies)
