"""Acceptance: the drafts that a verify accepts are those that its tree and the target's logits say.

The walk is made again along the accepted nodes, on the host and in float64, from the tree's mask and the verify's
logits. A coin within rounding of a boundary decides nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdebug.base.features import features_of
from specdebug.events import AfterStep, Decided, Event
from specdebug.run.oracles.base import Bench, Oracle
from specdebug.run.oracles.trees import DecidedTrees, read_masks
from specdebug.verdict.outcome import Violation

COIN_MARGIN = 1e-5
"""Mass by which a coin may miss a boundary and have met it: the engine's probabilities are float32, whose softmax and
sums over some 100,000 tokens are right to some 1e-6 of the whole."""


MOST_REPEATS = 3
"""Equal coins that are no chance any more: so many there are by chance once in a million runs of 20,000 verifies."""


@dataclass(frozen=True)
class _Pending:
    """A decision that is judged after its step."""

    decision: Decided
    outputs: Sequence[int]
    best: Tensor
    tied: Tensor
    rows: Tensor | None


@dataclass(frozen=True)
class _Wrong:
    node: int
    got: Any
    expected: Any


@dataclass(frozen=True)
class _Walked:
    """One request's tree, the nodes accepted of it, and the token that the engine chose at each."""

    tokens: np.ndarray
    parents: np.ndarray
    path: list[int]
    chosen: list[int]

    def children(self, node: int) -> list[int]:
        """Best first, as nodes are."""
        return np.flatnonzero(self.parents == node).tolist()


class _Choice(NamedTuple):
    """The child to go on to, or None; and the token to choose, None where that is for a coin on a boundary to say."""

    child: int | None
    token: int | None
    missed: str = ""


class AcceptanceOracle(Oracle):
    """Walks each verified tree again, and holds what the request was given against it."""

    name = "acceptance"
    needs = frozenset({"draft", "decisions"})
    hears = (Decided, AfterStep)
    of = ("drafts",)

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._pending: list[_Pending] = []
        self._last_coin: dict[str, float] = {}
        self._repeats, self._told_coins = 0, False

    def on(self, event: Event) -> None:
        match event:
            case Decided():
                self.bench.trees.append(DecidedTrees.of(self.bench.step, event))
                self._keep(event)
            case AfterStep(step, failed):
                pending, self._pending = self._pending, []
                for each in pending:
                    with self.bench.judging("what a verify accepted"):
                        self._judge(each, step, failed=failed)

    @torch.no_grad()
    def _keep(self, decision: Decided) -> None:
        (batch, nodes), vocab = decision.tokens.shape, decision.logits.shape[-1]
        flat = decision.accept_index.clamp(0, batch * nodes - 1).to(torch.int64)
        rows = decision.logits.index_select(0, flat.view(-1)).view(batch, -1, vocab)
        peak, best = rows.max(-1)
        chosen = decision.predict[flat].clamp(0, vocab - 1).to(torch.int64)
        tied = rows.gather(-1, chosen[..., None])[..., 0] == peak
        sampled = any(request.sampling.temperature > 0 for request in decision.requests)
        outputs = [len(request.output_ids) for request in decision.requests]
        self._pending.append(_Pending(decision, outputs, best, tied, rows if sampled else None))

    def _judge(self, pending: _Pending, step: int, *, failed: bool) -> None:
        decision = pending.decision
        tokens = decision.tokens.cpu().numpy()
        parents = read_masks(decision.mask.cpu().numpy()).parents
        nodes, vocab = tokens.shape[1], decision.logits.shape[-1]
        predict, accepted = decision.predict.tolist(), decision.accept_index.tolist()
        counts, best, tied = (each.tolist() for each in (decision.num_correct_drafts, pending.best, pending.tied))
        rows = None if pending.rows is None else pending.rows.double().cpu().numpy()
        for b, request in enumerate(decision.requests):
            if request.sampling.temperature > 0 and decision.coins is None:
                continue  # an engine whose coins are not seen
            self.bench.looked(self.name)
            path = [index - b * nodes for index in accepted[b] if index >= 0]
            chosen = [predict[b * nodes + node] if 0 <= node < nodes else -1 for node in path]
            walked = _Walked(tokens[b], parents[b], path, chosen)
            wanted = [own if same else top for own, same, top in zip(chosen, tied[b], best[b], strict=False)]
            choose: Callable[[int], _Choice | None] = partial(_greedy, walked, wanted, decision.num_steps)
            if request.sampling.temperature > 0 and rows is not None and decision.coins is not None:
                self._check_coins(request.rid, decision.coins[b].tolist(), len(path), step)
                choose = partial(_sampled, walked, rows[b], decision.coins[b].tolist(), request.sampling, decision)
            wrong = _first_wrong(walked, choose, counts[b], vocab)
            if wrong is None and not failed:
                given = list(request.output_ids[pending.outputs[b] :])
                got = request.accept_lengths[-1], given
                expected = len(path), chosen[: len(given)]
                wrong = None if got == expected else _Wrong(path[-1], got, expected)
            if wrong is not None:
                self._report(request.rid, wrong, step)

    def _check_coins(self, rid: str, coins: Sequence[float], walked: int, step: int) -> None:
        """No coin is tossed for two things: those of a walk, that of the token behind it, and those of the verify
        before. Coins are equal by chance once in 2**24 times."""
        used = [*coins[:walked], coins[-1]]
        self._repeats += len(used) - len(set(used)) + (used[-1] == self._last_coin.get(rid))
        self._last_coin[rid] = used[-1]
        if self._repeats >= MOST_REPEATS and not self._told_coins:
            self._told_coins = True
            detail = f"{rid}: {self._repeats} coins so far were tossed for two things; here {', '.join(map(str, used))}"
            self.bench.report(Violation("sampling", "coins", step, detail, data={"rid": rid}))

    def _report(self, rid: str, wrong: _Wrong, step: int) -> None:
        detail = f"{rid}: at node {wrong.node} of its tree was accepted {wrong.got}, expected {wrong.expected}"
        self.bench.report(Violation("mismatch", "acceptance", step, detail, data={"rid": rid, **vars(wrong)}))


def _first_wrong(
    walked: _Walked, choose: Callable[[int], _Choice | None], drafts: int, vocab_size: int
) -> _Wrong | None:
    """The first node at which the walk along the accepted path goes wrong."""
    path, chosen = walked.path, walked.chosen
    if path[:1] != [0]:
        return _Wrong(0, path, "a path from the root")
    if drafts != len(path) - 1:
        return _Wrong(0, f"{drafts} drafts", f"{len(path) - 1}")
    for index, (node, token) in enumerate(zip(path, chosen, strict=True)):
        choice = choose(index)
        if choice is None:
            return None
        child, wanted, missed = choice
        after = path[index + 1] if index + 1 < len(path) else None
        ways = ((token, after), (wanted, child))
        got, expected = (f"{what} as {'bonus' if to is None else f'node {to}'}" for what, to in ways)
        if after != child or not 0 <= token < vocab_size or wanted not in (None, token):
            return _Wrong(node, got, expected + missed)
    return None


def _greedy(walked: _Walked, wanted: Sequence[int], num_steps: int, index: int) -> _Choice:
    """The child that holds the token with the greatest logit."""
    children = walked.children(walked.path[index]) if index < num_steps else []
    return _Choice(next((node for node in children if walked.tokens[node] == wanted[index]), None), wanted[index])


def _sampled(
    walked: _Walked, logits: np.ndarray, coins: Sequence[float], sampling: Any, decided: Decided, index: int
) -> _Choice | None:
    """The first child into whose cumulative mass the coin falls; else a draw from what the children left."""
    probs = target_probs(logits[index], sampling)
    if probs is None:
        return None
    mass, rest = 0.0, probs.copy()
    for node in walked.children(walked.path[index]) if index < decided.num_steps else ():
        token = int(walked.tokens[node])
        mass += probs[token]
        reach = mass / decided.threshold_acc
        if abs(coins[index] - reach) < COIN_MARGIN:
            return None
        if coins[index] < reach or probs[token] >= decided.threshold_single:
            return _Choice(node, token)
        if probs[token] >= decided.threshold_single - COIN_MARGIN:
            return None
        rest[token] = 0.0
    total = rest.sum()
    if total < COIN_MARGIN:
        return None
    cumulative, drawn, token = rest.cumsum() / total, coins[-1], walked.chosen[index]
    missed = ""
    if 0 <= token < len(rest) and rest[token] > 0:
        off = max(cumulative[token] - rest[token] / total - drawn, drawn - cumulative[token])
        if off <= COIN_MARGIN:
            return _Choice(None, token)
        missed = f" (the coin misses the one by {off:.1e} of the mass that is left)"
    return _Choice(None, int(np.searchsorted(cumulative, drawn, side="right")), missed)


def target_probs(logits: np.ndarray, sampling: Any) -> np.ndarray | None:
    """The probabilities that temperature, top-k, top-p and min-p leave of float64 logits [V], ties kept, adding up to
    1; None where rounding decides what they leave."""
    scaled = logits / sampling.temperature
    probs = np.exp(scaled - scaled.max())
    kept: np.ndarray | None = probs / probs.sum()  # None from where rounding decides
    if kept is not None and 0 < sampling.top_k < len(kept):
        kept = _from(kept, np.sort(kept)[-sampling.top_k])
    if kept is not None and sampling.top_p < 1.0:
        ordered = np.sort(kept)[::-1]
        before = ordered.cumsum() - ordered
        decided = (np.abs(before - sampling.top_p) >= COIN_MARGIN).all()
        kept = _from(kept, ordered[before < sampling.top_p][-1]) if decided else None
    if kept is not None and (min_p := features_of(sampling).min_p) > 0:
        least = min_p * kept.max()
        decided = (np.abs(kept - least) >= least * COIN_MARGIN).all()
        kept = _from(kept, least) if decided else None
    return kept


def _from(probs: np.ndarray, least: float) -> np.ndarray | None:
    """The probabilities from ``least`` on, adding up to 1; None if another one is as good as that."""
    if ((probs < least) & (probs > least * (1 - COIN_MARGIN))).any():
        return None
    left = np.where(probs >= least, probs, 0.0)
    left /= left.sum()
    return left
