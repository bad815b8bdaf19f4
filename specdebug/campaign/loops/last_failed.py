"""The record of arms that failed when they last ran, kept from one replay to the next.

It is a small JSON file in a folder of the working directory: scenario files by their full path, each with its arms. An
arm leaves it by doing what it should; an arm that does not run stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specdebug.base import interrupts
from specdebug.base.errors import ContentError
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.workers.records import Lock, Record, RecordError

NAME = "last-failed.json"
_MAX_BYTES = 16 << 20
_WAIT_S = 10.0
"""Seconds to wait for another replay that writes to it."""


@dataclass
class LastFailed:
    """The record of a working directory. ``arms`` are those that failed, by scenario file, in the order they did."""

    arms: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> LastFailed:
        """Return the folder's record; one that is missing is empty. Raises RecordError."""
        record = _record_in(folder)
        try:
            files = record.read(_MAX_BYTES).entries()
            return cls({file: [arm.text() for arm in arms.items()] for file, arms in files.items()})
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        except OSError as error:
            raise RecordError(f"cannot read {record}: {error.strerror}") from None
        except ContentError as error:
            raise record.damaged(error) from None

    @property
    def files(self) -> tuple[str, ...]:
        """The scenario files that are still there, of which an arm failed."""
        return tuple(file for file in self.arms if os.path.isfile(file))

    def has(self, run: ArmRun) -> bool:
        return run.arm in self.arms.get(_file_of(run), ())

    def take(self, results: Iterable[ArmResult]) -> None:
        """Take over these results."""
        for result in results:
            file, arm = _file_of(result.run), result.run.arm
            others = [name for name in self.arms.pop(file, []) if name != arm]
            if left := others if as_it_should(result) else [*others, arm]:
                self.arms[file] = left


def keep_failed(folder: Path, results: Sequence[ArmResult], make_folder: Callable[[], object]) -> str:
    """Take these results into the record of a folder, which ``make_folder`` makes. Return what is wrong with it, in
    words: a damaged record is made anew; one that cannot be written costs nothing else."""
    record, trouble = _record_in(folder), ""
    if not record.path.exists() and all(map(as_it_should, results)):
        return ""
    try:
        make_folder()
        with Lock(record, wait_s=0.0 if interrupts.was_heard() else _WAIT_S):
            try:
                kept = LastFailed.read(folder)
            except RecordError as error:
                kept, trouble = LastFailed(), f"{error}; it is made anew"
            before = {file: [*arms] for file, arms in kept.arms.items()}
            kept.take(results)
            if kept.arms != before or trouble:
                record.write(kept.arms)
    except RecordError as error:
        return str(error)
    return trouble


def as_it_should(result: ArmResult) -> bool:
    """Return True if an arm met its expectation, or passed where there was none."""
    return result.outcome.verdict == "pass" if result.met is None else result.met


def _record_in(folder: Path) -> Record:
    return Record(folder / NAME, "the record of failures", "remove it")


def _file_of(run: ArmRun) -> str:
    return os.path.realpath(run.scenario.path)
