"""Prefills of two engines side by side, by request and position.

Each engine computes of a prompt what its cache lacks, in chunks as its budget allows. So where a tape says at which
position a chunk begins, its prompts are cut anew, as the other engine cut them: rows of one position lie beside each
other, and what only one of the two computed is counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdebug.diverge.align import PREFILL
from specdebug.diverge.stream import RecordedStep
from specdebug.engine.sites import held_at

Chunks = Mapping[str, tuple[int, ...]]
"""By request, the tokens of each chunk of its prefill, in order."""


@dataclass(frozen=True)
class TapedCall:
    """A tensor of a tape. ``pieces``: where its bytes are in the file, and how many, in order. ``shown``: False of one
    that has no rows to compare."""

    site: str
    dtype: str
    numpy: str
    shape: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...]
    shown: bool = True


@dataclass
class TapedStep:
    """A batch of a tape. ``starts``, ``totals``: of a prefill, for each request the position of its first row and the
    tokens of its whole prefill, where the engine says. ``before``: tokens right before it, by request, that this engine
    had cached."""

    kind: Any
    rids: tuple[str, ...]
    lens: tuple[int, ...]
    number: int
    starts: tuple[int, ...] = ()
    totals: tuple[int, ...] = ()
    calls: list[TapedCall] = field(default_factory=list)
    before: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Positions:
    """How many positions of a prompt both engines computed, the other alone, and this one alone."""

    both: int = 0
    other: int = 0
    own: int = 0


def chunks_of(steps: Sequence[RecordedStep], *, whole: bool) -> dict[str, tuple[int, ...]]:
    """The chunks of each request's prefill. ``whole``: the run came to its end; of one that did not, a prefill in its
    last step may lack some, and is left out."""
    found: dict[str, list[int]] = {}
    for step in steps:
        for rid, rows in prefilled(step).items():
            found.setdefault(rid, []).append(rows)
    if not whole and steps:
        for rid in prefilled(steps[-1]):
            found.pop(rid, None)
    return {rid: tuple(rows) for rid, rows in found.items()}


def computed_again(steps: Sequence[RecordedStep]) -> set[str]:
    """Requests that were prefilled after they had decoded: their later steps have other numbers than elsewhere."""
    decoded: set[str] = set()
    again: set[str] = set()
    for step in steps:
        rows = prefilled(step)
        again |= decoded & set(rows)
        if not rows:
            decoded |= set(step.rids)
    return again


def prefilled(step: RecordedStep) -> dict[str, int]:
    """By request, how many of its tokens a step prefills; nothing of a decode step."""
    shares = (part for part in step.parts() if part.descriptor.site == PREFILL and part.owner is not None)
    return {str(part.owner): part.rows or 0 for part in shares}


class Recut:
    """The steps of a tape with its prefills cut as ``chunks``, the other engine's. ``names``: of the requests, by the
    ids that the tape has; those without one are left as they are."""

    def __init__(self, steps: Sequence[TapedStep], names: Mapping[str, str], chunks: Chunks) -> None:
        self._names = names
        self._chunks = chunks
        self._rows: dict[tuple[str, str], list[tuple[int, int]]] = {}  # request, site: position and place of each row
        self._counted: dict[str, tuple[int, int]] = {}
        self.steps = [dataclasses.replace(step, number=n) for n, step in enumerate(self._cut(steps), 1)]

    @property
    def positions(self) -> dict[str, Positions]:
        """By request that both engines have, what was computed of its prompt."""
        return {
            rid: Positions(both, sum(self._chunks[rid]) - both, own - both)
            for rid, (both, own) in self._counted.items()
        }

    def _cut(self, steps: Sequence[TapedStep]) -> Iterator[TapedStep]:
        for step in steps:
            if not step.starts:
                yield step
                continue
            for place in range(len(step.rids)):
                yield from self._of_request(step, place)

    def _of_request(self, step: TapedStep, place: int) -> Iterator[TapedStep]:
        rid, name = step.rids[place], self._names.get(step.rids[place], "")
        start, rows = step.starts[place], step.lens[place]
        first = sum(step.lens[:place])
        for call in step.calls:
            if _by_token(call):
                size = _row_bytes(call)
                ((at, _),) = call.pieces
                known = self._rows.setdefault((rid, call.site), [])
                known += [(start + n, at + (first + n) * size) for n in range(rows)]
        if name not in self._chunks:
            yield self._chunk(step, place, start, rows)
            return
        found, own = self._counted.get(name, (0, 0))
        end = step.totals[place] - sum(self._chunks[name])
        for length in self._chunks[name]:
            end += length
            if start < end <= start + rows:
                made = self._chunk(step, place, end - length, length)
                found += 0 if made.before else length
                yield made
        self._counted[name] = found, own + rows

    def _chunk(self, step: TapedStep, place: int, start: int, rows: int) -> TapedStep:
        """The chunk of a request that begins at ``start``, of a batch that computed its last row."""
        rid, last = step.rids[place], step.starts[place] + step.lens[place]
        calls, lacking = [], False
        for call in step.calls:
            size = _row_bytes(call)
            if _by_token(call):
                wanted = range(start, start + rows)
                known = dict(self._rows[rid, call.site])
                shown = all(position in known for position in wanted)
                lacking |= not shown
                pieces = tuple((known[position], size) for position in wanted) if shown else ()
                calls.append(dataclasses.replace(call, shape=(rows, *call.shape[1:]), pieces=pieces, shown=shown))
            else:  # of the batch's last row alone
                ((at, _),) = call.pieces
                shown = start + rows == last
                piece = ((at + place * size, size),)
                calls.append(dataclasses.replace(call, shape=(1, *call.shape[1:]), pieces=piece, shown=shown))
        before = {rid: rows} if lacking else {}
        return TapedStep(step.kind, (rid,), (rows,), step.number, calls=calls, before=before)


def _by_token(call: TapedCall) -> bool:
    return held_at(call.site).rows == "tokens"


def _row_bytes(call: TapedCall) -> int:
    return sum(size for _, size in call.pieces) // max(call.shape[0], 1)
