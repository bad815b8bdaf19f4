"""The rules by which a line of a log tells of a failure.

A line may be ours, an engine's, torch's, CUDA's, pytest's or a shell's. A :class:`LogRule` finds lines, and names what
they tell of as a :class:`Hit` with a signature in our own form, ``kind@site``, so that it can be compared with what
scenarios and toggles state, or for exceptions and assertions ``kind:words@place``. Here are the rules for what we and
SGLang's probes print, and the order of all; ``checks.py`` and ``raised.py`` have the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdebug import async_probe
from specdebug.async_probe import parse_message
from specdebug.logs.checks import CHECKS, DEATHS, HANGS, LEFT, SLOW
from specdebug.logs.patterns import compiled, line_finder
from specdebug.logs.raised import QUOTED, RAISED, TESTS
from specdebug.logs.rule import KINDS, Hit, LogRule, Strength, placed, printable, slug

MAX_SIGNATURE = 240
"""Characters of a signature of ours at most."""

# Our own signatures: verdicts, probes' messages, anything that prints kind@site.

_AHEAD = rb"(?:^|[^\n\w.@:/+-])"
_SITED = rb"(?:" + b"|".join(kind.encode() for kind in KINDS) + rb")@"
_PLACE = rb"[\w.:/\[\]>-]"
_OWN = compiled(_AHEAD + rb"(" + _SITED + _PLACE + rb"+(?: of arena)?|crash:SIG[A-Z]+)([*@?])?")
_BARE = compiled(rb"(?:\bfail |\"signature\": \"|message=\")((?:hang|oom)\b)@?")
_MAIL = compiled(rb"@[\w-]+\.(?:com|org|net|io|dev|cn|de)\b")
_BARE_WORDS = tuple(before + word for before in (b"fail ", b' "', b'="') for word in (b"hang", b"oom"))
_JUDGED = (b"fail ", b'"signature": "')


def _own(line: bytes, at: int) -> list[Hit]:
    hits = []
    bare = _BARE.finditer(line) if b"hang" in line or b"oom" in line else ()
    for found in (*_OWN.finditer(line), *bare):
        raw: bytes = found[1]
        behind = line[found.end() - 1 : found.end()]
        name = _site_of(raw)
        if behind in (b"*", b"@", b"?") or name.endswith("@") or len(name) > MAX_SIGNATURE or _MAIL.search(raw):
            continue
        begun = line[: found.start() + found[0].index(raw)]
        strength = Strength.VERDICT if begun.endswith(_JUDGED) else Strength.NAMED
        hits.append(Hit(name, strength, name.replace(":", "@").partition("@")[0]))
    return hits


def _site_of(raw: bytes) -> str:
    """A signature without an arrow that leads nowhere or the end of a sentence."""
    arena = " of arena"
    name, buried = printable(raw), raw.endswith(b"->end" + arena.encode())
    head, arrow, tail = name.removesuffix(arena).partition("->")
    if ">" in head:
        return head.partition(">")[0].rstrip(".:,-")
    tail = tail.partition("->")[0].partition(">")[0].rstrip(".:,-")
    if not tail:
        return head.rstrip(".:,-")
    return f"{head}{arrow}{tail}{arena if buried else ''}"


def _probe(line: bytes, at: int) -> list[Hit]:
    found = parse_message(printable(line))
    return [] if found is None else [Hit(found.signature, Strength.NAMED, found.kind)]


# SGLang's asynchronous asserts, in its own words.

_UPSTREAM = (
    ("nan", rb"NaN detected! ?([^\n]*)", b"NaN detected!"),
    ("inf", rb"Inf detected! ?([^\n]*)", b"Inf detected!"),
    ("oob", rb"OOB indices not in \[[^)\]\n]*[)\]]: ([^\n]*)", b"OOB indices"),
    ("oob", rb"index (?:<|>=) -?\d+ \((?:negative|out of range)[^)\n]*\): ([^\n]*)", b"index "),
    ("oob", rb"value outside \[[^\]\n]*\]: ([^\n]*)", b"value outside ["),
    ("page_aligned", rb"page-misaligned indices \(page_size=\d+\): ([^\n]*)", b"page-misaligned"),
)


def _probe_site(data: bytes) -> str:
    return slug(printable(data).partition(" failed")[0].rstrip("`'\" "))


RULES: tuple[LogRule, ...] = (
    LogRule((b"async probe ",), (rb"async probe (?:%b)@[^\s:`'\"]" % "|".join(async_probe.KINDS).encode(),), _probe),
    LogRule(
        (*(f"{kind}@".encode() for kind in KINDS), b"crash:SIG", *_BARE_WORDS),
        (
            _AHEAD + _SITED + _PLACE,
            rb"(?:^|[^\n\w:])crash:SIG[A-Z]",
            rb"(?:\bfail |\"signature\": \"|message=\")(?:hang|oom)\b",
        ),
        _own,
    ),
    *(placed(f"{kind}@", Strength.PROBE, (word,), pattern, _probe_site) for kind, pattern, word in _UPSTREAM),
    *CHECKS,
    *DEATHS,
    *HANGS,
    *SLOW,
    *RAISED,
    *LEFT,
    *TESTS,
    *QUOTED,
)
"""Every rule, the strongest first; the first that names something of a line has the line."""

FINDERS = tuple(line_finder(rule.patterns) for rule in RULES)
"""The finders of each rule's lines."""
REACH = 16_384
"""Bytes of a line that a rule sees, from a little before the place where it was found."""
AHEAD = 256
"""Bytes of these that lie before that place."""


def named(rule: LogRule, line: bytes, at: int) -> Sequence[Hit]:
    """The hits of a rule that was found at ``at`` in a line, of which it sees ``REACH`` bytes around that place."""
    if len(line) <= REACH:
        return rule.name(line, at)
    begin = max(0, at - AHEAD)
    return rule.name(line[begin : begin + REACH], at - begin)
