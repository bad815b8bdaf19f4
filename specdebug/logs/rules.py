"""The rules by which a line of a log tells of a failure: for what engines and their libraries check, how a process ends
or hangs, and what we and SGLang's probes print; and the order of all (``raised.py`` has those for exceptions).

A line may be ours, an engine's, torch's, CUDA's, pytest's or a shell's. A :class:`LogRule` finds lines, and names what
they tell of as a :class:`Hit` with a signature in our own form, ``kind@site``, so that it can be compared with what
scenarios and toggles state, or for exceptions and assertions ``kind:words@place``.
"""

import signal
from collections.abc import Sequence

from specdebug import async_probe
from specdebug.async_probe import parse_message
from specdebug.logs.around import Around
from specdebug.logs.device import ASSERTION, FAULT_WORDS, FAULTS, assertion_in
from specdebug.logs.patterns import Match, compiled, line_finder
from specdebug.logs.raised import QUOTED, RAISED, TESTS
from specdebug.logs.rule import (
    KINDS,
    Hit,
    LogRule,
    Strength,
    expression_of,
    matched,
    message_of,
    printable,
    said,
    slug,
    unless_passed_over,
)

# Numbers, indices, pools.

_LEAK = (
    rb"(\w+ Pool|\w+) [Mm]em(?:ory)? [Ll]eak [Dd]etected|\b((?:KV|kv)[ _-]?cache(?: pool)?) leak|"
    rb"\bleaked \d* ?((?:KV|kv)[\w ]*?(?:blocks|pages|slots)|blocks|pages|slots)\b"
)


def _of_a_request(hit: Hit, around: Around) -> Hit:
    """A refusal that an engine logs of one request is weaker than the death of a process, unless that died of it."""
    died = around.fatal or b"what():" in around.head
    return unless_passed_over(hit._replace(strength=Strength.CHECK) if died else hit, around)


_VALUES = (
    said("nan@sampler.logits", Strength.CHECK, (b"NaN ", b"nan ", b"NaNs "),
         rb"\b(?:NaN|nan)s? (?:detected |found )?in (?:the )?(?:\w+ )?(?:logits|logprobs|probabilit)"),
    said("nan@sampler.probs", Strength.CHECK,
         (b"probability tensor", b"contain NaN", b"contains NaN", b"contain nan"),
         rb"probability tensor contains either `?inf`?, `?nan`?", rb"\bprob(?:s|abilities) contains? (?:NaN|nan)\b"),
    said("nan@eagle_tree", Strength.CHECK, (b"invalid eagle tree",), rb"invalid eagle tree!!!"),
    said("oob@embedding", Strength.CHECK, (b"IndexError",), rb"IndexError: index out of range in self"),
    said("oob@vocabulary", Strength.CHECK, (b"oken id",),
         rb"[Tt]oken ids?\b[^\n]{0,40}\bout of (?:vocab|range|bounds)"),
    said("oob@index", Strength.CHECK, (b"out of bounds for",),
         rb"index -?\d+ is out of bounds for (?:dimension|axis) \d+ with size"),
    said("oob@tensor", Strength.CHECK, (b"Out Of Bound",), rb"Out Of Bound Tensor access detected"),
    matched((b" Leak ", b" leak", b"eaked "), _LEAK, lambda found: Hit(
        f"pools@{slug(printable(found[1] or found[2] or found[3]))}", Strength.CHECK, "pools")),
    said("error@grammar", Strength.REQUEST, (b"rammar", b"FSM", b"not accepted", b"atcher"),
         rb"(?i:\bgrammar\b[^\n]{0,30}\b(?:rejected|did not accept|refused)|failed to (?:advance|accept)[^\n]{0,40}"
         rb"\b(?:fsm|grammar|matcher|token)|\btokens? (?:was |were )?not accepted\b|empty grammar stack|"
         rb"\w*(?:fsm|matcher) (?:rejected|did not accept|has terminated))", complete=_of_a_request),
    said("mismatch@collective", Strength.CHECK,
         (b"ollective", b"_MISMATCH", b"op.preamble", b"runcated", b"MPI_ERR_TRUNCATE", b"inconsistent", b"ismatch"),
         rb"[Mm]ismatch between collectives|[Mm]ismatched collective|SIZE_OR_SYNTAX_MISMATCH|"
         rb"op\.preamble\.\w+ <= op\.|MPI_ERR_TRUNCATE|[Mm]essage truncated|"
         rb"(?i:collective\b[^\n]{0,80}\b(?:mismatch|inconsistent|differ)|(?:inconsistent|"
         rb"mismatch\w*)\b[^\n]{0,60}\branks\b)"),
)  # fmt: skip

# What is asserted outside of Python.

_ABOUT_INDEX = compiled(rb"(?i:\b(?:ind(?:ex|ices)?|srcIndex|idx|sizes?)\b|out of bounds)")
_FILE = rb"([^\s:/'\"()\[\]]+\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|hip|m|mm|metal|rs)\b)"
_STATED = (
    rb"(?:^|[ \t])(?:[^\s:]*/)?" + _FILE + rb":\d+: [^\n]*?GGML_ASSERT\((.*)\) failed|"
    rb"GGML_ASSERT: (?:[^\s:]*/)?" + _FILE + rb":\d+: ([^\n]+)|"
    rb"(?:[^\s:]*/)?" + _FILE + rb":\d+: (?:[^\n]*: )?Assertion [`']([^\n]*)['`] failed|"
    rb"(?:Assertion|Check) [`'\"]([^\n]+)['`\"] failed(?: at (?:[^\s:]*/)?" + _FILE + rb")?|\bCheck failed: ([^\n]+)"
)
_TENSORRT = rb"Assertion failed: ([^\n]+?)(?: \((?:[^\s:()]*/)?" + _FILE + rb":\d+\))?[ \t]*$"
_GGML = rb"(?:^|[ \t])(?:[^\s:]*/)?" + _FILE + rb":\d+: (fatal error)[ \t]*$|GGML_ABORT\(([^\n]*)\)"
_BRACKETED = compiled(rb"^\((.*)\) (?:is )?false\b[: ]*([^\n]*)")


def _device_assertion(line: bytes, at: int) -> list[Hit]:
    found = assertion_in(printable(line))
    if found is None:
        return []
    means = "oob" if _ABOUT_INDEX.search(line.partition(b"Assertion `")[2]) else found.kind
    return [Hit(f"{found.kind}@{found.site}", Strength.CHECK, means)]


def _stated(found: Match) -> Hit:
    """An assertion that says its expression, and mostly its file."""
    pairs = ((found[1], found[2]), (found[3], found[4]), (found[5], found[6]), (found[8], found[7]), (b"", found[9]))
    file, text = next((file or b"", text) for file, text in pairs if text is not None)
    if bare := _BRACKETED.search(text):
        text = bare[1]
    text = text.partition(b" (")[0] if b" vs" in text else text
    return _asserted(expression_of(text), file)


def _asserted(words: str, file: bytes) -> Hit:
    site = f"@{printable(file[:60])}" if file else ""
    vague = words in ("", "false", "False", "#")
    return Hit(f"assert:{words or 'failed'}{site}", Strength.CHECK, "assert", vague=vague)


def _asserted_said(hit: Hit, around: Around) -> Hit:
    """An assertion whose expression says nothing, with the message on the next line."""
    words = message_of(around.line(1)) if hit.vague else ""
    site = hit.signature.partition("@")[2]
    return hit._replace(signature=f"assert:{words}@{site}" if site else f"assert:{words}") if words else hit


_PANIC = rb"\bpanicked at (?:'([^\n]*)', )?(?:[^\s:']*/)?([\w.-]+\.rs):\d+"


def _panic(found: Match) -> Hit:
    words, site = message_of(found[1] or b""), printable(found[2][:60])
    return Hit(f"panic:{words}@{site}" if words else f"panic@{site}", Strength.CHECK, "panic", vague=not words)


def _panic_said(hit: Hit, around: Around) -> Hit:
    """A panic with its message, which newer versions of Rust print below the place."""
    words = message_of(around.line(1)) if hit.vague else ""
    return hit._replace(signature=hit.signature.replace("panic@", f"panic:{words}@", 1)) if words else hit


_ABORTED = "crash:SIGABRT"
_WHAT = compiled(rb"^[^\n]*?what\(\):[ ]*([^\n]*)")
_THROWN = rb"terminate called after throwing an instance of '([^'\n]*)'"


def _thrown_said(hit: Hit, around: Around) -> Hit:
    """An exception of C++ that ended the process, with what it says of itself on the next line."""
    found = _WHAT.search(around.line(1)) or _WHAT.search(around.line(2))
    words = message_of(found[1]) if found is not None else ""
    if b"collective operation" in around.line(1):
        return hit._replace(signature=_ABORTED, strength=Strength.LEFT)
    return hit._replace(signature=f"{hit.signature}:{words}" if words else _ABORTED)


_STATEMENTS = (
    LogRule((b"Assertion `",), (ASSERTION,), _device_assertion),
    matched((b"GGML_ASSERT", b"Assertion `", b"Assertion '", b'Assertion "', b"Check '", b"Check `", b"Check failed: "),
            _STATED, _stated, complete=_asserted_said),
    matched((b"Assertion failed: ",), _TENSORRT, lambda found: _asserted(message_of(found[1]), found[2] or b"")),
    matched((b"fatal error", b"GGML_ABORT"), _GGML,
            lambda found: _asserted(message_of(found[2] or found[3] or b"") or "abort", found[1] or b"")),
    matched((b"panicked at ",), _PANIC, _panic, complete=_panic_said),
)  # fmt: skip

# Numbers that name a failure. The search for lines takes all digits for one, so the number is looked up here.

_CODES = {
    b"EI0005": Hit("mismatch@collective", Strength.CHECK, "mismatch"),
    b"EL0004": Hit("oom@npu", Strength.DEVICE, "oom"),
    # a rank waits for another's record, or for a connection
    **dict.fromkeys((b"EI0002", b"EI0006"), Hit("hang", Strength.HANG, "hang")),
    **dict.fromkeys(
        (b"507011", b"507014", b"507015", b"507035"), Hit("launch-failure@npu", Strength.DEVICE, "launch-failure")
    ),
}
_CODE = rb"\b(E[IL]\d{4})\b|\berror code(?: is)?[: ]+(\d{6})\b"
_FIND_CODE = compiled(_CODE)


def _coded(line: bytes, at: int) -> list[Hit]:
    hits = (_CODES.get(bytes(found[1] or found[2])) for found in _FIND_CODE.finditer(line))
    return [hit for hit in hits if hit is not None][:1]


_CODED = LogRule(tuple(_CODES), (_CODE,), _coded, numbers=True)

# Devices, and their memory.

_DEVICES = (
    *(said(f"{kind}@cuda", Strength.DEVICE, FAULT_WORDS, pattern) for kind, _, pattern in FAULTS),
    said("oom@npu", Strength.DEVICE, (b"NPU out of memory",), rb"NPU out of memory"),
    said("illegal-address@npu", Strength.DEVICE,
         (b"MTE instruction", b"instruction is out of range", b"ccess out of"),
         rb"address of (?:the )?\w+ instruction is out of range|aicore\b[^\n]*\baccess out of"),
    said("launch-failure@npu", Strength.DEVICE,
         (b"aicore", b"AICORE", b"AICore", b"vector core", b"aivec", b"AI Core"),
         rb"(?i:\b(?:aicore|aivec(?:tor)?|vector core|ai core)\b[^\n]{0,40}\b(?:exception|error|trap|timed? ?out))"),
    said("oom@xla", Strength.DEVICE, (b"RESOURCE_EXHAUSTED",),
         rb"RESOURCE_EXHAUSTED[^\n]*(?:[Oo]ut of memory|[Aa]ttempting to (?:allocate|reserve)|exceeds)"),
)  # fmt: skip


def _of_capacity(hit: Hit, around: Around) -> Hit:
    return unless_passed_over(hit._replace(strength=Strength.FATAL if around.fatal else Strength.EXCEPTION), around)


_CAPACITY = said(
    "oom@kv",
    Strength.EXCEPTION,
    (b"KV", b"kv", b"free blocks", b"free pages", b"memory slot", b"OutOfPages", b"out of memory"),
    rb"\b(?:Decode|Prefill|Extend) out of memory|(?i:\bout of (?:free )?kv\b|"
    rb"\bno (?:more )?free (?:kv )?(?:cache )?(?:blocks?|pages?|"
    rb"slots?)\b|cannot get \d+ free (?:blocks|pages)|failed to find (?:a memory slot|free space in the kv)|"
    rb"no available memory for the cache blocks|kv[ _-]?cache[^\n]{0,30}\b(?:exhausted|ran out|out of (?:memory|space|"
    rb"blocks)))|\bOutOfPages\b",
    complete=_of_capacity,
)

# How a process ended.

_SIGNALS = dict.fromkeys(("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"), Strength.DEATH)
_SIGNALS |= {"SIGKILL": Strength.LEFT, "SIGTERM": Strength.LEFT}
_DIED_OF = {int(getattr(signal, name)): Hit(f"crash:{name}", strength, "crash") for name, strength in _SIGNALS.items()}
_EXIT = rb"(?i:\bexit(?:ed|s)?(?:[ _-]?(?:with|code|status|value))*)[ \t]*[:=]?[ \t]*\(?(-?\d{1,3})\b"
_FIND_EXIT = compiled(_EXIT)
_PROC = rb"\{'\w+': -(\d{1,2})\b|\b(?:by|with|received|got) signal:? (\d{1,2})\b"
_FIND_PROC = compiled(_PROC)
_FATAL_SIGNALS = (
    ("SIGSEGV", (b"egmentation fault", b"egfault", b"SIGSEGV", b"SegFault", b"SEGFAULT", b"access violation"),
     rb"[Ss]egmentation fault|\b[Ss]egfault\b|\bSIGSEGV\b|\bSegFault\b|\bSEGFAULT\b|\bexception: access violation\b"),
    ("SIGABRT", (b"Aborted", b"terminate called", b"SIGABRT", b"double free", b"Abort trap", b"zsh: abort"),
     rb"Fatal Python error: Aborted|\bAborted\b[ \t]*(?:$|\(core dumped\))|terminate called|\bSIGABRT\b|"
     rb"\bAbort trap: 6\b|\bzsh: abort\b|\bdouble free or corruption"),
    ("SIGBUS", (b"Bus error", b"SIGBUS"), rb"\bBus error\b|\bSIGBUS\b"),
    ("SIGFPE", (b"loating point exception", b"SIGFPE"), rb"[Ff]loating point exception|\bSIGFPE\b"),
    ("SIGILL", (b"SIGILL",), rb"\bSIGILL\b"),
)  # fmt: skip
_KILLED = rb"^(?:\d{4}-\S+ )?[ \t]*(?:\S+: line \d+: +)?\d* *Killed\b|\bSIGKILL\b"


def died_of(status: int) -> Hit | None:
    """The signal that ended a process, by the status a shell (128 + n) or Python (-n) gives of it; None for others."""
    return _DIED_OF.get(status - 128 if status > 128 else -status)


def _exit(strength: Strength) -> LogRule:
    """The rule for exit codes that tell of a death of that strength."""

    def name(line: bytes, at: int) -> list[Hit]:
        ended = _FIND_EXIT.search(line)
        killed = _FIND_PROC.search(line)
        status = int(ended[1]) if ended else -int(killed[1] or killed[2]) if killed else 0
        hit = died_of(status)
        return [hit] if hit and hit.strength is strength else []

    return LogRule((b"exit", b"Exit", b"EXIT", b"': -", b" signal"), (_EXIT, _PROC), name, numbers=True)


_DEATHS = (
    said("oom", Strength.DEATH, (b"oom-kill", b"Out of memory: Kill", b"OOMKilled", b"oom_reaper", b"out of memory"),
         rb"oom-kill|Out of memory: Kill|OOMKilled|oom_reaper|Memory cgroup out of memory"),
    matched((b"terminate called",), _THROWN, complete=_thrown_said, make=lambda found: Hit(
        f"error:{printable(found[1][:60])}", Strength.DEATH, "crash", vague=True)),
    *(said(f"crash:{name}", Strength.DEATH, words, pattern) for name, words, pattern in _FATAL_SIGNALS),
    _exit(Strength.DEATH),
)  # fmt: skip

# What does not end.

_CALLED = compiled(rb"\bRPC (?:call )?(?:to )?['`\"]?(\w+)")


def _hung(hit: Hit, around: Around) -> Hit:
    """A hang with the place where it hangs, or the call that is not answered, if that is said."""
    strength = Strength.MENTION if hit.strength is Strength.EXCEPTION and around.passed_over else hit.strength
    called = _CALLED.search(around.line(0))
    words = {b"call", b"timed", b"timeout", b"failed", b"error"}
    place = called[1].decode("ascii", "replace") if called and called[1] not in words else around.stuck
    return hit._replace(signature=f"hang@{place[:60]}" if place else "hang", strength=strength)


_HANGING = said(
    "hang",
    Strength.HANG,
    (b"atchdog", b"ang detected", b"RPC", b"rpc", b"deadlock", b"imed out waiting"),
    rb"[Ww]atchdog (?:timeout|timed out|triggered)|\b[Hh]ang detected|\bRPC\b[^\n]{0,80}\btimed? ?-?out|"
    rb"\bdeadlock detected|gloo[^\n]*Timed out waiting|\brpc (?:call|time)[^\n]{0,60}\btimed out",
    complete=_hung,
)
_SLOW = said(
    "hang",
    Strength.EXCEPTION,
    (b"Timeout >", b"imed out after", b"maximum execution time", b"killed after", b"imed out waiting", b"(Timeout)"),
    rb"\bTimeout >|[Tt]imed out after|exceeded the maximum execution time|killed after [\d.]+ s in stage|"
    rb"[Tt]imed out waiting|\*\*\*Timeout|- \S+ \(Timeout\)",
    complete=_hung,
)
_LEFT = (
    said("hang", Strength.LEFT,
         (b"collective operation", b"broadcast block", b" (active", b" (idle", b"yspy dump", b"y-spy dump"),
         rb"Watchdog caught collective operation timeout|No available shared memory broadcast block|"
         rb"^(?:\S+[ \t]+\|?[ \t]*)?Thread \S+ \((?:active|idle)[^\n]*\): \"|(?i:py-?spy dump) for", complete=_hung),
    said("crash:SIGKILL", Strength.LEFT, (b"Killed", b"SIGKILL"), _KILLED),
    _exit(Strength.LEFT),
    said("error@http.500", Strength.LEFT, (b"Internal Server Error",), rb"HTTP/[\d.]+['\"] \d+ Internal Server Error"),
)  # fmt: skip


MAX_SIGNATURE = 240  # characters of a signature of ours at most

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


def _upstream(kind: str, word: bytes, pattern: bytes) -> LogRule:
    def make(found: Match) -> Hit:
        site = slug(printable(found[1]).partition(" failed")[0].rstrip("`'\" "))
        return Hit(f"{kind}@{site}", Strength.PROBE, kind)

    return matched((word,), pattern, make)


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
    *(_upstream(kind, word, pattern) for kind, pattern, word in _UPSTREAM),
    *_VALUES,
    *_STATEMENTS,
    *_DEVICES,
    _CODED,
    *_DEATHS,
    _HANGING,
    _CAPACITY,  # as strong as an exception, and before it on a line, as is a time limit that was exceeded
    _SLOW,
    *RAISED,
    *_LEFT,
    *TESTS,
    *QUOTED,
)
"""Every rule, the strongest first; the first that names something of a line has the line."""

FINDERS = tuple(line_finder(rule.patterns) for rule in RULES)  # the finders of each rule's lines
REACH = 16_384  # bytes of a line that a rule sees, from a little before the place where it was found
AHEAD = 256  # bytes of these that lie before that place


def named(rule: LogRule, line: bytes, at: int) -> Sequence[Hit]:
    """The hits of a rule that was found at ``at`` in a line, of which it sees ``REACH`` bytes around that place."""
    if len(line) <= REACH:
        return rule.name(line, at)
    begin = max(0, at - AHEAD)
    return rule.name(line[begin : begin + REACH], at - begin)
