"""Facts that several lines of a log tell together: a run ended well, accept lengths fell, ranks disagree.

Each is kept as a few numbers, whatever the size of the log.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from specdebug.logs.engine import compiled

MAX_VALUES = 1000
FEW = 2
"""Metrics in a row at the end of a log that must be low to tell of a drop."""

_METERS = {
    b"accept len: ": b"1.0",
    b"Mean acceptance length: ": b"1.0",
    b"draft acceptance rate = ": b"0.0",
    b"Draft acceptance rate: ": b"0.0",
}
"""Words before the metric, and how the number begins that says that no draft is accepted."""

_GREEN = compiled(
    rb"\b\d+ passed\b[^\n]* in \d[^\n]*|\bRan \d+ tests? in [^\n]*\n[^\n]*\n?(?:[^\n]*[ \t])?OK\b|"
    rb"\b100% tests passed\b|"
    rb"\[  PASSED  \] \d+ tests?\b|\btest result: ok\.|\bAll tests passed\b|^(?:\S+Z )?Success\. Time elapsed"
)
_GREEN_WORDS = (b" passed", b"PASSED", b"Ran ", b"test result: ok", b"Success. Time elapsed")
_NOT_GREEN = (b"failed", b"error")
_RED = compiled(rb"(?i:exit code|exited with(?: code)?|exit status)[: ]+[1-9]")
_RED_WORDS = (b"exit code", b"exit status", b"xited with")
_LIVES = (
    b"ready to roll", b"Application startup complete", b"server is listening", b'" 200 OK', b"Decode batch",
    b"generation throughput", b"all slots are idle", b"Connected",
)  # fmt: skip
"""Words of a server that serves."""
_LENGTH = compiled(rb"(?i:acc(?:ept(?:ance)?)?_len(?:gth)?)\w*['\"]?\s{0,3}[=:]\s{0,3}(\d+\.\d+)")
_LENGTH_WORDS = (b"accept_len", b"acc_len", b"acceptance_len")
_WORK = compiled(rb"(?:PG (?:ID|GUID|NAME)[ =:]?(\S+)[^\n]*)?WorkNCCL\(SeqNum=(\d+), OpType=(\w+), NumelIn=(\d+)")
_SIZED = compiled(
    rb"(?i:\b(?:tp|dp|rank)[ _:=\[]?(\d{1,4})\b[^\n]{0,80}?\b(all_?reduce|all_?gather|reduce_?scatter|broadcast)"
    rb"[^\n]{0,60}?\b(?:numel|count|nbytes|sizes?|elements|shape)[=: \[(]{1,8}([\d, ]*\d))"
)
_SIZED_WORDS = (
    b"all_reduce", b"all_gather", b"allreduce", b"allgather", b"AllReduce", b"AllGather", b"ALLREDUCE", b"ALLGATHER",
    b"reduce_scatter", b"broadcast",
)  # fmt: skip
WORDS = (*_SIZED_WORDS, *_METERS, *_GREEN_WORDS, *_RED_WORDS, *_LIVES, *_LENGTH_WORDS, b"NumelIn=")
"""One of these is in every line that is read here."""
_POINT_TO_POINT = frozenset({b"SEND", b"RECV", b"GATHER", b"SCATTER"})


@dataclass
class _Meter:
    """One metric: how many low ones there are in a row by now, and where that row began."""

    low: int = 0
    line: int = 0
    text: bytes = b""

    @property
    def fell(self) -> bool:
        return self.low >= FEW


@dataclass
class Notes:
    """The facts noted so far.

    Attributes:
        green: the last line that says that a test run passed; 0 where none does.
        red: whether a line says that a process ended with an error.
        alive: the last line that says that a server serves; 0 where none does.
        lengths: accept lengths that were printed, as printed.
        unlike: two ranks' sizes of one collective operation, where they differ.
    """

    green: int = 0
    red: bool = False
    alive: int = 0
    lengths: set[bytes] = field(default_factory=set)
    unlike: str = ""
    _last: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    _meters: dict[bytes, _Meter] = field(default_factory=dict)
    _works: dict[tuple[bytes, bytes, bytes], bytes] = field(default_factory=dict)

    def read(self, text: bytes, words: Set[bytes], lines: int) -> None:
        """Take in a block, which holds these ``words`` of ``WORDS`` and has so many lines before it."""
        if not words.isdisjoint(_GREEN_WORDS):
            for found in _GREEN.finditer(text):
                if not any(word in found[0] for word in _NOT_GREEN):
                    self.green = lines + 1 + text.count(b"\n", 0, found.end())
        if not self.red and not words.isdisjoint(_RED_WORDS):
            self.red = _RED.search(text) is not None
        for word in set(_LIVES) & words:
            self.alive = max(self.alive, lines + 1 + text.count(b"\n", 0, text.rfind(word)))
        if not words.isdisjoint(_LENGTH_WORDS) and len(self.lengths) < MAX_VALUES:
            self.lengths.update(found[1] for found in _LENGTH.finditer(text))
        for word in _METERS.keys() & words:
            self._measure(text, word, lines)
        if b"NumelIn=" in words and not self.unlike:
            self._compare(text)
        if not words.isdisjoint(_SIZED_WORDS) and len(self._last) < MAX_VALUES:
            self._last.update((found[1], (found[2].lower(), found[3])) for found in _SIZED.finditer(text))

    @property
    def apart(self) -> str:
        """In which collective operation, of which sizes, two ranks stand, if that is one operation of two sizes; else
        empty."""
        sizes = {size for _, size in self._last.values()}
        if self.unlike or len({what for what, _ in self._last.values()}) != 1 or len(sizes) < 2:
            return self.unlike
        what, one, other = next(iter(self._last.values()))[0], *sorted(sizes)[:2]
        return _told(what, one, other)

    @property
    def dropped(self) -> tuple[int, bytes] | None:
        """Where accept lengths fell to nothing and stayed there: the line's number and the line; None where not."""
        fell = [meter for meter in self._meters.values() if meter.fell]
        return (fell[0].line, fell[0].text) if fell else None

    def _measure(self, text: bytes, word: bytes, lines: int) -> None:
        meter = self._meters.setdefault(word, _Meter())
        all_of_it, low = text.count(word), text.count(word + _METERS[word])
        at = end = len(text)
        row = 0
        while row < low:  # from the end: how many are low in a row
            before = text.rfind(word, 0, end)
            if not text.startswith(_METERS[word], before + len(word)):
                break
            at = end = before
            row += 1
        whole = row == all_of_it
        if row and not (whole and meter.low):
            meter.line = lines + 1 + text.count(b"\n", 0, at)
            meter.text = text[text.rfind(b"\n", 0, at) + 1 :].split(b"\n", 1)[0][:2000]
        meter.low = meter.low + row if whole else row

    def _compare(self, text: bytes) -> None:
        for found in _WORK.finditer(text):
            key, size = (found[1] or b"", found[2], found[3]), found[4]
            if found[3] in _POINT_TO_POINT or len(self._works) >= MAX_VALUES:
                continue
            known = self._works.setdefault(key, size)
            if known != size:
                self.unlike = _told(found[3], known, size)
                return


def _told(what: bytes, one: bytes, other: bytes) -> str:
    words = (part.decode("ascii", "replace") for part in (what, one, other))
    return "{} of {} elements on one rank, of {} on another".format(*words)
