"""Read what another engine's processes wrote of a run (``targets/inside/tape.py``) as steps of a recording.

Those engines schedule as they do, and one run may not repeat another: tensors were kept in full, and are looked up
here. Rows that belong to no request of the workload, such as those of a server's own checks, count as padding; so do
rows of a request in a step that was computed after its end.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from specdebug.diverge.owners import Batch, Segment
from specdebug.diverge.prefills import Chunks, Positions, Recut, TapedCall, TapedStep
from specdebug.diverge.stream import PADDING, Descriptor, RecordedStep
from specdebug.diverge.sums import Layout, row_sums
from specdebug.diverge.values import Place, keep_array
from specdebug.engine.sites import held_at

_RID = re.compile(r"[0-9a-f]{8}-(.+)")
"""The id that a session gives a request: a number of its own before the scenario's."""


class TapeRecording:
    """A file's steps, and the tensors behind them. ``branches``, ``nodes``: of a draft step and of a tree, for each
    request. ``as_in``: the types of the other side's tensors by site, where integers are wider or narrower there.
    ``chunks``: how the other side cut its prompts. ``summed``: hash as the other side did on a device.

    Attributes:
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
        self._left_out: dict[str, str] = {}
        self._steps = list(self._read())
        self.positions: Mapping[str, Positions] | None = None
        if any(step.starts for step in self._steps):
            rids = {rid for step in self._steps for rid in step.rids}
            names = {rid: found[1] for rid in rids if (found := _RID.fullmatch(rid))}
            recut = Recut(self._steps, names, chunks or {})
            self._steps = recut.steps
            self.positions = recut.positions
        self.left_out = {_name(rid): why for rid, why in self._left_out.items()}

    @property
    def steps(self) -> list[RecordedStep]:
        """Every step that has computed a request of the workload, with a hash for each request's share of a tensor."""
        made: dict[str, int] = {}
        steps = []
        for step in self._steps:
            over = set()
            if step.kind != "prefill":
                for rid in step.rids:
                    made[rid] = made.get(rid, 0) + 1
                    if made[rid] > self._decodes.get(rid, made[rid]):
                        over.add(rid)
            known = [_RID.fullmatch(rid) for rid in step.rids]
            gone = {place for place, rid in enumerate(step.rids) if rid in over or known[place] is None}
            if len(gone) < len(step.rids):
                steps.append(self._recorded(step, tuple(map(_name, step.rids)), gone))
        return steps

    def keep(self, places: Iterable[Place], folder: Path) -> None:
        """Put the tensors of some calls into a folder, as a second run of our own engine would (``values.kept``)."""
        steps = {step.number: step for step in self._steps}
        for number, call in places:
            keep_array(folder, (number, call), self._values(steps[number].calls[call]))

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
                    self._left_out[facts["left_out"]] = facts["why"]
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

    def _recorded(self, step: TapedStep, names: tuple[str, ...], gone: set[int]) -> RecordedStep:
        batch = Batch(step.kind, names, tuple(range(len(names))), step.lens, self._branches, self._nodes)
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
            values = _typed(self._values(call), dtype)
            if held_at(call.site).flat:
                values = _from_first(values, segments, self._nodes)
            digests.extend((_sums if self._summed else _hashes)(values, segments))
        before = {_name(rid): rows for rid, rows in step.before.items()}
        return RecordedStep(step.number, names, tuple(calls), digests, before)

    def _values(self, call: TapedCall) -> np.ndarray:
        if not sum(size for _, size in call.pieces):
            return np.empty(call.shape, call.numpy)
        if len(call.pieces) == 1:
            return np.memmap(self._path, call.numpy, "r", call.pieces[0][0], call.shape)
        file = np.memmap(self._path, np.uint8, "r")
        rows = np.concatenate([file[start : start + size] for start, size in call.pieces])
        return rows.view(call.numpy).reshape(call.shape)


def _name(rid: str) -> str:
    """The scenario's name of a request; of one that is not the scenario's, its id."""
    found = _RID.fullmatch(rid)
    return found[1] if found else rid


def _typed(values: np.ndarray, dtype: str) -> np.ndarray:
    """The values with the bits that a tensor of that type has."""
    if dtype == "bfloat16":  # written as float32, whose upper half it is
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype) if "int" in dtype else values


def _from_first(values: np.ndarray, segments: Sequence[Segment], nodes: int) -> np.ndarray:
    """Numbers of rows, taken from the first row of each request."""
    values = values.copy()
    for number, (_, start, stop) in enumerate(segments):
        rows = values[start:stop]
        rows[rows >= 0] -= number * nodes
    return values


def _hashes(values: np.ndarray, segments: Sequence[Segment]) -> list[int]:
    """Of each segment, as ``fingerprint.HostHasher`` has them."""
    return [xxh3_64_intdigest(np.ascontiguousarray(values[start:stop]).data) for _, start, stop in segments]


def _sums(values: np.ndarray, segments: Sequence[Segment]) -> list[int]:
    """Of each segment, as a recording on a device has them."""
    found: list[int] = Layout([(segments, values.shape[0])]).hashes(row_sums(values)).tolist()
    return found
