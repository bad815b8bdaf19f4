"""The rules by which a line of a log tells of a failure.

A line may be ours, SGLang's, torch's, CUDA's, pytest's or a shell's. A :class:`LogRule` finds lines, and names what
they tell of as a :class:`Hit` with a signature in our own form, ``kind@site``, so that it can be compared with what
scenarios and toggles state. ``tests/logs`` holds real lines.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from specdebug import async_probe
from specdebug.async_probe import parse_message
from specdebug.logs.device import ASSERTION, FAULT_WORDS, FAULTS, assertion_in
from specdebug.logs.engine import compiled, line_finder
from specdebug.logs.hits import KINDS, Hit, Strength

MAX_SITE = 80
MAX_SIGNATURE = 240
"""Characters of a signature of ours at most."""


@dataclass(frozen=True)
class LogRule:
    """One way in which a line tells of a failure.

    Attributes:
        words: one of these is in every such line, so that most of a log need not be looked at any further.
        patterns: find the lines.
        name: the hits of a line, given the line and the place of the pattern in it; none where that found too much.
        numbers: the hits depend on the line's digits (otherwise only as far as a signature itself holds them).
    """

    words: tuple[bytes, ...]
    patterns: tuple[bytes, ...]
    name: Callable[[bytes, int], Sequence[Hit]]
    numbers: bool = False


def _said(signature: str, strength: Strength, words: Sequence[bytes], *patterns: bytes) -> LogRule:
    """A rule for a message whose signature is always the same."""
    hits = (Hit(signature, strength, signature.split("@")[0].split(":")[0]),)
    return LogRule(tuple(words), patterns, lambda line, at: hits)


def _placed(
    kind: str, strength: Strength, words: tuple[bytes, ...], pattern: bytes, place: Callable[[bytes], str]
) -> LogRule:
    """A rule for a message of one kind. ``place`` makes the rest of the signature of the pattern's first group."""
    find = compiled(pattern)

    def name(line: bytes, at: int) -> list[Hit]:
        found = find.search(line)
        return [] if found is None else [Hit(kind + place(found[1]), strength, kind[:-1])]

    return LogRule(words, (pattern,), name)


def printable(data: bytes) -> str:
    """Foreign bytes as text that does nothing to a terminal."""
    text = data.decode("utf-8", "replace")
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def _short(data: bytes) -> str:
    return printable(data[:MAX_SITE])


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
    return _slug(printable(data).partition(" failed")[0].rstrip("`'\" "))


def _slug(text: str) -> str:
    """A message's own words for a place, as a site: ``verify: target logits`` is ``verify.target_logits``."""
    plain = "".join(char if char.isalnum() or char in "_:" else " " for char in text[: 4 * MAX_SITE])
    parts = ("_".join(part.split()).strip("_") for part in plain.split(":"))
    return ".".join(part for part in parts if part)[:MAX_SITE] or "unknown"


# Checks that say what they found.

_LEAK = rb"(\w+ Pool|\w+) [Mm]em(?:ory)? [Ll]eak [Dd]etected"
_HOST_ASSERTION = rb"([^\s:/]+):\d+: [^\n]*Assertion [`'][^\n]*['`] failed"
_ABOUT_INDEX = compiled(rb"(?i:\b(?:ind(?:ex|ices)?|srcIndex|idx|sizes?)\b|out of bounds)")


def _device_assertion(line: bytes, at: int) -> list[Hit]:
    found = assertion_in(printable(line))
    if found is None:
        return []
    means = "oob" if _ABOUT_INDEX.search(line.partition(b"Assertion `")[2]) else found.kind
    return [Hit(f"{found.kind}@{found.site}", Strength.CHECK, means)]


# How a process ended.

_SIGNALS = dict.fromkeys(("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"), Strength.DEATH)
_SIGNALS |= {"SIGKILL": Strength.LEFT, "SIGTERM": Strength.LEFT}
_DIED_OF = {int(getattr(signal, name)): Hit(f"crash:{name}", strength, "crash") for name, strength in _SIGNALS.items()}
_EXIT = rb"(?i:\bexit(?:ed|s)?(?:[ _-]?(?:with|code|status|value))*)[ \t]*[:=]?[ \t]*\(?(-?\d{1,3})\b"
_FIND_EXIT = compiled(_EXIT)
_DEATHS = (
    ("SIGSEGV", (b"egmentation fault", b"egfault", b"SIGSEGV"), rb"[Ss]egmentation fault|\b[Ss]egfault\b|\bSIGSEGV\b"),
    (
        "SIGABRT",
        (b"Aborted", b"terminate called", b"SIGABRT"),
        rb"Fatal Python error: Aborted|\bAborted\b(?: +\(core dumped\))?[ \t]*$|terminate called|\bSIGABRT\b",
    ),
    ("SIGBUS", (b"Bus error", b"SIGBUS"), rb"\bBus error\b|\bSIGBUS\b"),
    ("SIGFPE", (b"loating point exception", b"SIGFPE"), rb"[Ff]loating point exception|\bSIGFPE\b"),
    ("SIGILL", (b"SIGILL",), rb"\bSIGILL\b"),
)
_KILLED = rb"^(?:\d{4}-\S+ )?[ \t]*(?:\S+: line \d+: +)?\d* *Killed\b|\bSIGKILL\b"


def died_of(status: int) -> Hit | None:
    """The signal that ended a process, by the status a shell (128 + n) or Python (-n) gives of it; None for others."""
    return _DIED_OF.get(status - 128 if status > 128 else -status)


def _exit(strength: Strength) -> LogRule:
    """The rule for exit codes that tell of a death of that strength."""

    def name(line: bytes, at: int) -> list[Hit]:
        found = _FIND_EXIT.search(line)
        hit = died_of(int(found[1])) if found else None
        return [hit] if hit and hit.strength is strength else []

    return LogRule((b"exit", b"Exit", b"EXIT"), (_EXIT,), name, numbers=True)


# Python's exceptions, and tests.

_PREFIX = rb"^(?:[^\n]*[ \t])?"
_ASSERTED = rb"(?:^|[ \t])AssertionError(?::[ \t]+[^\n]*)?$"
_BARE_ASSERT = _PREFIX + rb"E[ \t]+(assert [^\n]+)|" + _PREFIX + rb"(?:FAILED|ERROR) \S+::[^\n]* - (assert [^\n]+)"
_FIND_BARE_ASSERT = compiled(_BARE_ASSERT)
_CLASS = rb"([A-Z]\w*(?:Error|Exception|Timeout|TimeoutExpired|Disconnected|NotFound)|Exception|OutOfResources)"
_RAISED = rb"(?:^|[ \t])(?:[A-Za-z_]\w*\.)*" + _CLASS + rb"(?::(?:[ \t]|$)|[ \t]*$)"
_QUOTED = rb"\b(?:[A-Za-z_]\w*\.)*" + _CLASS + rb"\([\"']"
_EXCEPTIONS = (b"Error", b"Exception", b"Timeout", b"OutOfResources", b"Disconnected", b"NotFound")
_VARIES = compiled(rb"0x[0-9a-fA-F]+|\d+")
_FAILED_TEST = (
    _PREFIX + rb"(?:FAILED|ERROR) ([\w./]\S*::\S+|[\w./]\S*\.py(?: - |[ \t]*$))|"
    + _PREFIX + rb"(?:FAIL|ERROR): (\w+ \([\w.]+\))|"
    rb"\b(\d+) failed(?:, \d+ (?:passed|skipped|deselected|xfailed|xpassed|warnings?|errors?)\b| in \d)|"
    rb"^=*[ ]?(\d+) failed[ ]?=*$"
)  # fmt: skip
_FIND_FAILED_TEST = compiled(_FAILED_TEST)


def _assertion(line: bytes, at: int) -> list[Hit]:
    text = line[at:].lstrip()
    if text.startswith(b"AssertionError"):
        text = text.removeprefix(b"AssertionError").lstrip(b": \t") or b"AssertionError"
    else:
        found = _FIND_BARE_ASSERT.search(line)
        text = b"" if found is None else found[1] or found[2]
    return [Hit(f"assert:{_without_numbers(text)}", Strength.EXCEPTION, "assert")] if text else []


def _without_numbers(text: bytes) -> str:
    text = text[: 4 * MAX_SITE]
    parts, end = [], 0
    for found in _VARIES.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
    return " ".join(printable(b"#".join([*parts, text[end:]])).split())[:MAX_SITE]


def _raised(line: bytes, at: int) -> tuple[Hit, ...]:
    return _exception(line[at:].split(None, 1)[0].partition(b":")[0].rpartition(b".")[2][:MAX_SITE])


@lru_cache(1000)  # a log has few kinds of them, and may have very many of each
def _exception(name: bytes) -> tuple[Hit, ...]:
    return (Hit(f"error:{printable(name)}", Strength.EXCEPTION, "error"),)


def _failed_test(line: bytes, at: int) -> list[Hit]:
    found = _FIND_FAILED_TEST.search(line)
    if found is None or int(found[3] or found[4] or 1) == 0:
        return []
    test = printable(found[1] or b"").removesuffix(" - ").rstrip()
    if found[2]:
        name, _, where = printable(found[2]).partition(" ")
        test = f"{where.strip('()').removesuffix('.' + name)}.{name}"
    return [Hit(f"test:{test[:MAX_SIGNATURE] or 'unnamed'}", Strength.TEST, "test")]


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
    *(_placed(f"{kind}@", Strength.PROBE, (word,), pattern, _probe_site) for kind, pattern, word in _UPSTREAM),
    _said(
        "nan@sampler.logits",
        Strength.CHECK,
        (b"NaN ", b"nan ", b"NaNs "),
        rb"\b(?:NaN|nan)s? (?:detected |found )?in (?:the )?(?:\w+ )?(?:logits|logprobs|probabilit)",
    ),
    _said(
        "nan@sampler.probs",
        Strength.CHECK,
        (b"probability tensor", b"contain NaN", b"contains NaN", b"contain nan"),
        rb"probability tensor contains either `?inf`?, `?nan`?",
        rb"\bprob(?:s|abilities) contains? (?:NaN|nan)\b",
    ),
    _said("nan@eagle_tree", Strength.CHECK, (b"invalid eagle tree",), rb"invalid eagle tree!!!"),
    _said("oob@embedding", Strength.CHECK, (b"IndexError",), rb"IndexError: index out of range in self"),
    _said(
        "oob@vocabulary",
        Strength.CHECK,
        (b"oken id",),
        rb"[Tt]oken ids?\b[^\n]{0,40}\bout of (?:vocab|range|bounds)",
    ),
    _said(
        "oob@index",
        Strength.CHECK,
        (b"out of bounds for",),
        rb"index -?\d+ is out of bounds for (?:dimension|axis) \d+ with size",
    ),
    _said("oob@tensor", Strength.CHECK, (b"Out Of Bound",), rb"Out Of Bound Tensor access detected"),
    _placed("pools@", Strength.CHECK, (b" Leak ", b" leak "), _LEAK, lambda data: _slug(printable(data))),
    LogRule((b"Assertion `",), (ASSERTION,), _device_assertion),
    _placed("assert@", Strength.CHECK, (b"Assertion `", b"Assertion '"), _HOST_ASSERTION, _short),
    *(_said(f"{kind}@cuda", Strength.DEVICE, FAULT_WORDS, pattern) for kind, _, pattern in FAULTS),
    _said(
        "oom",
        Strength.DEATH,
        (b"oom-kill", b"Out of memory: Kill", b"OOMKilled", b"oom_reaper", b"out of memory"),
        rb"oom-kill|Out of memory: Kill|OOMKilled|oom_reaper|Memory cgroup out of memory",
    ),
    *(_said(f"crash:{name}", Strength.DEATH, words, pattern) for name, words, pattern in _DEATHS),
    _exit(Strength.DEATH),
    _said(
        "hang",
        Strength.HANG,
        (b"atchdog timeout", b"Timeout >", b"imed out after", b"maximum execution time", b"deadlock", b"killed after"),
        rb"[Ww]atchdog timeout|\bTimeout >|[Tt]imed out after|exceeded the maximum execution time|"
        rb"\bdeadlock detected|killed after [\d.]+ s in stage",
    ),
    LogRule((b"AssertionError", b"assert "), (_ASSERTED, _BARE_ASSERT), _assertion),
    LogRule(_EXCEPTIONS, (_RAISED,), _raised),
    _said("hang", Strength.LEFT, (b"collective operation",), rb"Watchdog caught collective operation timeout"),
    _said("crash:SIGKILL", Strength.LEFT, (b"Killed", b"SIGKILL"), _KILLED),
    _exit(Strength.LEFT),
    _placed("error:", Strength.MENTION, _EXCEPTIONS, _QUOTED, _short),
    LogRule((b"FAILED ", b"ERROR ", b"FAIL: ", b"ERROR: ", b" failed"), (_FAILED_TEST,), _failed_test, True),
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
