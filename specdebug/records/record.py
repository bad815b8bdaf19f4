"""A record: a file that one command writes and another reads, whole or not at all, in words where it cannot be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.base.files import read_file, replace_file
from specdebug.base.schema import Item
from specdebug.base.yamlio import parse_json
from specdebug.workers.machine_failure import blamed


class RecordError(SpecDebugError):
    """A record is in use, damaged, of something else, or cannot be read or written; exit code 125 where the machine is
    at fault, as for a full disk."""


@dataclass(frozen=True)
class Record:
    """A record as messages name it. ``called``: its kind, as in "the journal". ``elsewhere``: the way to have another;
    ``mend``: to have a damaged one mended, first. ``kind``: of the errors."""

    path: Path
    called: str
    elsewhere: str
    mend: str = ""
    kind: type[RecordError] = RecordError

    def __str__(self) -> str:
        return f"{self.called} {self.path}"

    def not_written(self, error: OSError, consequence: str = "") -> RecordError:
        """The error for what the system would not write."""
        return blamed(self.kind, f"cannot write {self}: {error.strerror}{consequence}; {self.elsewhere}", error)

    def damaged(self, error: ContentError) -> RecordError:
        """The error for content that was never written so."""
        hint = ", or ".join(filter(None, (self.mend, self.elsewhere)))
        return self.kind(f"{error.where or self.path}: {self.called} is damaged: {error.message}; {hint}")

    def write(self, plain: Any) -> None:
        """Replace the record by plain data, as JSON. Raises ``kind``."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, (json.dumps(plain, indent=1) + "\n").encode())
        except OSError as error:
            raise self.not_written(error) from None

    def read(self, limit: int) -> Item:
        """The JSON of at most ``limit`` bytes that it holds. Raises OSError, or ContentError with the line."""
        return parse_json(read_file(self.path, limit), str(self.path)).root
