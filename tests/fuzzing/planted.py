"""Readers that break one rule each, so that the measurements are known to notice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specdebug.base.errors import SpecDebugError
from tests.fuzzing.measure import MAX_HELD, Subject

GOOD = b"good"


@dataclass(frozen=True)
class Planted:
    """A kind of file whose reader does something to mutants; see ``tests.fuzzing.kinds.Kind``."""

    act: Callable[[], object]
    count: int = 3
    file: str = "file"

    def subject(self, folder: Path) -> Subject:
        """Only mutants are read badly: what a reader does to good bytes is not measured."""
        return Subject(GOOD, lambda path: None if path.read_bytes() == GOOD else self.act())


def _raise(error: Exception) -> None:
    raise error


def _refuse(message: str, code: int) -> None:
    error = SpecDebugError(message)
    error.exit_code = code  # type: ignore[misc]
    raise error


def _burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


KINDS = {
    "sound": Planted(lambda: None),
    "refuses": Planted(lambda: _refuse("file: is wrong", 2)),
    "holds enough": Planted(lambda: bytearray(b"x") * (MAX_HELD + (20 << 20))),
    "asks for more": Planted(lambda: bytes(MAX_HELD + (200 << 20))),
    "is slow": Planted(lambda: _burn(2.1)),
    "never returns": Planted(lambda: _burn(1e9)),
    "raises": Planted(lambda: _raise(ValueError("x"))),
    "exits": Planted(lambda: _raise(SystemExit(1))),  # type: ignore[arg-type]
    "says two lines": Planted(lambda: _refuse("one\ntwo", 2)),
    "has another exit code": Planted(lambda: _refuse("one", 3)),
    "dies": Planted(os.abort),
}
