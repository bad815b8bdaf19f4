"""Read a log once, whatever its size, in time linear in its bytes.

It is read in blocks. One pass over a block tells which rules' words are in it; in most of a server's log none are. Of
the others, lines that differ in digits only (times, addresses, process numbers) are taken together, every rule that may
be in the block runs over them once, the strongest first, and a line that a rule has named is not named again.
"""

import re
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress, islice
from typing import BinaryIO

from specdebug.logs.around import LOOKED_AT, REACH, Around
from specdebug.logs.facts import FACT_WORDS, Facts
from specdebug.logs.findings import NOTE_WORDS, RANK, Finding, FoundFailures, Notes
from specdebug.logs.patterns import Pattern, bounded, word_finder
from specdebug.logs.rule import Hit, LogRule
from specdebug.logs.rules import FINDERS, RULES, died_of, named

BLOCK = 1 << 20
MAX_NAMED = 1000
"""Different lines of one block that one rule names. Weaker rules do not look at the lines that follow them."""
MAX_ALIKE = 8
"""Equal lines of one block of which each is looked at with what stands around it, where the line alone is vague."""
MAX_ASKED = 3000  # different lines of one block that one rule finds and tries to name
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]{0,32}[A-Za-z]")
_CONTROL = bytes(code for code in (*range(32), 127) if code not in b"\t\n\r")
_TABLE = ("│".encode(), "┃".encode())
"""The marks of our own tables, whose cells may be folded: their signatures stand elsewhere in full."""
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)

_RULE_WORDS = tuple(dict.fromkeys(word for rule in RULES for word in rule.words))
_WORDS = tuple(dict.fromkeys((*_RULE_WORDS, *FACT_WORDS, *NOTE_WORDS)))
_WORDS_IN = word_finder(_WORDS)
_RULES_OF = {word: [number for number, rule in enumerate(RULES) if word in rule.words] for word in _WORDS}


@dataclass
class Scan:
    """The findings and the facts of a log."""

    lines: int = 0
    size: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)

    @property
    def main(self) -> Finding | None:
        """The finding that names the failure: the first of the strongest kind of message there is; None where nothing
        was found, or all of it was overcome."""
        return next((finding for finding in self.ranked() if not finding.over), None)

    def ranked(self) -> list[Finding]:
        """All findings, the strongest first, and behind them what was overcome."""
        return sorted(self.findings.values(), key=RANK)


class LogReader:
    """Reads a log that comes in pieces into ``scan``. Memory does not grow with the log. ``settings``: read
    ``scan.facts`` as well."""

    def __init__(self, *, settings: bool = True) -> None:
        self.scan = Scan()
        self._settings = settings
        self._findings = FoundFailures()
        self._notes = Notes()
        self._before: list[bytes] = []  # the last lines of the block before
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
            self._searched = 0
            self._read(cut)

    def close(self) -> Scan:
        """Read the rest, and return the scan of the whole log."""
        if self._rest:
            self._read(len(self._rest))
        self.scan.lines += not self._ended
        self._ended = True
        self.scan.findings = self._findings.settle(self._notes)
        return self.scan

    def _read(self, cut: int) -> None:
        """Read the rest up to ``cut``."""
        block = bytes(self._rest[:cut])
        del self._rest[:cut]
        self.scan.size += cut
        text = _tidied(block)
        words = {_WORDS[number] for number in _WORDS_IN(text)}
        if self._settings and not words.isdisjoint(FACT_WORDS):
            self.scan.facts.read(bounded(text), words)
        due = sorted({number for word in words for number in _RULES_OF[word]})
        if not words.isdisjoint(NOTE_WORDS):
            self._notes.read(text, words, self.scan.lines)
        if due:
            _Block(bounded(text, _RULE_WORDS), self._before, self.scan.lines, self._findings).look(due)
        self._before = text[-REACH * LOOKED_AT :].rsplit(b"\n", REACH)[1:] if cut >= BLOCK else []
        self.scan.lines += block.count(b"\n")
        self._ended = block.endswith(b"\n")


def scan(stream: BinaryIO, progress: Callable[[int], None] | None = None) -> Scan:
    """Read a log to its end; any bytes will do. ``progress`` gets the number of bytes read after every block."""
    reader, size = LogReader(), 0
    while data := stream.read(BLOCK):
        reader.feed(data)
        size += len(data)
        if progress is not None:
            progress(size)
    return reader.close()


def scan_bytes(log: bytes, *, settings: bool = True) -> Scan:
    """Read a log that is in memory; ``settings``: its facts, too."""
    reader = LogReader(settings=settings)
    reader.feed(log)
    return reader.close()


def _tidied(block: bytes) -> bytes:
    """Lines without colours and other control characters, and with XML's ``-&gt;`` as an arrow; where a record holds a
    whole traceback, tabs stand for the ends of its lines."""
    if b"\\n  File " in block:
        block = block.replace(b"\\n", b"\t").replace(b'\\"', b'"')
    if b"\x1b" in block:
        block = _ESCAPES.sub(b"", block)
    return block.translate(None, _CONTROL).replace(b"\r\n", b"\n").replace(b"-&gt;", b"->")


class _Block:
    """The lines of one block, those together that differ in digits only: they are of one *kind*.

    The interpreter's own loops (``split``, ``Counter``, ``zip``) run over all lines, and only where a rule found
    something. Python code runs for lines that are named, and a rule names so many and no more.

    Args:
        text: the block.
        above: the last lines of the block before.
        lines: the number of lines before the block.
        findings: gets what is found.
    """

    def __init__(self, text: bytes, above: Sequence[bytes], lines: int, findings: FoundFailures) -> None:
        self._text = text
        self._above = above
        self._first = lines + 1
        self._findings = findings
        self._tables = any(mark in text for mark in _TABLE)
        self._left: dict[bytes, list[bytes]] = {}  # of kinds of which some lines are named, the others

    @cached_property
    def _lines(self) -> list[bytes]:
        """The lines of the block, behind those above it."""
        return [*self._above, *self._text.split(b"\n")]

    @cached_property
    def _counts(self) -> Counter[bytes]:
        """The count of each line, in the order in which the lines come up."""
        return Counter(self._text.split(b"\n"))

    @cached_property
    def _place(self) -> dict[bytes, int]:
        """The first place of each line."""
        lines = self._text.split(b"\n")
        return dict(zip(reversed(lines), range(len(lines) - 1, -1, -1), strict=True))

    @cached_property
    def _kind_of(self) -> dict[bytes, bytes]:
        """The kind of each line, the lines in the order in which they come up."""
        return dict(zip(self._counts, _alike(b"\n".join(self._counts)).split(b"\n"), strict=True))

    @cached_property
    def _one(self) -> dict[bytes, bytes]:
        """A line of each kind, the kinds in the order in which they come up: of several lines the last."""
        return {kind: line for line, kind in self._kind_of.items()}

    @cached_property
    def _several(self) -> dict[bytes, list[bytes]]:
        """The lines of each kind of which there are several, in the order in which they come up."""
        counts = Counter(self._kind_of.values())
        found: dict[bytes, list[bytes]] = {kind: [] for kind, count in counts.items() if count > 1}
        if found:
            for line, kind in self._kind_of.items():
                if kind in found:
                    found[kind].append(line)
        return found

    def look(self, due: Sequence[int]) -> None:
        """Run rules over the lines, the strongest first."""
        kinds: list[bytes] | None = None
        text = _alike(self._text)
        for number in due:
            if FINDERS[number].search(text) is not None:
                kinds = self._look(RULES[number], FINDERS[number], list(self._one) if kinds is None else kinds)
                text = b"\n".join(kinds)

    def _look(self, rule: LogRule, finder: Pattern, kinds: list[bytes]) -> list[bytes]:
        """Run a rule over kinds of lines, and return those that weaker rules are to look at."""
        text = b"\n".join(kinds)
        number = end = 0
        room = MAX_NAMED
        weaker = bytearray(b"\1") * len(kinds)
        for found in islice(finder.finditer(text), MAX_ASKED):
            begin = found.start()
            number += text.count(b"\n", end, begin)
            start = text.rfind(b"\n", end, begin) + 1
            end = found.end()
            kind = kinds[number]
            if self._tables and kind.lstrip().startswith(_TABLE):
                weaker[number] = 0
                continue
            told, all_told = self._name(rule, kind, begin - start, room)
            room -= told
            weaker[number] = not all_told
            if room <= 0:  # what follows may be this rule's: a weaker one would name it wrongly
                del kinds[number + 1 :]
                break
        return list(compress(kinds, weaker))

    def _name(self, rule: LogRule, kind: bytes, at: int, room: int) -> tuple[int, bool]:
        """Keep the hits of a rule that was found at ``at`` in the lines of a kind. Returns the number of different
        lines that it named, and False if weaker rules are to look at others of them."""
        lines = self._left.get(kind) or self._several.get(kind) or (self._one[kind],)
        if len(lines) > 1 and not rule.numbers:
            hits = named(rule, kind, at)
            if all("0" not in hit.signature for hit in hits):
                count = sum(map(self._counts.__getitem__, lines)) if hits else 0
                for hit in hits:
                    self._keep(rule, hit, lines[0], at, count)
                return bool(hits), bool(hits)
        left = []
        told = 0
        for line in lines:
            hits = named(rule, line, at)
            for hit in hits:
                self._keep(rule, hit, line, at, self._counts[line])
            if not hits:
                left.append(line)
            elif (told := told + 1) >= room:
                return told, True
        if left:
            self._left[kind] = left
        return told, not left

    def _keep(self, rule: LogRule, hit: Hit, line: bytes, at: int, count: int) -> None:
        """Keep a hit of a line, of which there are so many; of a vague one some of these lines, each for itself."""
        places = self._places(line, count) if hit.vague and count > 1 else [self._place[line]]
        for place in places:
            some = count - len(places) + 1 if place == places[0] else 1
            around = partial(Around, self._lines, len(self._above) + place, at)
            self._findings.add(rule, hit, self._first + place, line, at, some, around)

    def _places(self, line: bytes, count: int) -> list[int]:
        """The first places of a line that comes up more than once."""
        lines, found = self._lines, [self._place[line]]
        while len(found) < min(count, MAX_ALIKE):
            try:
                found.append(lines.index(line, len(self._above) + found[-1] + 1) - len(self._above))
            except ValueError:  # the others of so many differ in digits
                break
        return found


def _alike(text: bytes) -> bytes:
    """Lines with every digit as a zero."""
    return text.translate(_DIGITS_ALIKE)


REVISION = "names 4"

HANG = "hang"
_LITTLE = ("exit:", "signal:", "error:", "assert:", "test:", "panic:", "crash:SIGKILL", "crash:SIGTERM")


def name_of(log: Scan, status: int) -> str:
    """Name the failure of a command: the strongest signature of its output and of the signal that ended it, else
    ``exit:1``.

    Args:
        log: the scan of its whole output.
        status: its exit status; negative for the signal that killed it, 128 + n where a shell says that of signal n.
    """
    main, died = log.main, died_of(status)
    if died is None and main is not None:
        return main.signature
    if died is not None:  # a watchdog ends its process by an abort after a hang
        watched = main is not None and died.signature == "crash:SIGABRT" and main.signature.startswith(HANG)
        return main.signature if main is not None and (watched or main.strength <= died.strength) else died.signature
    if status >= 0:
        return f"exit:{status}"
    try:
        return f"signal:{signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"signal:{-status}"


def tells_of_damage(signature: str) -> bool:
    """Return False for a name that only says that an exception, a test, a kill or an exit code ended the run, however
    precisely."""
    return not signature.startswith(_LITTLE)


_TRACEBACK = "Traceback (most recent call last):"
_LEVELS = {"CRITICAL", "DEBUG", "ERROR", "INFO", "WARN", "WARNING"}
_AFTER = {
    "BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError", "KeyboardInterrupt", "SystemExit",
}  # fmt: skip
"""What is raised where another process has ended, or was told to."""
_LINES = 400  # most lines of one traceback


def last_words(text: str) -> str:
    """Return the last exception that some process ended with, not of another one's end; else the line that names the
    failure best; else the last line; empty of a log that says nothing."""
    lines = text.splitlines()
    found = (_exception(lines, at) for at, line in enumerate(lines) if _TRACEBACK in line)
    ended = [line for line in found if line]
    own = [line for line in ended if _raised(line).rpartition(".")[2] not in _AFTER]
    if own or ended:
        return (own or ended)[-1]
    main = scan_bytes(text.encode(), settings=False).main
    if main is not None:
        return main.text
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _exception(lines: Sequence[str], at: int) -> str:
    """The line behind the traceback that begins at a line; empty where it has no end. What stands before each line of a
    record, as vLLM's log has it, is left out."""
    head = lines[at].partition(_TRACEBACK)[0]
    for line in lines[at + 1 : at + 1 + _LINES]:
        own = line.removeprefix(head)
        if _raised(own):
            return own.strip()
        if _TRACEBACK in line:
            return ""
    return ""


def _raised(line: str) -> str:
    """The exception that a line begins with, with its module; empty of any other line."""
    name, colon, rest = line.rstrip().partition(":")
    named = name not in _LEVELS and all(part.isidentifier() for part in name.split("."))
    return name if named and (not colon or rest[:1] in ("", " ")) else ""
