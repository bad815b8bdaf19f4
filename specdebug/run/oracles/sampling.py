"""Sampled tokens: each lies in the reference's top-k and top-p, and all together are drawn by the reference's odds.

How often tokens are drawn is tested in float32 only (``specdebug/search/draws.py`` says how), support in every dtype.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from specdebug.events import Finishing
from specdebug.reference.sampling import kept_probs, may_be_kept
from specdebug.run.oracles.base import Bench, Oracle
from specdebug.run.oracles.lossless import TIE_MARGIN
from specdebug.search.draws import FALSE_ALARM, NEEDED, DrawsTest
from specdebug.verdict.outcome import Violation

AT_ONCE = 64  # positions whose probabilities are worked out together; bounds what a large vocabulary needs


class SampledTokens(Oracle):
    """Looks at requests with a temperature when they end."""

    name = "sampling"
    needs = frozenset({"tokens", "logits"})
    hears = (Finishing,)

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._test = DrawsTest()
        self._alarmed = False

    def on(self, event: Finishing) -> None:
        request = event.request
        reference, sampling, target = self.bench.reference, request.sampling, self.bench.settings.target
        if sampling.temperature == 0 or reference is None or not request.output_ids:
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
        cut = sampling.temperature, sampling.top_k, sampling.top_p
        bad = (~may_be_kept(logits, tokens, margins, *cut, joint=joint)).nonzero()
        if not len(bad):
            return False
        row = int(bad[0])
        at, token = position + row, int(tokens[row])
        rank = int((logits[row] > logits[row, token]).sum())
        left = int((kept_probs(logits[row], *cut, joint=joint)[0] > 0).sum())
        detail = (
            f"{request.rid} output {at}: sampled {token} {bench.decode([token])!r}, which {rank} tokens precede; top_k "
            f"{sampling.top_k} and top_p {sampling.top_p:g} leave {left} at temperature {sampling.temperature:g}"
        )
        data = {"rid": request.rid, "position": at, "got": token, "rank": rank, "kept": left}
        bench.report(Violation("sampling", "support", bench.step_of(request.rid, at), detail, data=data))
        return True

    def _count(self, request: Any, logits: torch.Tensor, position: int, *, joint: bool) -> None:
        sampling = request.sampling
        probs, order = kept_probs(logits, sampling.temperature, sampling.top_k, sampling.top_p, joint=joint)
        left = (probs > 0).sum(-1)
        tokens = torch.tensor(request.output_ids[position : position + len(logits)])
        # A near-tie at the border counts as the last that is kept.
        ranks = torch.minimum((order == tokens[:, None]).int().argmax(-1), left - 1)
        coins = [_coin(request.rid, position + row) for row in range(len(logits))]
        self._test.add(probs[:, : int(left.max())].numpy(), ranks.numpy(), np.array(coins), sampling.temperature)


def _coin(rid: str, position: int) -> float:
    """A number in [0, 1) that depends on nothing of the engine's."""
    digest = hashlib.blake2b(f"{rid}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2.0**53
