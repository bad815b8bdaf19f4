"""What one line of a log says went wrong.

A line may be ours, SGLang's, torch's, CUDA's, pytest's or a shell's. Each recognised line becomes a :class:`Hit` with a
signature in our own form, ``kind@site``, so that it can be compared with what scenarios and toggles state.
``tests/triage/logs`` holds real ones.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from specdebug.async_probe import parse_message
from specdebug.harness.device_errors import device_failure, driver_assertion
from specdebug.harness.outcome import RANK

MAX_SITE = 80


class Strength(IntEnum):
    """How much a message tells, the best first: what names a place outranks what only says that it ended."""

    VERDICT = 0
    """A verdict of ours: the signature that names a failure, of all that was found."""
    NAMED = 1
    """Any other of our signatures."""
    PROBE = 2
    """An asynchronous probe of SGLang's, in its own words."""
    CHECK = 3
    """A check that says what it found: an assertion on the device, NaN in the logits, a leaking pool."""
    DEVICE = 4
    """A CUDA error, which surfaces later and elsewhere than what caused it."""
    DEATH = 5
    """How a process ended."""
    HANG = 6
    """That something took too long."""
    EXCEPTION = 7
    """Any other exception or failed assertion of Python's."""


@dataclass(frozen=True)
class Hit:
    """A failure that a line tells of.

    ``means``: what kind of damage it is when that is more than the signature's own kind says, as for an assertion on
    the device about an index (``oob``).
    """

    signature: str
    strength: Strength
    means: str


_KINDS = "|".join(sorted((re.escape(kind) for kind in (*RANK, "oom")), key=len, reverse=True))
_SITE = r"(?:[\w.:/\[\]]|-(?!>))++"
_OURS = re.compile(rf"(?<![\w.@:/+-])((?:{_KINDS})@{_SITE}(?:->[\w.:/\[\]-]++(?: of arena)?)?)(?![*@?])")
_BARE = re.compile(r"(?:\bfail |\"signature\": \"|message=\")(hang|oom)\b(?!@)")
_MAIL = re.compile(r"@[\w-]+\.(?:com|org|net|io|dev|cn|de)\b")
_CRASH = re.compile(r"(?<![\w:])crash:SIG[A-Z]+")
_VERDICT = re.compile(r"(?:\bfail |\"signature\": \")$")

_UPSTREAM = (
    ("nan", re.compile(r"NaN detected! ?(?P<at>.*)")),
    ("inf", re.compile(r"Inf detected! ?(?P<at>.*)")),
    ("oob", re.compile(r"OOB indices not in \[[^)\]]*[)\]]: (?P<at>.*)")),
    ("oob", re.compile(r"index (?:<|>=) -?\d+ \((?:negative|out of range)[^)]*\): (?P<at>.*)")),
    ("oob", re.compile(r"value outside \[[^\]]*\]: (?P<at>.*)")),
    ("page_aligned", re.compile(r"page-misaligned indices \(page_size=\d+\): (?P<at>.*)")),
)
_MESSAGE_END = re.compile(r"[`'\"]? failed\b.*|[`'\"]\s*$")

_CHECKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("nan@sampler.logits", re.compile(r"NaN in the (?:logits|probability)")),
    ("nan@sampler.probs", re.compile(r"probability tensor contains either `?inf`?, `?nan`?")),
    ("nan@eagle_tree", re.compile(r"invalid eagle tree!!!")),
    ("oob@embedding", re.compile(r"IndexError: index out of range in self")),
    ("oob@vocabulary", re.compile(r"[Tt]oken ids?\b.{0,40}?\bout of (?:vocab|range|bounds)")),
    ("oob@index", re.compile(r"index -?\d+ is out of bounds for (?:dimension|axis) \d+ with size")),
    ("oob@tensor", re.compile(r"Out Of Bound Tensor access detected")),
)
_LEAK = re.compile(r"(?P<pool>[A-Za-z_]\w*|\w+ Pool) [Mm]em(?:ory)? [Ll]eak [Dd]etected")

_C_ASSERTION = re.compile(r"(?P<file>[^\s:/]+):\d+: .*Assertion [`'].*?['`] failed")

_NO_MEMORY = re.compile(r"oom-kill|Out of memory: Kill|OOMKilled|oom_reaper|Memory cgroup out of memory")
_DEATHS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("SIGSEGV", re.compile(r"[Ss]egmentation fault|\bsegfault at\b")),
    ("SIGABRT", re.compile(r"Fatal Python error: Aborted|\bAborted\b(?: +\(core dumped\))?\s*$|terminate called")),
    ("SIGBUS", re.compile(r"\bBus error\b")),
    ("SIGFPE", re.compile(r"[Ff]loating point exception")),
    ("SIGKILL", re.compile(r"^(?:\d{4}-\S+ )?\s*(?:\S+: line \d+: +)?\d* *Killed\b")),
)
_SIGNAL = re.compile(r"(?<![\w:])(SIG(?:SEGV|ABRT|BUS|FPE|ILL|KILL))\b")
_EXIT = re.compile(r"\bexit(?:ed|s)?(?:[ _-]?(?:with|code|status|value))*\s*[:=]?\s*\(?(-?\d{1,3})\b", re.IGNORECASE)
_FATAL = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL")
_NUMBERS = {int(getattr(signal, name)): name for name in _FATAL}

_HANG = re.compile(
    r"[Ww]atchdog timeout|\bTimeout >|[Tt]imed out after|exceeded the maximum execution time|"
    r"\bdeadlock detected|killed after [\d.]+ s in stage"
)
_ASSERTION = re.compile(r"(?:^|\s)(?:E\s+)?AssertionError(?:: (?P<text>.*))?$")
_EXCEPTION = re.compile(r"(?:^|\s)(?P<name>(?:\w+\.)*[A-Z]\w*(?:Error|Exception))(?:: |$)")
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")
_CUDA_WORDS = re.compile(
    r"CUDA|CUBLAS|device-side assert|illegal memory access|misaligned address|launch failure|illegal instruction"
)
_ABOUT_INDEX = re.compile(r"\b(?:ind(?:ex|ices)?|srcIndex|idx|sizes?)\b|out of bounds", re.IGNORECASE)

KIND_WORDS: tuple[bytes, ...] = tuple(f"{kind}@".encode() for kind in (*RANK, "oom"))
WORDS: tuple[bytes, ...] = (
    b"crash:SIG", b"fail hang", b"fail oom", b'"signature"', b'message="',
    b" detected!", b"OOB indices", b"index < ", b"index >= ", b"value outside [", b"page-misaligned",
    b"NaN in the", b"probability tensor", b"invalid eagle tree", b"IndexError", b"oken id", b"out of bounds for",
    b"Out Of Bound", b" Leak ", b" leak ", b"Assertion `", b"Assertion '", b"CUDA", b"device-side", b"illegal memory",
    b"misaligned", b"launch failure", b"illegal instruction", b"CUBLAS", b"oom", b"Out of memory", b"OOM",
    b"emory cgroup", b"egmentation fault", b"segfault", b"Aborted", b"terminate called", b"Bus error",
    b"loating point", b"Killed", b"SIG", b"exit", b"Exit", b"EXIT",
    b"atchdog timeout", b"Timeout >", b"imed out", b"maximum execution time", b"deadlock", b"killed after",
    b"Error", b"Exception",
)  # fmt: skip
"""One of these or of ``KIND_WORDS`` is in every line that :func:`hits_in` recognises: to look for them in a block is
all that most of a log takes."""


def hits_in(line: str) -> list[Hit]:
    """What a line tells of, the strongest kind of message only; empty for most lines."""
    for look in _LOOKS:
        found = look(line)
        if found:
            return found
    return []


def _ours(line: str) -> list[Hit]:
    probe = parse_message(line)
    if probe is not None:
        return [Hit(probe.signature, Strength.NAMED, probe.kind)]
    hits = []
    for found in (*_OURS.finditer(line), *_CRASH.finditer(line), *_BARE.finditer(line)):
        name = found[found.lastindex or 0].rstrip(".:,")
        if not _MAIL.search(name):
            judged = _VERDICT.search(line[: found.end() - len(found[found.lastindex or 0])])
            strength = Strength.VERDICT if judged else Strength.NAMED
            hits.append(Hit(name, strength, re.split("[@:]", name)[0]))
    return hits


def _upstream(line: str) -> list[Hit]:
    for kind, pattern in _UPSTREAM:
        if found := pattern.search(line):
            return [Hit(f"{kind}@{_slug(_MESSAGE_END.sub('', found['at']))}", Strength.PROBE, kind)]
    return []


def _checks(line: str) -> list[Hit]:
    for signature, pattern in _CHECKS:
        if pattern.search(line):
            return [Hit(signature, Strength.CHECK, signature.partition("@")[0])]
    if found := _LEAK.search(line):
        return [Hit(f"pools@{_slug(found['pool'])}", Strength.CHECK, "pools")]
    assertion = driver_assertion(line)
    if assertion is None:
        host = _C_ASSERTION.search(line)
        return [] if host is None else [Hit(f"assert@{host['file']}", Strength.CHECK, "assert")]
    means = "oob" if _ABOUT_INDEX.search(line.partition("Assertion `")[2]) else assertion.kind
    return [Hit(f"{assertion.kind}@{assertion.site}", Strength.CHECK, means)]


def _device(line: str) -> list[Hit]:
    failure = device_failure(RuntimeError(line)) if _CUDA_WORDS.search(line) else None
    return [] if failure is None else [Hit(f"{failure.kind}@cuda", Strength.DEVICE, failure.kind)]


def _deaths(line: str) -> list[Hit]:
    if _NO_MEMORY.search(line):
        return [Hit("oom", Strength.DEATH, "oom")]
    name = next((name for name, pattern in _DEATHS if pattern.search(line)), None)
    if name is None and (found := _SIGNAL.search(line)):
        name = found[1]
    if name is None and (found := _EXIT.search(line)):
        status = int(found[1])
        # a shell says 128 + n of what signal n ended, Python -n
        name = _NUMBERS.get(status - 128 if status > 128 else -status)
    return [] if name is None else [Hit(f"crash:{name}", Strength.DEATH, "crash")]


def _hangs(line: str) -> list[Hit]:
    return [Hit("hang", Strength.HANG, "hang")] if _HANG.search(line) else []


def _exceptions(line: str) -> list[Hit]:
    if found := _ASSERTION.search(line):
        text = " ".join(_VARIES.sub("#", found["text"] or "AssertionError").split())
        return [Hit(f"assert:{text[:MAX_SITE]}", Strength.EXCEPTION, "assert")]
    if found := _EXCEPTION.search(line):
        return [Hit(f"error:{found['name'].rpartition('.')[2]}", Strength.EXCEPTION, "error")]
    return []


_LOOKS: tuple[Callable[[str], list[Hit]], ...] = (_ours, _upstream, _checks, _device, _deaths, _hangs, _exceptions)


def _slug(text: str) -> str:
    """A message's own words for a place, as a site: ``verify: target logits`` is ``verify.target_logits``."""
    parts = (re.sub(r"\W+", "_", part).strip("_") for part in text.split(":"))
    return ".".join(part for part in parts if part)[:MAX_SITE] or "unknown"
