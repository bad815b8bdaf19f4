"""The failures found in a log: each once, with its first line and the strongest way in which it is told; and what
several lines tell together, such as that accept lengths fell, kept as a few numbers whatever the size of the log."""

import operator
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field

from specdebug.logs.around import Around
from specdebug.logs.patterns import compiled
from specdebug.logs.raised import UNNAMED, accept_drop, compared_in
from specdebug.logs.rule import Hit, LogRule, Strength, printable

MAX_VALUES = 1000
FEW = 2  # metrics in a row at the end of a log that must be low to tell of a drop

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
NOTE_WORDS = (*_SIZED_WORDS, *_METERS, *_GREEN_WORDS, *_RED_WORDS, *_LIVES, *_LENGTH_WORDS, b"NumelIn=")
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
        """Take in a block, which holds these ``words`` of ``NOTE_WORDS`` and has so many lines before it."""
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
        for found in _WORK.finditer(text) if b"NumelIn=" in words and not self.unlike else ():
            key, size = (found[1] or b"", found[2], found[3]), found[4]
            if found[3] not in _POINT_TO_POINT and len(self._works) < MAX_VALUES:
                known = self._works.setdefault(key, size)
                if known != size:
                    self.unlike = _told(found[3], known, size)
                    break
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


def _told(what: bytes, one: bytes, other: bytes) -> str:
    words = (part.decode("ascii", "replace") for part in (what, one, other))
    return "{} of {} elements on one rank, of {} on another".format(*words)


MAX_FINDINGS = 500
MAX_TEXT = 240
MAX_COMPLETED = 2000  # lines of a log of which the surroundings are looked at
_ABORT = "crash:SIGABRT"
_HANG = "hang"


@dataclass
class Finding:
    """One signature in a log: where it stood first and how often. ``last``: a line behind which it is not said again.
    ``over``: what came later says that it was overcome."""

    signature: str
    strength: Strength
    means: str
    line: int
    text: str
    count: int = 1
    last: int = 0
    over: bool = False

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        names = ("signature", "means", "strength", "line", "count", "text")
        return {name: getattr(self, name) for name in names} | {"strength": self.strength.name.lower()}


RANK = operator.attrgetter("over", "strength", "line")


class FoundFailures:
    """The findings so far, at most ``MAX_FINDINGS``: of too many the last of the weakest give way."""

    def __init__(self) -> None:
        self._by_key: dict[str, Finding] = {}
        """By what the line alone says, so that one failure in two processes is one; by its whole name where the line
        says too little."""
        self._weakest = len(Strength)
        self._completed = 0

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._by_key.values())

    def add(
        self, rule: LogRule, hit: Hit, number: int, line: bytes, at: int, count: int, around: Callable[[], Around]
    ) -> None:
        """Take in a line that a rule has named, of which there are so many."""
        key, vague = hit.signature, hit.vague
        if (
            rule.complete is not None
            and self._completed < MAX_COMPLETED
            and (key in self._by_key or self._has_room(hit.strength, spare=True))
        ):
            self._completed += 1
            hit = rule.complete(hit, around())
            key = hit.signature if vague else key
        known = self._by_key.get(key)
        if known is None:
            if self._has_room(hit.strength):
                self._by_key[key] = Finding(
                    hit.signature, hit.strength, hit.means, number, excerpt(line, at), count, number
                )
            return
        known.count += count
        known.last = max(known.last, number)
        more = hit.strength < known.strength
        if rule.complete is not None and (more or ("@" in hit.signature) > ("@" in known.signature)):
            known.signature, known.means = hit.signature, hit.means
        if number < known.line or (more and rule.complete is not None):
            known.line, known.text = number, excerpt(line, at)
        known.strength = min(hit.strength, known.strength)

    def _has_room(self, strength: Strength, *, spare: bool = False) -> bool:
        """Return True if a finding may be kept; unless ``spare`` is asked about, one that is too many then goes."""
        if len(self._by_key) < MAX_FINDINGS:
            return True
        if strength >= self._weakest:  # as most are in a log of so many: what is kept only becomes stronger
            return False
        key, weakest = max(self._by_key.items(), key=lambda item: RANK(item[1]))
        self._weakest = weakest.strength
        if strength >= weakest.strength:
            return False
        if not spare:
            del self._by_key[key]
        return True

    def settle(self, notes: Notes) -> dict[str, Finding]:
        """Return all findings by signature, each as what the log tells elsewhere makes it."""
        for finding in self:
            if finding.means == "assert" and _is_length(finding, notes):
                finding.signature, finding.means = accept_drop(finding.signature.partition("@")[2]), "accept-drop"
            if notes.apart and finding.signature.startswith(_HANG):
                finding.signature, finding.text = (
                    f"{_HANG}@collective.size_mismatch",
                    f"{notes.apart} ({finding.text})"[:MAX_TEXT],
                )
        found: dict[str, Finding] = {}
        for finding in sorted(self, key=RANK):
            if first := found.get(finding.signature):
                first.count += finding.count
                first.last = max(first.last, finding.last)
            else:
                found[finding.signature] = finding
        if notes.dropped is not None:
            line, text = notes.dropped
            found.setdefault(
                "accept-drop@metrics",
                Finding("accept-drop@metrics", Strength.SAID, "accept-drop", line, excerpt(text, 0), 1, line),
            )
        drop = found.get(accept_drop(""))
        test = next((one for one in found.values() if one.means == "test" and one.signature != UNNAMED), None)
        if drop is not None and test is not None:  # the name of the test stands in another line
            drop.signature = accept_drop(test.signature.rpartition("::")[2].partition("[")[0])
            found[drop.signature] = found.pop(accept_drop(""))
        _weigh(found, notes)
        return found


def _is_length(finding: Finding, notes: Notes) -> bool:
    """Return True if the number that an assertion found too small was printed as an accept length."""
    number = compared_in(finding.text.partition("AssertionError")[2].encode() or finding.text.encode())
    return len(number) > 2 and any(one.startswith(number) or number.startswith(one) for one in notes.lengths)


def _weigh(found: dict[str, Finding], notes: Notes) -> None:
    """Mark what was overcome, and leave out what another finding says better."""
    tests = [finding for finding in found.values() if finding.strength in (Strength.TEST, Strength.REPORTED)]
    if len(tests) > 1:
        found.pop(UNNAMED, None)
    hangs = any(name.startswith(_HANG) and one.strength <= Strength.LEFT for name, one in found.items())
    if hangs and _ABORT in found:  # a watchdog ends the process that way
        found[_ABORT].strength = Strength.MENTION
    failed = notes.red or bool(tests)
    for finding in found.values():
        passed = not failed and finding.strength > Strength.DEATH and finding.last < notes.green
        mended = finding.strength is Strength.MENTION and not failed and (finding.last < notes.alive or notes.green > 0)
        finding.over = passed or mended


def excerpt(line: bytes, at: int) -> str:
    """A line, or of a long one the part around what was found."""
    begin = 0 if at < MAX_TEXT else at - MAX_TEXT // 4
    return " ".join(printable(line[begin : begin + 4 * MAX_TEXT].replace(b"\t", b" ")).split())[:MAX_TEXT]
