"""The record of arms that failed when they last ran, kept from one replay to the next.

It is a small JSON file in a folder of the working directory: scenario files by their full path, each with its arms. An
arm leaves it by doing what it should; an arm that does not run stays.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from specdebug.files import read_file
from specdebug.loops.replay import ArmResult, ArmRun

NAME = "last-failed.json"
_MAX_BYTES = 16 << 20


@dataclass
class LastFailed:
    """The record of a working directory. ``arms`` are those that failed, by scenario file, in the order they did."""

    path: Path
    arms: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> LastFailed:
        """Return the folder's record; one that is missing or cannot be read is empty."""
        path = folder / NAME
        try:
            found = json.loads(read_file(path, _MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            found = None
        arms = found if isinstance(found, dict) else {}
        return cls(path, {file: [*map(str, names)] for file, names in arms.items() if isinstance(names, list)})

    @property
    def files(self) -> tuple[str, ...]:
        """The scenario files that are still there, of which an arm failed."""
        return tuple(file for file in self.arms if os.path.isfile(file))

    def has(self, run: ArmRun) -> bool:
        return run.arm in self.arms.get(_file_of(run), ())

    def update(self, results: Iterable[ArmResult], make_folder: Callable[[], object]) -> None:
        """Take over these results and, if they change the record, call ``make_folder`` and write it.

        A folder that cannot be written costs the record and nothing else.
        """
        before = json.dumps(self.arms)
        for result in results:
            file, arm = _file_of(result.run), result.run.arm
            others = [name for name in self.arms.pop(file, []) if name != arm]
            if left := others if as_it_should(result) else [*others, arm]:
                self.arms[file] = left
        if json.dumps(self.arms) != before:
            beside = self.path.with_suffix(f".{os.getpid()}")
            with contextlib.suppress(OSError):
                make_folder()
                try:
                    beside.write_text(json.dumps(self.arms, indent=1), encoding="utf-8")
                    beside.replace(self.path)
                except OSError:
                    beside.unlink(missing_ok=True)  # of a full disk: half of it


def as_it_should(result: ArmResult) -> bool:
    """Return True if an arm met its expectation, or passed where there was none."""
    return result.outcome.verdict == "pass" if result.met is None else result.met


def _file_of(run: ArmRun) -> str:
    return os.path.realpath(run.scenario.path)
