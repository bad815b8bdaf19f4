"""Accept lengths by group, the unit in which floors and baselines judge them, and how far a sound run's may move.

An engine run is deterministic on one machine: nothing moves there. Another machine rounds otherwise, which does two
things. A near-tie between two tokens sends a request on with another text, and then its verifies are drawn anew: their
mean moves as that of a fresh sample does. And a near-tie between two drafts costs or saves a verify of the same text:
that is rare (:data:`TIE_RATE`). So a request whose output is the recorded one is held much closer than one whose output
is another. ``docs/baselines.md`` has the measurements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdebug.base.schema import Item
from specdebug.search.intervals import most_events, repeat_margin, spread
from specdebug.verdict.outcome import Outcome, RequestResult, Violation, mean

MIN_VERIFIES = 8
"""Verifies that a group has at least where its accept length is judged. With fewer, a single verify is worth more than
an eighth of the way from the worst to the best, and where a text ends decides more than how it was drafted."""

TIE_RATE = 0.01
"""Verifies of one text that rounding adds or takes away, at most, for each there was; 0.005 between dtypes."""

MAX_TEXTS = 256
"""Requests of a group whose outputs are remembered; of the others it is supposed that they went on otherwise."""


@dataclass(frozen=True)
class AcceptSample:
    """The accept lengths of a group's speculative requests. ``accept``: the mean, None where nothing was verified.
    ``sd``: of single verifies. ``texts``: by request, a digest of its output and how many verifies it took."""

    accept: float | None
    verifies: int
    sd: float
    texts: Mapping[str, str]

    @classmethod
    def of(cls, requests: Sequence[RequestResult]) -> AcceptSample:
        """The sample of one group's requests."""
        lengths = [length for request in requests for length in request.accept_lengths]
        texts = {}
        for request in requests[:MAX_TEXTS]:
            digest = hashlib.blake2b(repr(request.output_ids).encode(), digest_size=4).hexdigest()
            texts[request.rid] = f"{digest}:{len(request.accept_lengths)}"
        return cls(mean(lengths), len(lengths), spread(lengths), texts)

    def interval(self, now: AcceptSample | None = None) -> tuple[float, float]:
        """Where a sound run's mean lies: of ``now``, which may have put out some of the same texts, or of any."""
        if self.accept is None:
            return 1.0, 1.0
        digests = {} if now is None else {rid: text.partition(":")[0] for rid, text in now.texts.items()}
        alike = (text for rid, text in self.texts.items() if digests.get(rid) == text.partition(":")[0])
        same = sum(map(_verifies, alike))
        ties = most_events(TIE_RATE * same) if same else 0
        part = same / self.verifies
        drawn = repeat_margin(self.sd, self.verifies, self.verifies - same)
        margin = drawn + part * self.accept * ties / (same + ties or 1)
        return max(1.0, self.accept - margin), self.accept + margin

    def to_dict(self) -> dict[str, Any]:
        low, high = (round(bound, 4) for bound in self.interval())
        rest = {"verifies": self.verifies, "sd": self.sd, "texts": dict(self.texts)}
        return {"accept": self.accept, "low": low, "high": high, **rest}

    @classmethod
    def read(cls, item: Item) -> AcceptSample:
        """Inverse of :meth:`to_dict`. Raises ContentError."""
        table = item.table(required=("accept", "low", "high", "verifies", "sd", "texts"))
        verifies = table["verifies"].integer(low=0, high=2**40)
        accept = None if table["accept"].is_null else table["accept"].number(low=1, high=2**20)
        if (accept is None) != (verifies == 0):
            raise table["accept"].error(f"does not go with {verifies} verifies")
        texts = {rid: text.text(pattern=r"[0-9a-f]{8}:[0-9]{1,9}") for rid, text in table["texts"].entries().items()}
        if sum(map(_verifies, texts.values())) > verifies:
            raise table["texts"].error(f"has more than {verifies} verifies")
        return cls(accept, verifies, table["sd"].number(low=0, high=2**20), texts)


def samples(outcome: Outcome, groups: Sequence[str]) -> dict[str, AcceptSample]:
    """A sample of each of these groups."""
    return {name: AcceptSample.of([each for each in outcome.requests if each.group == name]) for name in groups}


def accept_drop(group: str, got: float, wanted: float, verifies: int, detail: str) -> Violation:
    """The violation of a group that accepts too little. It belongs to no step."""
    return Violation("accept-drop", group, None, detail, data={"got": got, "wanted": wanted, "verifies": verifies})


def not_judged(group: str, verifies: int) -> str:
    """The note on a group of too few verifies."""
    return f"accept length of group {group} not judged: {verifies} verifies, fewer than {MIN_VERIFIES}"


def _verifies(text: str) -> int:
    return int(text.partition(":")[2])
