"""Sampled tokens: each lies in the reference's top-k and top-p, and all together are drawn by the reference's odds.

How often tokens are drawn is tested in float32 only (``specdebug/search/draws.py`` says how), support in every dtype.
Where trees are seen, drafts that were accepted, tokens in the place of rejected ones and all others are tested apart,
too: a draft is drawn from its siblings, and what is in its place from the rest.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from specdebug.base.features import features_of
from specdebug.events import Aborting, Decided, Event, Finishing
from specdebug.reference.sampling import kept_probs, may_be_kept
from specdebug.run.oracles.base import Bench, Oracle
from specdebug.run.oracles.lossless import TIE_MARGIN
from specdebug.search.draws import FALSE_ALARM, NEEDED, DrawsTest, Kind
from specdebug.verdict.outcome import Violation

AT_ONCE = 64  # positions whose probabilities are worked out together; bounds what a large vocabulary needs


class SampledTokens(Oracle):
    """Looks at requests with a temperature when they end."""

    name = "sampling"
    needs = frozenset({"tokens", "logits"})
    hears = (Decided, Finishing, Aborting)

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._test = DrawsTest()
        self._alarmed = False
        self._tried: dict[str, dict[int, list[int]]] = {}
        """By request and position of its output, the drafts that a verify tried there."""

    def on(self, event: Event) -> None:
        match event:
            case Decided():
                self._keep(event)
            case Finishing(request):
                self._judge(request)
                self._tried.pop(request.rid, None)
            case Aborting(request):
                self._tried.pop(request.rid, None)

    def _keep(self, decision: Decided) -> None:
        if not any(request.sampling.temperature for request in decision.requests):
            return
        nodes, accepted = decision.tokens.shape[1], decision.accept_index.tolist()
        child, sibling = decision.retrieve_next_token.tolist(), decision.retrieve_next_sibling.tolist()
        tokens = decision.tokens.tolist()
        for b, request in enumerate(decision.requests):
            path = [index - b * nodes for index in accepted[b] if index >= 0][: decision.num_steps]
            tried = self._tried.setdefault(request.rid, {})
            for position, node in enumerate(path, start=len(request.output_ids)):
                tried[position] = [tokens[b][each] for each in _children(node, child[b], sibling[b])]

    def _judge(self, request: Any) -> None:
        reference, sampling, target = self.bench.reference, request.sampling, self.bench.settings.target
        if sampling.temperature == 0 or reference is None or not request.output_ids or features_of(sampling).steers:
            return
        self.bench.looked(self.name)
        ids, start = [*request.prompt_ids, *request.output_ids], len(request.prompt_ids)
        bounds = [start, *range(start + 1, len(ids), AT_ONCE), len(ids)]  # the first, which is a prefill's, is alone
        for first, stop in itertools.pairwise(bounds):
            logits = reference.logits(ids[:stop], first)
            joint = target.joint == "all" or (target.joint == "first" and first == start)
            if self._unsupported(request, logits, first - start, joint=joint):
                return
            if target.dtype == "float32" and target.exact:
                self._count(request, logits, first - start, joint=joint)
        if (test := self._test).alarm and not self._alarmed:
            self._alarmed = True
            detail = (
                f"draws are not by the reference's odds: e-value 10^{test.log_evidence / math.log(10):.1f} after "
                f"{test.draws} draws (10^{-math.log10(FALSE_ALARM):.0f} is an alarm); {test.said()}"
            )
            self.bench.report(Violation("sampling", "distribution", None, detail, data={"draws": test.draws}))

    def notes(self) -> Iterator[str]:
        if 0 < self._test.draws < NEEDED and not self._alarmed:
            yield f"sampling@distribution: unknown: {self._test.draws} draws, needs {NEEDED}"

    def _unsupported(self, request: Any, logits: torch.Tensor, position: int, *, joint: bool) -> bool:
        """Report the first token that top-k or top-p leaves out. ``position``: of the first of the logits' rows."""
        sampling, bench = request.sampling, self.bench
        tokens = torch.tensor(request.output_ids[position : position + len(logits)])
        margins = TIE_MARGIN[bench.settings.target.dtype] * logits.abs().amax(-1)
        cut = _cut(sampling)
        bad = (~may_be_kept(logits, tokens, margins, *cut, joint=joint)).nonzero()
        if not len(bad):
            return False
        row = int(bad[0])
        at, token = position + row, int(tokens[row])
        rank = int((logits[row] > logits[row, token]).sum())
        left = int((kept_probs(logits[row], *cut, joint=joint)[0] > 0).sum())
        cuts = f"top_k {sampling.top_k} and top_p {sampling.top_p:g}{f' and min_p {cut[3]:g}' if cut[3] else ''}"
        detail = (
            f"{request.rid} output {at}: sampled {token} {bench.decode([token])!r}, which {rank} tokens precede; "
            f"{cuts} leave {left} at temperature {sampling.temperature:g}"
        )
        data = {"rid": request.rid, "position": at, "got": token, "rank": rank, "kept": left}
        bench.report(Violation("sampling", "support", bench.step_of(request.rid, at), detail, data=data))
        return True

    def _count(self, request: Any, logits: torch.Tensor, position: int, *, joint: bool) -> None:
        sampling = request.sampling
        probs, order = kept_probs(logits, *_cut(sampling), joint=joint)
        left = (probs > 0).sum(-1)
        tokens = torch.tensor(request.output_ids[position : position + len(logits)])
        # A near-tie at the border counts as the last that is kept.
        ranks = torch.minimum((order == tokens[:, None]).int().argmax(-1), left - 1)
        coins = [_coin(request.rid, position + row) for row in range(len(logits))]
        drawn = np.array(coins)
        self._test.add(probs[:, : int(left.max())].numpy(), ranks.numpy(), drawn, sampling.temperature)
        by_id = torch.zeros_like(probs).scatter(-1, order, probs)
        self._test.add_by_id("any", by_id.numpy(), tokens.numpy(), drawn)
        known, kinds = self._tried.get(request.rid, {}), list[Kind]()
        for row, token in enumerate(tokens.tolist()):
            tried = known.get(position + row, [])
            kinds.append("accepted" if token in tried else "correcting" if tried else "plain")
            others = by_id[row].clone()
            others[tried] = 0.0
            by_id[row] = by_id[row] - others if kinds[-1] == "accepted" else others
        for kind in dict.fromkeys(kinds):
            rows = [row for row, each in enumerate(kinds) if each == kind]
            self._test.add_by_id(kind, by_id[rows].numpy(), tokens[rows].numpy(), drawn[rows])


def _children(node: int, child: Sequence[int], sibling: Sequence[int]) -> Iterator[int]:
    """The children of a node, in the order in which they are tried. A damaged tree may go in a circle."""
    each, seen = child[node] if 0 <= node < len(child) else -1, 0
    while 0 <= each < len(child) and seen < len(child):
        yield each
        each, seen = sibling[each], seen + 1


def _cut(sampling: Any) -> tuple[float, int, float, float]:
    return sampling.temperature, sampling.top_k, sampling.top_p, features_of(sampling).min_p


def _coin(rid: str, position: int) -> float:
    """A number in [0, 1) that depends on nothing of the engine's."""
    digest = hashlib.blake2b(f"{rid}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2.0**53
