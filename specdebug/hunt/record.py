"""The record of a hunt: a file has a line for each scenario that was run, so that the same command goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from specdebug.errors import SpecDebugError
from specdebug.workers.machine_failure import machine_failure

RECORD = "hunt.jsonl"


class RecordError(SpecDebugError):
    """The folder cannot be used, or belongs to another hunt."""


class RecordFull(RecordError):
    """The record cannot be written because the machine failed: nothing is said of what was hunted for."""

    exit_code = 125


@dataclass(frozen=True)
class Judged:
    """A scenario that was run. ``verdict``: pass, fail, unknown, or ``refused`` where the engine cannot be asked for
    it. ``requests``: how many ended; ``tokens``: how many they emitted."""

    number: int
    verdict: str
    signature: str = ""
    detail: str = ""
    wall_s: float = 0.0
    requests: int = 0
    tokens: int = 0


@dataclass
class HuntRecord:
    """The record in ``folder``. ``about``: what it is of; one that is there must be of the same."""

    folder: Path
    about: Mapping[str, Any]
    judged: dict[int, Judged] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises RecordError."""
        path = self.folder / RECORD
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        except OSError as error:
            raise RecordError(f"cannot use {error.filename or self.folder}: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            try:
                plain = json.loads(line)
            except ValueError:
                if number == len(lines):  # cut off as it was written: that scenario is run again
                    break
                raise RecordError(f"{path}:{number}: is no record of a hunt; name another folder") from None
            if number == 1 and plain != dict(self.about):
                raise RecordError(f"{path} is of another hunt ({_said(plain)}); name another folder")
            if number > 1:
                one = Judged(**plain)
                self.judged[one.number] = one
        if not lines:
            self._write(dict(self.about))
        elif len(self.judged) + 1 < len(lines):
            self._rewrite()

    def add(self, one: Judged) -> None:
        """Keep what became of a scenario. Raises RecordError."""
        self._write(asdict(one))
        self.judged[one.number] = one

    @property
    def findings(self) -> dict[str, list[Judged]]:
        """Failures by signature, each in the order of the numbers."""
        found: dict[str, list[Judged]] = {}
        for number in sorted(self.judged):
            if (one := self.judged[number]).verdict == "fail":
                found.setdefault(one.signature, []).append(one)
        return found

    def count(self, verdict: str) -> int:
        return sum(one.verdict == verdict for one in self.judged.values())

    def write(self, name: str, text: str) -> None:
        """Write a file beside the record. Raises RecordError."""
        with self._writing(name, "w") as file:
            file.write(text)

    def _rewrite(self) -> None:
        """Write the record without what was cut off."""
        plain: Sequence[Mapping[str, Any]] = (dict(self.about), *map(asdict, self.judged.values()))
        self.write(RECORD, "".join(json.dumps(each) + "\n" for each in plain))

    def _write(self, plain: Mapping[str, Any]) -> None:
        with self._writing(RECORD, "a") as file:
            file.write(json.dumps(plain) + "\n")

    @contextmanager
    def _writing(self, name: str, mode: str) -> Iterator[IO[str]]:
        try:
            with (self.folder / name).open(mode, encoding="utf-8") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            kind = RecordError if machine_failure(error) is None else RecordFull
            raise kind(f"cannot write {self.folder / name}: {error.strerror}") from None


def _said(plain: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in plain.items()) if isinstance(plain, dict) else "unreadable"
