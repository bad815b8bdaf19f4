"""Greedy losslessness: every token must be the target's argmax given what precedes it, by a dense model.

Where the reference's logits for two tokens are nearer than :data:`TIE_MARGIN`, either is right: a tie, which excuses
one token and nothing after it.

What a request is told of its tokens' log probabilities must be the reference's, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specdebug.base.features import features_of
from specdebug.events import AllServed, Event, Finishing, Going, OfRequest
from specdebug.run.oracles.base import Oracle, Reference
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


@dataclass(frozen=True)
class Losslessness:
    """The lossless oracle's verdict on a request: output positions that are wrong, and ties. ``choices``, ``gaps``: at
    every position the reference's token, and by how many logits it prefers that; ``allowed``: by how many it may."""

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
    allowed = [tie_margin * size for size in sizes]
    judged = enumerate(zip(output_ids, choices, gaps, allowed, strict=True))
    others = [(at, gap, most, token, choice) for at, (token, choice, gap, most) in judged if token != choice]
    wrong = tuple(other[0] for other in others if other[1] > other[2])
    ties = tuple(Tie(*other) for other in others if other[1] <= other[2])
    return Losslessness(wrong, ties, tuple(choices), tuple(gaps), tuple(allowed))


class Lossless(Oracle):
    """Compares outputs of greedy requests with the reference's."""

    name = "lossless"
    needs = frozenset({"tokens", "plain"})
    hears = (Finishing, Going)

    def on(self, event: OfRequest) -> None:
        bench, request = self.bench, event.request
        if request.sampling.temperature != 0 or bench.reference is None or features_of(request.sampling).steers:
            return
        bench.looked(self.name)
        output = list(request.output_ids)
        found = judge_output(bench.reference, request.prompt_ids, output, TIE_MARGIN[bench.settings.target.dtype])
        for tie in found.ties if isinstance(event, Finishing) else ():  # near-ties are told when it ends
            bench.tie(request.rid, tie)
        if found.wrong:
            self._report(request.rid, output, found)

    def _report(self, rid: str, output: list[int], found: Losslessness) -> None:
        position, decode = found.wrong[0], self.bench.decode
        got, expected = output[position], found.choices[position]
        margin, allowed = found.gaps[position], found.allowed[position]
        detail = (
            f"{rid} output {position}: got {got} {decode([got])!r}, expected {expected} {decode([expected])!r} by "
            f"{margin:.3g} logits ({allowed:.2g} is a tie; {len(found.wrong)} of {len(output)} tokens differ)"
        )
        data = {"rid": rid, "position": position, "got": got, "expected": expected, "margin": margin}
        step = self.bench.step_of(rid, position)
        self.bench.report(Violation("mismatch", "request", step, detail, data={**data, "allowed": allowed}))


class ToldLogprobs(Oracle):
    """Compares the log probabilities that requests are told with the reference's. An engine may tell those of scaled
    logits, so requests of other temperatures than 0 and 1 are left out."""

    name = Lossless.name
    needs = Lossless.needs
    hears = (AllServed,)

    def on(self, event: Event) -> None:
        session = self.bench.session
        assert isinstance(event, AllServed)
        for rid in event.rids if "logprobs" in session.shows and self.bench.reference is not None else ():
            request = session.request(rid)
            asked, output = features_of(request.sampling), list(request.output_ids)
            if asked.logprobs is None or asked.steers or not output or request.finish_reason == "abort":
                continue
            if request.sampling.temperature in (0, 1):
                self._compare(rid, request.prompt_ids, output)

    def _compare(self, rid: str, prompt_ids: Sequence[int], output: list[int]) -> None:
        session, reference = self.bench.session, self.bench.reference
        assert reference is not None
        self.bench.looked(self.name)
        logits, told = reference.logits([*prompt_ids, *output], len(prompt_ids)), session.logprobs(rid)
        allowed = TIE_MARGIN[self.bench.settings.target.dtype] * logits.abs().amax(-1)
        right = logits.log_softmax(-1)
        rows = enumerate(zip(output, told, session.top_logprobs(rid), strict=False))
        pairs = ((at, other, own) for at, (token, value, best) in rows for other, own in {token: value, **best}.items())
        wrong = next((pair for pair in pairs if not abs(pair[2] - right[pair[0], pair[1]]) <= allowed[pair[0]]), None)
        if wrong is not None:
            at, other, value = wrong
            due = float(right[at, other])
            self._report(rid, at, f"{value:.4f} of token {other}, where the reference has {due:.4f}")
        elif len(told) != len(output):
            self._report(rid, min(len(told), len(output)), f"{len(told)} for {len(output)} tokens")

    def _report(self, rid: str, at: int, what: str) -> None:
        detail, step = f"{rid} output {at}: told log probabilities: {what}", self.bench.step_of(rid, at)
        self.bench.report(Violation("mismatch", "request.logprobs", step, detail, data={"rid": rid, "position": at}))
