"""One set of requests, served in two ways that must not matter: where a request's two outcomes part.

A token in place of another may be a near-tie; a reference says so (:meth:`TwinBreak.judged`), and nothing else does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from specdebug.verdict.outcome import RequestResult, first_difference

TWIN = "twin@"
"""What signatures of broken twins begin with; the relation's name follows."""
What = Literal["tokens", "stop reasons", "log probabilities", "accept lengths", "runs"]
Wrong = Literal["", "first", "second", "both"]


class TokenWord(NamedTuple):
    """A reference's word on a token: the one that it prefers, how far that one's logit lies above the token's, how far
    it may for a near-tie, and the token's log probability."""

    preferred: int
    gap: float
    allowed: float
    logprob: float


@dataclass(frozen=True)
class TwinBreak:
    """A thing in which a request's two servings part.

    Attributes:
        position: of the output token; of accept lengths, the place of the verify among the request's.
        left, right: in the first serving and in the second: a token (None: it had ended), the reason of its end, a log
            probability, an accept length; or, of the runs, the signature of one that failed by itself.
        weighed: the reference's word on both; None where there is none.
        wrong: the side that the reference says is wrong; empty where it does not tell.
        drawn: the request draws its tokens, with the same coins in both.
        steered: its tokens are not chosen by the model's own logits.
        excused: a near-tie.
    """

    rid: str
    what: What
    position: int
    left: Any
    right: Any
    weighed: tuple[TokenWord, TokenWord] | None = None
    wrong: Wrong = ""
    drawn: bool = False
    steered: bool = False
    excused: bool = False

    @property
    def weighs(self) -> bool:
        """True if a reference can tell which side is wrong."""
        tokens = self.what == "tokens" and None not in (self.left, self.right) and not self.drawn
        return not self.steered and (tokens or self.what == "log probabilities")

    def judged(self, left: TokenWord, right: TokenWord, allowed: float) -> TwinBreak:
        """The break by the reference's word on each side's token. ``allowed``: of log probabilities."""
        if self.what == "tokens":
            bad = [each.gap > each.allowed for each in (left, right)]
        else:
            told = zip((self.left, self.right), (left, right), strict=True)
            bad = [mine is None or _apart(mine, its.logprob, allowed) for mine, its in told]  # one was never told
        wrong: Wrong = "both" if all(bad) else "first" if bad[0] else "second" if bad[1] else ""
        return replace(self, weighed=(left, right), wrong=wrong, excused=self.what == "tokens" and not any(bad))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        plain = {name: _plain(value) for name, value in vars(self).items()}
        words = [{name: _plain(value) for name, value in each._asdict().items()} for each in self.weighed or ()]
        return plain | {"weighed": words or None}


def _plain(value: Any) -> Any:
    """A number that JSON has no word for as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Rules:
    """What must stay, and of whom.

    Attributes:
        keeps: what must stay.
        continues: by request, the one whose prompt and output its own prompt goes on from.
        drawn: requests that draw their tokens; ``coins``: the same in both, unless one was set back in one of the two.
        steered: those of which penalties, biases or a grammar choose, so that no reference can judge them.
        allowed: how far log probabilities may lie apart.
    """

    keeps: Collection[What]
    continues: Mapping[str, str | None] = field(default_factory=dict)
    drawn: Collection[str] = ()
    steered: Collection[str] = ()
    coins: bool = False
    allowed: float = 0.0


@dataclass
class Compared:
    """Two servings side by side. ``requests``, ``tokens``, ``logprobs``: how many were compared. ``left_out``: requests
    that were not compared, each with the reason."""

    breaks: list[TwinBreak] = field(default_factory=list)
    requests: int = 0
    tokens: int = 0
    logprobs: int = 0
    left_out: dict[str, str] = field(default_factory=dict)


def compare(left: Mapping[str, RequestResult], right: Mapping[str, RequestResult], rules: Rules) -> Compared:
    """Hold the second serving of each request against its first."""
    found, parted = Compared(), set[str]()
    for rid, one in left.items():
        other = right.get(rid)
        if rules.continues.get(rid) in parted:
            found.left_out[rid] = "the request that it goes on from parted before"
            parted.add(rid)
        elif other is None or None in (one.finish_reason, other.finish_reason):
            found.left_out[rid] = "it did not come to its end in both"
            parted.add(rid)
        elif rid in rules.drawn and (not rules.coins or one.retractions or other.retractions):
            found.left_out[rid] = "it is sampled, with other coins in the two"
            parted.add(rid)
        else:
            drawn, steered = rid in rules.drawn, rid in rules.steered
            found.breaks += [replace(each, drawn=drawn, steered=steered) for each in _breaks(one, other, rules)]
            found.requests += 1
            found.tokens += min(len(one.output_ids), len(other.output_ids))
            found.logprobs += min(len(one.logprobs), len(other.logprobs))
            if one.output_ids != other.output_ids:
                parted.add(rid)
    return found


def _breaks(one: RequestResult, other: RequestResult, rules: Rules) -> list[TwinBreak]:
    found: list[TwinBreak] = []
    both = min(len(one.output_ids), len(other.output_ids))
    aborted = "abort" in (one.finish_reason, other.finish_reason)
    at = first_difference(one.output_ids, other.output_ids)
    if aborted and at == both:
        at = None
    if at is not None:
        mine, others = (None if at >= len(each.output_ids) else each.output_ids[at] for each in (one, other))
        found.append(TwinBreak(one.rid, "tokens", at, mine, others))
    elif "stop reasons" in rules.keeps and not aborted and one.finish_reason != other.finish_reason:
        found.append(TwinBreak(one.rid, "stop reasons", both, one.finish_reason, other.finish_reason))
    if "log probabilities" in rules.keeps:
        upto = both if at is None else at
        told = zip(one.logprobs[:upto], other.logprobs, strict=False)
        tops = zip(one.top_logprobs[:upto], other.top_logprobs, strict=False)
        unlike = list[tuple[int, float | None, float | None]]()
        unlike += [(n, *pair) for n, pair in enumerate(told) if _apart(*pair, rules.allowed)]
        unlike += [(n, *pair) for n, each in enumerate(tops) if (pair := _other_top(*each, rules.allowed)) is not None]
        counts = len(one.logprobs[:upto]), len(other.logprobs[:upto])
        if counts[0] != counts[1] and not aborted:  # one may end before it was told those of its last tokens
            last = min(counts)
            left, right = (each.logprobs[last] if last < len(each.logprobs) else None for each in (one, other))
            unlike.append((last, left, right))
        if unlike:
            found.append(TwinBreak(one.rid, "log probabilities", *min(unlike, key=lambda each: each[0])))
    if "accept lengths" in rules.keeps and at is None and not aborted and not (one.retractions or other.retractions):
        lengths = one.accept_lengths, other.accept_lengths
        place = first_difference(*lengths)
        if place is not None:
            mine, others = (each[place] if place < len(each) else None for each in lengths)
            found.append(TwinBreak(one.rid, "accept lengths", place, mine, others))
    return found


Top = Sequence[tuple[int, float]]


def _other_top(one: Top, other: Top, allowed: float) -> tuple[float | None, float | None] | None:
    """The first log probabilities of the likeliest tokens that lie apart: of one rank, or of one token. Which of two
    that are as likely comes last in the list is not decided."""
    if len(one) != len(other):
        return (float(len(one)), float(len(other)))
    left, right = (sorted((value for _, value in side), reverse=True) for side in (one, other))
    tokens = dict(other)
    same = [(value, tokens[token]) for token, value in one if token in tokens]
    pairs = [*zip(left, right, strict=True), *same]
    return next((pair for pair in pairs if _apart(*pair, allowed)), None)


def _apart(one: float, other: float, allowed: float) -> bool:
    return not (one == other or abs(one - other) <= allowed)


def beside_reference(
    served: Mapping[str, RequestResult], told: Mapping[str, Sequence[TokenWord]], rules: Rules
) -> Compared:
    """Hold what was served against a reference's word on each of its tokens. Near-ties are breaks that are excused."""
    found = Compared()
    for rid, one in served.items():
        if rid in rules.drawn:
            found.left_out[rid] = "it is sampled"
            continue
        if rid in rules.steered:
            found.left_out[rid] = "its tokens are not chosen by the model's own logits"
            continue
        if rid not in told:
            found.left_out[rid] = "the reference was not asked about it"
            continue
        found.requests += 1
        found.tokens += len(told[rid])
        found.logprobs += len(one.logprobs)
        wrong = 0
        for at, (token, word) in enumerate(zip(one.output_ids, told[rid], strict=False)):
            if token != word.preferred and not wrong:
                right = TokenWord(word.preferred, 0.0, word.allowed, math.nan)
                each = TwinBreak(rid, "tokens", at, token, word.preferred).judged(word, right, 0.0)
                found.breaks.append(each)
                wrong += not each.excused
        pairs = [(own, word) for own, word in zip(one.logprobs, told[rid], strict=False)]
        place = next((n for n, (own, word) in enumerate(pairs) if _apart(own, word.logprob, rules.allowed)), None)
        if place is not None and "log probabilities" in rules.keeps:
            own, word = pairs[place]
            found.breaks.append(TwinBreak(rid, "log probabilities", place, own, word.logprob, wrong="first"))
    return found
