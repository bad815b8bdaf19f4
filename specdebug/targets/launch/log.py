"""The log of a server that was started here: its last line, and the failures that it names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdebug.errors import one_line
from specdebug.logs.hits import Strength
from specdebug.logs.scan import LogReader, Scan
from specdebug.targets.inside.words import facts_in

TAIL_BYTES = 8192


class ServerLog:
    """A file that a server writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._hits = self._all_hits()  # of runs before this one
        self._problems = self._all_problems()

    def last_line(self, without: str = "") -> str:
        """The last line that is not blank and does not hold ``without``, fit for one line of a terminal; empty where
        there is none."""
        lines = self._bytes(max(0, self._size() - TAIL_BYTES)).decode("utf-8", "replace").splitlines()
        return next(
            (one_line(line, 160) for line in reversed(lines) if line.strip() and not (without and without in line)), ""
        )

    def scan(self) -> Scan:
        """All that it says."""
        reader = LogReader(settings=False)
        reader.feed(self._bytes(0))
        return reader.close()

    def findings(self) -> Sequence[tuple[str, str]]:
        """Failures named by whole lines that came since the last call: the signature, and the line. Exceptions are
        none, for a server may well have handled them."""
        if self._size() <= self._read:
            return ()
        new = self._bytes(self._read)
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        reader = LogReader(settings=False)
        reader.feed(whole)
        ranked = reader.close().ranked()
        return [(found.signature, found.text) for found in ranked if found.strength <= Strength.DEATH]

    def hits(self) -> dict[str, dict[str, int]]:
        """By reverted fix, how often each edit has run in all processes of the engine since this was made; nothing of
        an engine that does not tell."""
        return {
            fix: {edit: count - self._hits.get(fix, {}).get(edit, 0) for edit, count in edits.items()}
            for fix, edits in self._all_hits().items()
        }

    def reached(self) -> dict[str, int]:
        """By probe site, how often it was passed in all processes of the engine since that was started."""
        every: Counter[str] = Counter()
        for told in self._last_told("reached"):
            every.update(told)
        return dict(every)

    def new_problems(self) -> Sequence[str]:
        """Broken laws of memory pools, each ``law: what``, that were told since the last call."""
        known, self._problems = set(self._problems), self._all_problems()
        return [each for each in self._problems if each not in known]

    def injections(self) -> list[dict[str, Any]]:
        """All that was told of faults, in order: ``ledger`` is the event, the rest are its fields."""
        lines = self._bytes(0).decode("utf-8", "replace").splitlines()
        told = [facts for line in lines if "ledger" in (facts := facts_in(line))]
        return [{name: each[name] for name in each if name != "pid"} for each in told]

    def last_with(self, words: str) -> str:
        """The last line that holds some words; empty where none does."""
        lines = self._bytes(0).decode("utf-8", "replace").splitlines()
        return next((one_line(line, 240) for line in reversed(lines) if words in line), "")

    def _all_problems(self) -> list[str]:
        lines = self._bytes(0).decode("utf-8", "replace").splitlines()
        return [facts["law"] for line in lines if "law" in (facts := facts_in(line))]

    def _last_told(self, name: str) -> list[dict[str, Any]]:
        """What each process last said of something."""
        last = {}
        for line in self._bytes(0).decode("utf-8", "replace").splitlines():
            if name in (facts := facts_in(line)):
                last[facts["pid"]] = facts[name]
        return list(last.values())

    def _all_hits(self) -> dict[str, dict[str, int]]:
        every: dict[str, dict[str, int]] = {}
        for told in self._last_told("hits"):
            for fix, edits in told.items():
                counts = every.setdefault(fix, {})
                for edit, count in edits.items():
                    counts[edit] = counts.get(edit, 0) + count
        return every

    def _size(self) -> int:
        try:
            return os.path.getsize(self.path)
        except OSError:
            return 0

    def _bytes(self, start: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(start)
                return file.read()
        except OSError:
            return b""
