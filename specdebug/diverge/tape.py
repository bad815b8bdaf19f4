"""Read what another engine's processes wrote of a run (``targets/inside/tape.py``) as steps of a recording.

Those engines schedule as they do: tensors were kept in full, and are looked up here. Rows of a request in a step that
was computed after its end count as padding.

Each engine computes of a prompt what its cache lacks, in chunks as its budget allows. So where a tape says at which
position a chunk begins, its prompts are cut anew, as the other engine cut them: rows of one position lie beside each
other, and what only one of the two computed is counted.
"""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdebug.diverge.align import prefilled
from specdebug.diverge.recording import (
    PADDING,
    Batch,
    CallPlace,
    Descriptor,
    Layout,
    RecordedStep,
    keep_array,
    row_sums,
)
from specdebug.engine.sites import held_at

Chunks = Mapping[str, tuple[int, ...]]  # by request, the tokens of each chunk of its prefill, in order


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

    @property
    def by_token(self) -> bool:
        return held_at(self.site).rows == "tokens"

    @property
    def row_bytes(self) -> int:
        return sum(size for _, size in self.pieces) // max(self.shape[0], 1)


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


class Positions(NamedTuple):
    """How many positions of a prompt both engines computed, the other alone, and this one alone."""

    both: int = 0
    other: int = 0
    own: int = 0


def chunks_of(steps: Sequence[RecordedStep], *, whole: bool) -> dict[str, tuple[int, ...]]:
    """The chunks of each request's prefill. ``whole``: the run came to its end; of one that did not, a prefill in its
    last step may lack some, and is left out."""
    found: dict[str, tuple[int, ...]] = {}
    for step in steps:
        for rid, rows in prefilled(step).items():
            found[rid] = (*found.get(rid, ()), rows)
    unsure = prefilled(steps[-1]) if steps and not whole else {}
    return {rid: rows for rid, rows in found.items() if rid not in unsure}


def computed_again(steps: Sequence[RecordedStep]) -> set[str]:
    """Requests that were prefilled after they had decoded: their later steps have other numbers than elsewhere."""
    decoded: set[str] = set()
    again: set[str] = set()
    for step in steps:
        rows = prefilled(step)
        again |= decoded & set(rows)
        decoded |= set() if rows else set(step.rids)
    return again


class Recut:
    """The steps of a tape with its prefills cut as ``chunks``, the other engine's; a request without any is left as it
    is."""

    def __init__(self, steps: Sequence[TapedStep], chunks: Chunks) -> None:
        self._chunks = chunks
        self._rows: dict[tuple[str, str], list[tuple[int, int]]] = {}  # request, site: position and place of each row
        self._counted: dict[str, tuple[int, int]] = {}
        cut: list[TapedStep] = []
        for step in steps:
            cut += [each for place in range(len(step.starts)) for each in self._of_request(step, place)]
            cut += [] if step.starts else [step]
        self.steps = [dataclasses.replace(step, number=number) for number, step in enumerate(cut, 1)]

    @property
    def positions(self) -> dict[str, Positions]:
        """By request that both engines have, what was computed of its prompt."""
        counted = self._counted.items()
        return {rid: Positions(both, sum(self._chunks[rid]) - both, own - both) for rid, (both, own) in counted}

    def _of_request(self, step: TapedStep, place: int) -> Iterator[TapedStep]:
        rid = step.rids[place]
        start, rows = step.starts[place], step.lens[place]
        first = sum(step.lens[:place])
        for call in step.calls:
            if call.by_token:
                size = call.row_bytes
                ((at, _),) = call.pieces
                known = self._rows.setdefault((rid, call.site), [])
                known += [(start + n, at + (first + n) * size) for n in range(rows)]
        if rid not in self._chunks:
            yield self._chunk(step, place, start, rows)
            return
        found, own = self._counted.get(rid, (0, 0))
        end = step.totals[place] - sum(self._chunks[rid])
        for length in self._chunks[rid]:
            end += length
            if start < end <= start + rows:
                made = self._chunk(step, place, end - length, length)
                found += 0 if made.before else length
                yield made
        self._counted[rid] = found, own + rows

    def _chunk(self, step: TapedStep, place: int, start: int, rows: int) -> TapedStep:
        """The chunk of a request that begins at ``start``, of a batch that computed its last row."""
        rid, last = step.rids[place], step.starts[place] + step.lens[place]
        calls, lacking = [], False
        for call in step.calls:
            size, length = call.row_bytes, rows if call.by_token else 1
            if call.by_token:
                wanted = range(start, start + rows)
                known = dict(self._rows[rid, call.site])
                shown = all(position in known for position in wanted)
                lacking |= not shown
                pieces = tuple((known[position], size) for position in wanted) if shown else ()
            else:  # of the batch's last row alone
                ((at, _),) = call.pieces
                shown = start + rows == last
                pieces = ((at + place * size, size),)
            calls.append(dataclasses.replace(call, shape=(length, *call.shape[1:]), pieces=pieces, shown=shown))
        before = {rid: rows} if lacking else {}
        return TapedStep(step.kind, (rid,), (rows,), step.number, calls=calls, before=before)


class TapeRecording:
    """A file's steps, and the tensors behind them. ``branches``, ``nodes``: of a draft step and of a tree, for each
    request. ``as_in``: the types of the other side's tensors by site, where integers are wider or narrower there.
    ``chunks``: how the other side cut its prompts. ``summed``: hash as the other side did on a device.

    Attributes:
        taped: the steps as they lie in the file, prompts cut as ``chunks``.
        positions: of each request's prompt, by who computed them; None of an engine that does not say where its chunks
            begin.
        left_out: requests that were not written to their end, by name, and why.
    """

    def __init__(
        self,
        path: Path,
        *,
        branches: int,
        nodes: int,
        as_in: Mapping[str, str] | None = None,
        chunks: Chunks | None = None,
        summed: bool = False,
    ) -> None:
        self._path = path
        self._branches, self._nodes = branches, nodes
        self._as_in = as_in or {}
        self._summed = summed
        self._decodes: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        self.taped = list(self._read())
        self.positions: Mapping[str, Positions] | None = None
        if any(step.starts for step in self.taped):
            recut = Recut(self.taped, chunks or {})
            self.taped, self.positions = recut.steps, recut.positions

    @property
    def steps(self) -> list[RecordedStep]:
        """Every step that has computed a request of the workload, with a hash for each request's share of a tensor."""
        made: dict[str, int] = {}
        steps = []
        for step in self.taped:
            over = set()
            if step.kind != "prefill":
                for rid in step.rids:
                    made[rid] = made.get(rid, 0) + 1
                    if made[rid] > self._decodes.get(rid, made[rid]):
                        over.add(rid)
            gone = {place for place, rid in enumerate(step.rids) if rid in over}
            if len(gone) < len(step.rids):
                steps.append(self._recorded(step, gone))
        return steps

    def batch(self, step: TapedStep) -> Batch:
        """The batch of a step, which tells whose the rows of its tensors are."""
        places = tuple(range(len(step.rids)))
        return Batch(step.kind, step.rids, places, step.lens, self._branches, self._nodes)

    def keep(self, places: Iterable[CallPlace], folder: Path) -> None:
        """Put the tensors of some calls into a folder, as a second run of our own engine would (``values.kept``)."""
        steps = {step.number: step for step in self.taped}
        for number, call in places:
            keep_array(folder, (number, call), self.values(steps[number].calls[call]))

    def _read(self) -> Iterator[TapedStep]:
        """The steps of the file; what was cut off at its end is passed over."""
        size = self._path.stat().st_size if self._path.exists() else 0
        with self._path.open("rb") if size else open("/dev/null", "rb") as file:
            step: TapedStep | None = None
            while line := file.readline():
                try:
                    facts = json.loads(line)
                except ValueError:
                    break
                if "batch" in facts:
                    if step is not None:
                        yield step
                    rids, lens, starts, totals = (
                        tuple(facts.get(name, ())) for name in ("rids", "lens", "starts", "totals")
                    )
                    step = TapedStep(facts["kind"], rids, lens, facts["batch"], starts, totals)
                elif "ended" in facts:
                    self._decodes[facts["ended"]] = facts["decodes"]
                elif "left_out" in facts:
                    self.left_out[facts["left_out"]] = facts["why"]
                elif step is not None:
                    start, length = file.tell(), facts.get("bytes", 0)
                    if start + length > size:
                        break
                    file.seek(length, 1)
                    shape = tuple(facts["shape"])
                    pieces = ((start, length),)
                    step.calls.append(TapedCall(facts["site"], facts["dtype"], facts["numpy"], shape, pieces))
            if step is not None:
                yield step

    def _recorded(self, step: TapedStep, gone: set[int]) -> RecordedStep:
        from xxhash import xxh3_64_intdigest  # an engine's environment, where tapes are read, too, has none

        batch = self.batch(step)
        calls, digests = [], array("Q")
        for call in step.calls:
            if not call.shown:
                calls.append(Descriptor(call.site, call.dtype, (), ()))
                continue
            segments = batch.segments(call.site, call.shape[0])
            owners = tuple(PADDING if owner in gone else owner for owner, _, _ in segments)
            rows = tuple(stop - start for _, start, stop in segments)
            dtype = self._as_in.get(call.site, call.dtype) if "int" in call.dtype else call.dtype
            calls.append(Descriptor(call.site, dtype, owners, rows))
            values = _typed(self.values(call), dtype)
            if held_at(call.site).flat:  # numbers of rows, taken from the first row of each request
                values = values.copy()
                for number, (_, start, stop) in enumerate(segments):
                    own = values[start:stop]
                    own[own >= 0] -= number * self._nodes
            if self._summed:  # as a recording on a device has them, else as hashes.HostHasher
                digests.extend(Layout([(segments, values.shape[0])]).hashes(row_sums(values)).tolist())
            else:
                pieces = (np.ascontiguousarray(values[start:stop]) for _, start, stop in segments)
                digests.extend(xxh3_64_intdigest(piece.data) for piece in pieces)
        return RecordedStep(step.number, step.rids, tuple(calls), digests, step.before)

    def values(self, call: TapedCall) -> np.ndarray:
        """The tensor of a call."""
        if not sum(size for _, size in call.pieces):
            return np.empty(call.shape, call.numpy)
        if len(call.pieces) == 1:
            return np.memmap(self._path, call.numpy, "r", call.pieces[0][0], call.shape)
        file = np.memmap(self._path, np.uint8, "r")
        rows = np.concatenate([file[start : start + size] for start, size in call.pieces])
        return rows.view(call.numpy).reshape(call.shape)


def _typed(values: np.ndarray, dtype: str) -> np.ndarray:
    """The values with the bits that a tensor of that type has."""
    if dtype == "bfloat16":  # written as float32, whose upper half it is
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype) if "int" in dtype else values
