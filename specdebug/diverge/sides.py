"""The two ways in which an arm is recorded: our own engine, and another that writes a tape.

Our engine repeats a run to the bit, so it is fingerprinted first and run again for values. Another's schedule hangs on
when requests came, so everything is kept by the first run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from specdebug.base.abilities import DEFAULT
from specdebug.campaign.loops.replay import ArmRun, RunContent, run_as
from specdebug.diverge import worker
from specdebug.diverge.common import integers_of
from specdebug.diverge.prefills import Positions, chunks_of
from specdebug.diverge.stream import RecordedStep, read
from specdebug.diverge.tape import TapeRecording
from specdebug.targets.options import EngineShape
from specdebug.targets.registry import find_target
from specdebug.workers.job import Job

CallPlace = tuple[int, int, str]
"""Step, call and site."""


@dataclass(frozen=True)
class RecordedRun(ArmRun):
    """An arm run that writes ``hashes``, or keeps tensors in ``folder`` (``keep``: step, call and site of each)."""

    folder: str = ""
    hashes: str | None = None
    keep: tuple[CallPlace, ...] = ()

    def job(self, library: RunContent) -> Job:
        job = super().job(library)
        record = {"folder": self.folder, "hashes": self.hashes, "keep": self.keep}
        return dataclasses.replace(job, target=worker.TARGET, payload={**job.payload, "record": record})


@dataclass(frozen=True)
class TapedRun(ArmRun):
    """An arm run whose engine writes a ``tape``."""

    tape: str = ""

    def job(self, library: RunContent) -> Job:
        job = super().job(library)
        return dataclasses.replace(job, payload={**job.payload, "tape": self.tape})


class Side(Protocol):
    """An arm under comparison."""

    run: ArmRun

    def recorded(self, key: str) -> ArmRun:
        """The run to make first."""

    def steps(self, like: Sequence[RecordedStep] = (), *, whole: bool = True) -> list[RecordedStep]:
        """The steps that it wrote; none where it did not come that far. ``like``: the other side's, whose types of
        integers and cuts of prompts a tape is read in. ``whole``: that side came to its end."""

    def again(self, key: str, places: Iterable[CallPlace], folder: Path) -> ArmRun | None:
        """The run that puts the tensors of those calls into ``folder``; None if they are there now."""


@dataclass
class EngineSide:
    """An arm of our own engine."""

    run: ArmRun
    folder: Path
    name: str

    @property
    def _hashes(self) -> Path:
        return self.folder / f"{self.name}.hashes"

    def recorded(self, key: str) -> ArmRun:
        return recorded(self.run, key, folder=str(self.folder), hashes=str(self._hashes))

    def steps(self, like: Sequence[RecordedStep] = (), *, whole: bool = True) -> list[RecordedStep]:
        found = read(self._hashes) if self._hashes.exists() else []
        self._hashes.unlink(missing_ok=True)
        return found

    def again(self, key: str, places: Iterable[CallPlace], folder: Path) -> ArmRun | None:
        return recorded(self.run, key, folder=str(folder), keep=tuple(sorted(places)))


@dataclass
class TapeSide:
    """An arm of another engine."""

    run: ArmRun
    folder: Path
    name: str
    shape: EngineShape
    _recording: TapeRecording | None = None

    @property
    def _tape(self) -> Path:
        return self.folder / f"{self.name}.tape"

    def recorded(self, key: str) -> ArmRun:
        return run_as(TapedRun, self.run, key=key, tape=str(self._tape))

    @property
    def positions(self) -> Mapping[str, Positions] | None:
        """``TapeRecording.positions``, once the steps are read."""
        return None if self._recording is None else self._recording.positions

    @property
    def left_out(self) -> dict[str, str]:
        """Requests that it did not write to their end, and why, once the steps are read."""
        return {} if self._recording is None else self._recording.left_out

    def steps(self, like: Sequence[RecordedStep] = (), *, whole: bool = True) -> list[RecordedStep]:
        branches, _, nodes = self.shape.tree or (1, 0, 1)
        summed = self.shape.device != "cpu"  # as our engine hashes there
        self._recording = TapeRecording(
            self._tape,
            branches=branches,
            nodes=nodes,
            as_in=integers_of(like),
            chunks=chunks_of(like, whole=whole),
            summed=summed,
        )
        return self._recording.steps

    def again(self, key: str, places: Iterable[CallPlace], folder: Path) -> ArmRun | None:
        assert self._recording is not None
        self._recording.keep([(step, call) for step, call, _ in places], folder)
        return None


def can_be_recorded(run: ArmRun) -> bool:
    """Return True for an engine that can be recorded, ours or another."""
    return run.target == DEFAULT or find_target(run.target).traits.records


def recorded(run: ArmRun, key: str, **record: Any) -> RecordedRun:
    """The run of our own engine, recorded."""
    return run_as(RecordedRun, run, key=key, **record)
