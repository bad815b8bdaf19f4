"""Read a log once, whatever its size, in time linear in its bytes.

It is read in blocks. One pass over a block tells which rules' words are in it; in most of a server's log none are. Of
the others, lines that differ in digits only (times, addresses, process numbers) are taken together, every rule that may
be in the block runs over them once, the strongest first, and a line that a rule has named is not named again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress
from typing import BinaryIO

from specdebug.logs.engine import Pattern, bounded, word_finder
from specdebug.logs.facts import Facts
from specdebug.logs.hits import Hit, Strength
from specdebug.logs.rules import FINDERS, RULES, LogRule, named, printable

BLOCK = 1 << 20
MAX_FINDINGS = 500
MAX_TEXT = 240
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]{0,32}[A-Za-z]")
_CONTROL = bytes(code for code in (*range(32), 127) if code not in b"\t\n\r")
_TABLE = ("│".encode(), "┃".encode())
"""In a line of a table of ours, whose cells may be folded: all it says is said elsewhere in full."""
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)

_WORDS = tuple(dict.fromkeys(word for rule in RULES for word in rule.words))
_WORDS_IN = word_finder(_WORDS)
_RULES_OF = [[place for place, rule in enumerate(RULES) if word in rule.words] for word in _WORDS]


@dataclass
class Finding:
    """One signature in a log: where it stood first and how often."""

    signature: str
    strength: Strength
    means: str
    line: int
    text: str
    count: int = 1

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        return {
            "signature": self.signature,
            "means": self.means,
            "strength": self.strength.name.lower(),
            "line": self.line,
            "count": self.count,
            "text": self.text,
        }


@dataclass
class Scan:
    """What a log says."""

    lines: int = 0
    size: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)

    @property
    def main(self) -> Finding | None:
        """The finding that names the failure: the first of the strongest kind of message there is."""
        return min(self.findings.values(), key=lambda found: (found.strength, found.line), default=None)

    def ranked(self) -> list[Finding]:
        """All findings, the strongest first."""
        return sorted(self.findings.values(), key=lambda found: (found.strength, found.line))


class LogReader:
    """Reads a log that comes in pieces; ``scan`` is what is known so far. Memory does not grow with the log.

    Args:
        settings: whether to read ``scan.facts`` as well.
    """

    def __init__(self, *, settings: bool = True) -> None:
        self.scan = Scan()
        self._settings = settings
        self._weakest = len(Strength)
        self._rest = bytearray()
        self._searched = 0
        self._ended = True

    def feed(self, data: bytes) -> None:
        """Take in a piece, of whatever length."""
        self._rest += data
        while len(self._rest) >= BLOCK:
            cut = self._rest.rfind(b"\n", self._searched, 2 * BLOCK) + 1
            if not cut:
                self._searched = len(self._rest)  # pieces may be small: what has no newline is looked at once
                if len(self._rest) < 2 * BLOCK:
                    return
                cut = 2 * BLOCK  # a line longer than that is read as several
            block = bytes(self._rest[:cut])
            del self._rest[:cut]
            self._searched = 0
            self._read(block)

    def close(self) -> Scan:
        """Read what is left, and return what all of it says."""
        if self._rest:
            block = bytes(self._rest)
            self._rest.clear()
            self._read(block)
        if not self._ended:
            self.scan.lines += 1
        self._ended = True
        return self.scan

    def _read(self, block: bytes) -> None:
        self.scan.size += len(block)
        text = _tidied(block)
        if self._settings:
            self.scan.facts.read(bounded(text))
        due = sorted({place for word in _WORDS_IN(text) for place in _RULES_OF[word]})
        if due:
            _Block(bounded(text, _WORDS), self._keep).look(due)
        self.scan.lines += block.count(b"\n")
        self._ended = block.endswith(b"\n")

    def _keep(self, hit: Hit, place: int, line: bytes, at: int, count: int) -> None:
        findings, number = self.scan.findings, self.scan.lines + 1 + place
        known = findings.get(hit.signature)
        if known is not None:
            known.count += count
            if hit.strength < known.strength:
                known.strength = hit.strength
            if number < known.line:
                known.line, known.text = number, _excerpt(line, at)
        elif self._has_room(hit.strength):
            excerpt = _excerpt(line, at)
            findings[hit.signature] = Finding(hit.signature, hit.strength, hit.means, number, excerpt, count)

    def _has_room(self, strength: Strength) -> bool:
        """Whether a finding is kept; of too many, the last of the weakest gives way to a stronger one."""
        if len(self.scan.findings) < MAX_FINDINGS:
            return True
        if strength >= self._weakest:  # as most are in a log of so many: what is kept only becomes stronger
            return False
        weakest = max(self.scan.findings.values(), key=lambda found: (found.strength, found.line))
        self._weakest = weakest.strength
        if strength >= weakest.strength:
            return False
        del self.scan.findings[weakest.signature]
        return True


def scan(stream: BinaryIO, progress: Callable[[int], None] | None = None) -> Scan:
    """Read a log to its end. Bytes that are no text are nobody's error.

    Args:
        progress: is told after every block how many bytes were read.
    """
    reader = LogReader()
    size = 0
    while data := stream.read(BLOCK):
        reader.feed(data)
        size += len(data)
        if progress is not None:
            progress(size)
    return reader.close()


def scan_bytes(log: bytes) -> Scan:
    """Read a log that is in memory."""
    reader = LogReader()
    reader.feed(log)
    return reader.close()


def _tidied(block: bytes) -> bytes:
    """Lines without colours, other control characters, and what XML makes of an arrow."""
    if b"\x1b" in block:
        block = _ESCAPES.sub(b"", block)
    return block.translate(None, _CONTROL).replace(b"\r\n", b"\n").replace(b"-&gt;", b"->")


class _Block:
    """The lines of one block, those together that differ in digits only.

    Args:
        keep: is told what a line tells of, its place in the block, the line, where in it, and how many lines do so.
    """

    def __init__(self, text: bytes, keep: Callable[[Hit, int, bytes, int, int], None]) -> None:
        self._lines = text.split(b"\n")
        self._keep = keep
        self._tables = any(mark in text for mark in _TABLE)
        places: dict[bytes, list[int]] = {}
        for place, alike in enumerate(text.translate(_DIGITS_ALIKE).split(b"\n")):
            places.setdefault(alike, []).append(place)
        self._kinds = list(places)
        self._places = list(places.values())

    def look(self, due: Sequence[int]) -> None:
        """Run rules over the lines, the strongest first."""
        for number in due:
            self._look(RULES[number], FINDERS[number])

    def _look(self, rule: LogRule, finder: Pattern) -> None:
        kinds, places = self._kinds, self._places
        starts = [0, *accumulate(len(kind) + 1 for kind in kinds)]
        for found in finder.finditer(b"\n".join(kinds)):
            begin = found.start()
            number = bisect_right(starts, begin) - 1
            if self._tables and kinds[number].lstrip().startswith(_TABLE):
                places[number] = []
            else:
                places[number] = self._left(rule, kinds[number], places[number], begin - starts[number])
        if not all(places):
            self._kinds = list(compress(kinds, places))
            self._places = list(filter(None, places))

    def _left(self, rule: LogRule, kind: bytes, places: list[int], at: int) -> list[int]:
        """Keep what a rule that was found at ``at`` says of lines of a kind; returns those of which it says nothing."""
        if len(places) == 1:
            line = self._lines[places[0]]
            hits = named(rule, line, at)
            for hit in hits:
                self._keep(hit, places[0], line, at, 1)
            return [] if hits else places
        if not rule.numbers:
            hits = named(rule, kind, at)
            if all("0" not in hit.signature for hit in hits):
                for hit in hits:
                    self._keep(hit, places[0], self._lines[places[0]], at, len(places))
                return [] if hits else places
        left = []
        told: dict[bytes, Sequence[Hit]] = {}
        for place in places:
            line = self._lines[place]
            own = told.get(line)
            if own is None:
                own = told[line] = named(rule, line, at)
            for hit in own:
                self._keep(hit, place, line, at, 1)
            if not own:
                left.append(place)
        return left


def _excerpt(line: bytes, at: int) -> str:
    """A line, or of a long one the part around what was found."""
    begin = 0 if at < MAX_TEXT else at - MAX_TEXT // 4
    return " ".join(printable(line[begin : begin + 4 * MAX_TEXT].replace(b"\t", b" ")).split())[:MAX_TEXT]
