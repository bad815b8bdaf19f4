"""The failures found in a log: each once, with its first line and the strongest way in which it is told."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specdebug.logs.around import Around
from specdebug.logs.hits import Hit, Strength
from specdebug.logs.notes import Notes
from specdebug.logs.raised import UNNAMED, accept_drop, compared_in
from specdebug.logs.rule import LogRule, printable

MAX_FINDINGS = 500
MAX_TEXT = 240
MAX_COMPLETED = 2000
"""Lines of a log of which the surroundings are looked at."""
_ABORT = "crash:SIGABRT"
_HANG = "hang"


@dataclass
class Finding:
    """One signature in a log: where it stood first and how often.

    ``last``: a line behind which it is not said again. ``over``: what came later says that it was overcome.
    """

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
        _name_the_test(found)
        _weigh(found, notes)
        return found


def _is_length(finding: Finding, notes: Notes) -> bool:
    """Return True if the number that an assertion found too small was printed as an accept length."""
    number = compared_in(finding.text.partition("AssertionError")[2].encode() or finding.text.encode())
    return len(number) > 2 and any(one.startswith(number) or number.startswith(one) for one in notes.lengths)


def _name_the_test(found: dict[str, Finding]) -> None:
    """Give an accept length that some test found too small the test's name, which stands in another line."""
    drop = found.get(accept_drop(""))
    test = next((one for one in found.values() if one.means == "test" and one.signature != UNNAMED), None)
    if drop is not None and test is not None:
        name = accept_drop(test.signature.rpartition("::")[2].partition("[")[0])
        drop.signature = name
        found[name] = found.pop(accept_drop(""))


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
