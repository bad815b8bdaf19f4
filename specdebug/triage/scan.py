"""Read a log once, whatever its size: in blocks, of which only those are looked at that hold a word of interest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from specdebug.triage.facts import Facts
from specdebug.triage.patterns import KIND_WORDS, WORDS, Strength, hits_in

BLOCK = 1 << 20
MAX_LINE = 20_000
"""Bytes of a line that are looked at, around the first word of interest."""
MAX_FINDINGS = 500
MAX_TEXT = 240
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TABLE = ("│", "┃")
"""In a line of a table of ours, whose cells may be folded: all it says is said elsewhere in full."""


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
    """What a log says. ``findings`` are in the order of their first lines."""

    lines: int = 0
    size: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    _weakest: int = field(default=len(Strength), repr=False, compare=False)

    @property
    def main(self) -> Finding | None:
        """The finding that names the failure: the first of the strongest kind of message there is."""
        return min(self.findings.values(), key=lambda found: (found.strength, found.line), default=None)

    def ranked(self) -> list[Finding]:
        """All findings, the strongest first."""
        return sorted(self.findings.values(), key=lambda found: (found.strength, found.line))

    def take(self, raw: bytes, number: int) -> None:
        """Look at a line."""
        line = _ESCAPES.sub("", raw.decode("utf-8", errors="replace")).rstrip().replace("-&gt;", "->")  # as XML has it
        if line.lstrip().startswith(_TABLE):
            return
        self.facts.read(line)
        for hit in hits_in(line):
            known = self.findings.get(hit.signature)
            if known is not None:
                known.count += 1
                if hit.strength < known.strength:
                    known.strength = hit.strength
            elif self._has_room(hit.strength):
                text = " ".join(line.split())[:MAX_TEXT]
                self.findings[hit.signature] = Finding(hit.signature, hit.strength, hit.means, number, text)

    def _has_room(self, strength: Strength) -> bool:
        """Whether a finding is kept; of too many, the last of the weakest gives way to a stronger one."""
        if len(self.findings) < MAX_FINDINGS:
            return True
        if strength >= self._weakest:  # as most are in a log of so many: what is kept only becomes stronger
            return False
        weakest = max(self.findings.values(), key=lambda found: (found.strength, found.line))
        self._weakest = weakest.strength
        if strength >= weakest.strength:
            return False
        del self.findings[weakest.signature]
        return True


def scan(stream: BinaryIO) -> Scan:
    """Read a log to its end. Bytes that are no text are nobody's error; memory does not grow with the log."""
    found = Scan()
    block = b"\n"
    for block in _blocks(stream):
        found.size += len(block)
        kinds = KIND_WORDS if b"@" in block else ()
        words = [word for word in (*kinds, *WORDS, *found.facts.wanted()) if word in block]
        if words:
            for number, line in enumerate(block.split(b"\n"), start=found.lines + 1):
                first = min((at for word in words if (at := line.find(word)) >= 0), default=None)
                if first is not None:
                    start = max(0, first - MAX_LINE // 2)
                    found.take(line[start : start + MAX_LINE], number)
        found.lines += block.count(b"\n")
    if not block.endswith(b"\n"):
        found.lines += 1
    return found


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Blocks that end with a line, but for the last and for lines that are longer than a block, which are cut."""
    rest = b""
    while chunk := stream.read(BLOCK):
        block = rest + chunk
        cut = block.rfind(b"\n") + 1 or (len(block) if len(block) >= 2 * BLOCK else 0)
        if cut:
            yield block[:cut]
        rest = block[cut:]
    if rest:
        yield rest
