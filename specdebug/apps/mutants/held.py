"""Listeners in a release's worker: one tapes what passes the sites of the sound engine, the other holds against that
what passes with a mutant. So nothing but the first difference of a mutant's run has to be kept."""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdebug.async_probe import SiteCall
from specdebug.diverge.align import is_where
from specdebug.diverge.hashes import Captured
from specdebug.diverge.recorder import RunListener
from specdebug.diverge.recording import BATCH, PADDING, Batch
from specdebug.diverge.rounding import difference
from specdebug.events import BatchBegan, BatchEnded, Event, StepBegan

SITES = 2
"""Sites with a difference beyond rounding after which nothing more is looked at."""


@dataclass
class TapedBatch:
    """A batch, and in order the sites that it passes, each with its values."""

    step: int
    kind: Any
    rids: tuple[str, ...]
    lens: tuple[int, ...]
    calls: list[tuple[str, np.ndarray]] = field(default_factory=list)


class ReleaseListener(RunListener):
    """Listens to an engine that passes its sites on the host, a batch at a time."""

    hears = (StepBegan, BatchBegan, BatchEnded)

    def on(self, event: Event) -> None:
        match event:
            case StepBegan(step):
                self._step = step
            case BatchBegan(kind, requests, lens):
                self._begin(TapedBatch(self._step, kind, tuple(each.rid for each in requests), lens))

    def _begin(self, batch: TapedBatch) -> None:
        """A batch is computed from now on."""

    def _new_capture(self) -> Captured:
        return Captured()

    def _replayed(self, captured: Captured) -> None:
        """No graph hands anything over."""


class BatchTape(ReleaseListener):
    """Keeps all of a run in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._batches = path, list[TapedBatch]()

    def _begin(self, batch: TapedBatch) -> None:
        self._batches.append(batch)

    def _passed(self, call: SiteCall) -> None:
        self._batches[-1].calls.append((call.site, array_of(call.tensor).copy()))

    def finish(self) -> None:
        self._path.write_bytes(pickle.dumps(self._batches))


def array_of(tensor: Tensor) -> np.ndarray:
    """The values of a tensor, rows first. Of types that numpy lacks, float32 holds them."""
    if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = tensor.float()
    found: np.ndarray = tensor.detach().cpu().contiguous().reshape(tensor.shape or (1,)).numpy()
    return found


class HeldListener(ReleaseListener):
    """Compares what passes. What a request's rows hold counts; other slots for the same tokens are no other result, and
    rows that pad a batch are no request's: what they hold nothing decides.

    Args:
        sound: the sound engine's batches.
        branches, nodes: of a draft step and of a tree, for each request.
        allowed: by a site, how far two values of a row may lie apart, as a part of the largest.

    Attributes:
        over: nothing more is compared.
        first: the first difference beyond rounding, or of rounding where there is no other: kind, step, site, request
            and text.
        sites: those with a difference beyond rounding.
        before: sites of slots that were passed in the first difference's step before it.
    """

    def __init__(self, sound: list[TapedBatch], branches: int, nodes: int, allowed: Callable[[str], float]) -> None:
        super().__init__()
        self._branches, self._nodes, self._allowed = branches, nodes, allowed
        self._batches: Iterator[TapedBatch] = iter(sound)
        self._batch: TapedBatch | None = None
        self._calls: Iterator[tuple[str, np.ndarray]] = iter(())
        self.over = False
        self.first: tuple[str, int, str, str | None, str] | None = None
        self.sites: list[str] = []
        self.before: list[str] = []
        self._slots: list[str] = []

    def finish(self) -> None:
        """The run is over."""
        if not self.over:
            self._missing("nothing more")
        if not self.over and (missing := next(self._batches, None)) is not None:
            self._part("end", missing.step, "", None, f"only the sound engine has a batch in step {missing.step}")

    def _begin(self, batch: TapedBatch) -> None:
        if self.over:
            return
        self._missing("nothing more")
        if self._batch is None or self._batch.step != batch.step:
            self._slots = []
        sound = self._batch = next(self._batches, None)
        if sound is None:
            self._part("end", batch.step, "", None, f"only the mutant has a batch in step {batch.step}")
        elif (sound.kind, sound.rids) != (batch.kind, batch.rids):  # other lengths show at the first site of rows
            text = f"{sound.kind} of {', '.join(sound.rids)}, with the mutant {batch.kind} of {', '.join(batch.rids)}"
            self._part("schedule", sound.step, "", None, text)
        else:
            self._calls = iter(sound.calls)

    def _missing(self, instead: str) -> None:
        """A site that the sound engine passes next in this batch is not passed."""
        if self._batch is not None and (call := next(self._calls, None)) is not None:
            text = f"the sound engine passes {call[0]}, the mutant {instead}"
            self._part("schedule", self._batch.step, call[0], None, text)

    def _passed(self, call: SiteCall) -> None:
        batch = self._batch
        if self.over or batch is None:
            return
        site, values = call.site, array_of(call.tensor)
        if is_where(site):
            self._slots.append(site)
        there, sound = next(self._calls, ("nothing more", values))
        if there != site:
            text = f"the sound engine passes {there}, the mutant {site}"
            self._part("schedule", batch.step, site, None, text)
        elif sound.shape != values.shape:
            text = f"{list(sound.shape)} in the sound engine, {list(values.shape)} with the mutant"
            self._part("shape", batch.step, site, None, text)
        elif not is_where(site) and sound.tobytes() != values.tobytes():
            self._values(batch, site, sound, values)

    def _values(self, batch: TapedBatch, site: str, sound: np.ndarray, other: np.ndarray) -> None:
        places = tuple(range(len(batch.rids)))
        rows = Batch(batch.kind, batch.rids, places, batch.lens, self._branches, self._nodes)
        for owner, start, stop in rows.segments(site, sound.shape[0]):
            found = None if owner == PADDING else difference(sound[start:stop], other[start:stop])
            if found is None:
                continue
            whose = None if owner == BATCH else batch.rids[owner]
            text = f"{found.left} in the sound engine, {found.right} with the mutant"
            if found.gap <= self._allowed(site):
                self.first = self.first or ("rounding", batch.step, site, whose, text)
            else:
                self._part("value", batch.step, site, whose, text)
                return

    def _part(self, what: str, step: int, site: str, whose: str | None, text: str) -> None:
        if not self.sites:
            self.first, self.before = (what, step, site, whose, text), sorted(set(self._slots))
        if site not in self.sites:
            self.sites.append(site)
        self.over = what != "value" or len(self.sites) >= SITES
