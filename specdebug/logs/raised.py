"""Rules for exceptions, failed assertions, error lines of engines, and failed tests."""

from functools import lru_cache

from specdebug.logs.around import Around
from specdebug.logs.patterns import Match, compiled
from specdebug.logs.rule import (
    MAX_SITE,
    Hit,
    LogRule,
    Strength,
    asserted_in,
    expression_of,
    matched,
    message_of,
    printable,
    unless_passed_over,
)

MAX_TEST = 240  # characters of a test's name

_PREFIX = rb"^(?:[^\n]*[ \t])?"
_ASSERTED = rb"(?:^|[ \t])AssertionError(?::[ \t]+[^\n]*)?$"
_BARE_ASSERT = _PREFIX + rb"E[ \t]+(assert [^\n]+)|" + _PREFIX + rb"(?:FAILED|ERROR) \S+::[^\n]* - (assert [^\n]+)"
_FIND_BARE_ASSERT = compiled(_BARE_ASSERT)
_CLASS = (
    rb"([A-Z]\w*(?:Error|Exception|Timeout|TimeoutExpired|Disconnected|NotFound|Interrupt)|Exception|OutOfResources)"
)
_RAISED = rb"(?:^|[ \t])(?:[A-Za-z_]\w*\.)*" + _CLASS + rb"(?::(?:[ \t]|$)|[ \t]*$)"
_QUOTED = rb"\b(?:[A-Za-z_]\w*\.)*" + _CLASS + rb"\([\"']"
_DATA = compiled(rb"^\W*(?:tensor|array|Tensor|torch\.Size|deque|defaultdict)\(|^[\[({<]")
"""The beginning of a message that is a value and says no word."""
_LOCATION = compiled(rb"\.py:\d+:$")
"""Before the type of an exception in the line with which pytest says where it was raised."""
_FIND_QUOTED = compiled(_QUOTED)
_EXCEPTIONS = (b"Error", b"Exception", b"Timeout", b"OutOfResources", b"Disconnected", b"NotFound")

_AFTERMATH = frozenset(
    {"APIConnectionError", "APITimeoutError", "ActorDiedError", "AsyncEngineDeadError", "BrokenPipeError",
     "CalledProcessError", "CancelledError", "ChunkedEncodingError", "ClientConnectorError",
     "ClientPayloadError", "ConnectError", "ConnectTimeout", "ConnectionAbortedError", "ConnectionError",
     "ConnectionRefusedError", "ConnectionResetError", "EOFError", "EngineDeadError", "HTTPError",
     "HTTPStatusError", "HfHubHTTPError", "IncompleteRead", "InternalServerError", "KeyboardInterrupt",
     "MQEngineDeadError", "MaxRetryError", "NewConnectionError", "ProcessRaisedException", "ProtocolError",
     "ProxyError", "RayActorError", "ReadError", "ReadTimeout", "ReadTimeoutError", "RemoteDisconnected",
     "RemoteProtocolError", "SSLError", "ServerDisconnectedError", "WorkerCrashedError"}
)  # fmt: skip
"""Exceptions of another process that has ended or does not answer, and of networks."""
_OF_ANOTHER = compiled(
    rb"(?i:connection (?:closed|reset|refused|aborted)|broken pipe|died unexpectedly|worker\w* failed|failed to start|"
    rb"engine(?: ?core)? (?:process )?(?:failed|died|"
    rb"is dead|initialization failed|encountered an issue)|see (?:stack trace|root cause) above|"
    rb"server (?:process )?(?:exited|"
    rb"failed to start|died)|communicator was aborted|remote process exited|worker (?:proc\S* )?(?:died|failed)|"
    rb"cancelled by|peer (?:is )?gone|terminated by signal|exited with code)"
)
_NODE = compiled(rb"(?:FAILED|ERROR) ([^\s:]+)(?:::[^\s:\[]+)*::(\w+)")
_ACCEPT = compiled(rb"(?i:acc(?:ept(?:ance|ed)?)?[_ ]?(?:len|length|rate|ratio)|spec_acc|mean_acc)")
_COMPARED = compiled(
    rb"(?:^|[ \t:])(?:assert )?(?:np\.float\d*\()?(-?\d+\.?\d*)\)? (?:is )?(?:not greater than|not less than|"
    rb"is not greater|[<>]=?|not >=?|below|less than|under)"
)


def compared_in(text: bytes) -> bytes:
    """The number that a failed comparison found too small or too great, as printed; empty where none was compared."""
    found = _COMPARED.search(text)
    return b"" if found is None else bytes(found[1])


def accept_drop(place: str) -> str:
    """The name of an accept length that a test found too small; ``place`` is the test's."""
    test = place.rpartition(".")[2]
    return f"accept-drop@{test or 'test'}"


# Exceptions.


def _raised(line: bytes, at: int) -> tuple[Hit, ...]:
    if _LOCATION.search(line[:at]) is not None:
        return ()
    text = line[at:].lstrip()
    name, _, message = text.partition(b":")
    kind = name.split(None, 1)[0].rpartition(b".")[2][:80]
    return _exception(kind, message.split(b"\t", 1)[0].strip()[:400])


@lru_cache(1000)  # a log has few kinds of them, and may have very many of each
def _exception(kind: bytes, message: bytes) -> tuple[Hit, ...]:
    words = message_of(message)
    name = f"error:{printable(kind)}"
    strength = Strength.EXCEPTION
    if printable(kind) in _AFTERMATH or _OF_ANOTHER.search(message) is not None:
        strength = Strength.LEFT
    return (Hit(f"{name}:{words}" if words else name, strength, "error", vague=not words),)


def _with_place(hit: Hit, around: Around) -> Hit:
    """An exception with its place, as strong as what stands around it says."""
    place = _place(around)
    strength = _strength(hit.strength, around)
    if strength is Strength.FATAL and hit.signature == "error:TimeoutError":
        return Hit(f"hang@{place}", Strength.EXCEPTION, "hang")
    return hit._replace(signature=f"{hit.signature}@{place}" if place else hit.signature, strength=strength)


def _place(around: Around) -> str:
    """The place of a failure; of a line of pytest's summary the test."""
    found = _NODE.search(around.line(0))
    if found is None:
        return around.place
    return f"{printable(found[1]).rpartition('/')[2].removesuffix('.py')}.{printable(found[2])}"[:80]


def _strength(own: Strength, around: Around) -> Strength:
    reported = around.reported or _NODE.search(around.line(0)) is not None
    if own is Strength.LEFT:
        return Strength.MENTION if around.passed_over and not reported else own
    if reported:
        return Strength.REPORTED
    if around.fatal and around.place:
        return Strength.FATAL
    return Strength.MENTION if around.passed_over else own


# Assertions of Python's.


def _assertion(line: bytes, at: int) -> list[Hit]:
    text = line[at:].lstrip()
    if _LOCATION.search(line[:at]) is not None:
        return []
    if text.startswith(b"AssertionError"):
        text = text.removeprefix(b"AssertionError").lstrip(b": \t").split(b"\t", 1)[0]
    else:
        found = _FIND_BARE_ASSERT.search(line)
        if found is None:
            return []
        text = found[1] or found[2]
    values = text.startswith(b"assert ")
    words = message_of(text.removeprefix(b"assert "))
    says = any(char.isalpha() for char in words) and _DATA.search(text) is None
    name = f"assert:{words}" if words else "assert:AssertionError"
    return [Hit(name, Strength.EXCEPTION, "assert", vague=values or not says)]


def _stated(hit: Hit, around: Around) -> Hit:
    """A failed assertion with its place, by its expression where it has no words of its own."""
    source = around.source
    words = expression_of(asserted_in(source)) if hit.vague else ""
    place = _place(around)
    strength = _strength(hit.strength, around)
    said = around.said
    if compared_in(said) and (_ACCEPT.search(source) or _ACCEPT.search(said) or _ACCEPT.search(place.encode())):
        return Hit(accept_drop(place), strength, "accept-drop")
    name = f"assert:{words}" if words else hit.signature
    return hit._replace(signature=f"{name}@{place}" if place else name, strength=strength)


# Errors that an engine logs.

_LEVELLED = (
    rb"\bERROR (?:\d\d-\d\d [\d:.]+ )?\[(?:[\w/]+/)?(\w+)\.py:\d+\] ([^\s][^\n]*)|"
    rb"\[TensorRT-LLM\]\[ERROR\] ()([^\n]+)|\[TRT-LLM\] \[E\] ()([^\n]+)|\bServer error: ()([^\n]+)|"
    rb"^[\d.]+ E (?:\w+[ ]+)?([a-z_]\w*): ([^\n]+)"
)
_FAILED_TO = (
    rb"[Ff]ailed to (?:process|decode|encode|eval(?:uate)?|allocate|capture|prepare|verify|sample|compute|load model|"
    rb"create context|initialize)\b"
)
_INCONSISTENT = rb"inconsistent sequence positions"
_FIND_LEVELLED = compiled(_LEVELLED)
_FIND_SPOKEN = compiled(
    rb"(?:^|[ \t])(?:([a-z_]\w*): (?:[^\n]*\| )?)?(" + _FAILED_TO + rb"[^\n]*|[^\n:]*" + _INCONSISTENT + rb")"
)
_SPECULATION = compiled(rb"(?i:speculat|\bdraft|\bverif)")
_NO_ERROR = compiled(
    rb"(?i:fatal error\.?$|(?:above|another) exception|shutting down|stack trace|output_handler failed|"
    rb"traceback|retriev|download|fetch|died unexpectedly|"
    rb"failed with an internal error|terminating request|engine ?core|retry|worker failed|^\W*$)"
)


def _logged(line: bytes, at: int) -> list[Hit]:
    if found := _FIND_LEVELLED.search(line):
        pairs = ((found[one], found[one + 1]) for one in (1, 3, 5, 7, 9))
        place, text = next((place or b"", text) for place, text in pairs if text is not None)
    elif found := _FIND_SPOKEN.search(line):
        place, text = found[1] or b"", found[2]
    else:
        return []
    words = "" if _NO_ERROR.search(text) is not None else message_of(text)
    where = f"@{printable(place[:60])}" if place else ""
    strength = Strength.SAID if _SPECULATION.search(text) is not None else Strength.LOGGED
    return [Hit(f"error:{words}{where}", strength, "error")] if words else []


def _quoted(line: bytes, at: int) -> list[Hit]:
    """An exception that a message quotes, but not one that a line of source raises."""
    found = _FIND_QUOTED.search(line)
    if found is None or b"raise " in line[max(0, found.start() - 8) : found.start()]:
        return []
    return [Hit(f"error:{printable(found[1][:MAX_SITE])}", Strength.MENTION, "error")]


# Tests.

_FAILED_TEST = (
    _PREFIX + rb"(?:FAILED|ERROR) ([\w./]\S*::\S+|[\w./]\S*\.py(?: - |[ \t]*$))|"
    + _PREFIX + rb"(?:FAIL|ERROR): (\w+ \([\w.]+\))|"
    rb"\b(\d+) failed(?:, \d+ (?:passed|skipped|deselected|xfailed|xpassed|warnings?|errors?)\b| in \d)|"
    rb"^=*[ ]?(\d+) failed[ ]?=*$|"
    rb"\[  FAILED  \] (\w[\w/]*\.[\w/]+)|^(?:\S+Z )?[ \t]*\d+ - (\S+) \((?:Failed|SEGFAULT|Timeout|Subprocess aborted|"
    rb"Child aborted|ILLEGAL|OTHER_FAULT)|\btest (\S+) \.\.\. FAILED"
)  # fmt: skip
UNNAMED = "test:unnamed"


def _failed_test(found: Match) -> Hit | None:
    if int(found[3] or found[4] or 1) == 0:
        return None
    test = printable(found[1] or found[5] or found[6] or found[7] or b"").removesuffix(" - ").rstrip()
    if found[2]:
        name, _, where = printable(found[2]).partition(" ")
        test = f"{where.strip('()').removesuffix('.' + name)}.{name}"
    return Hit(f"test:{test[:MAX_TEST]}" if test else UNNAMED, Strength.TEST, "test")


RAISED = (
    LogRule((b"AssertionError", b"assert "), (_ASSERTED, _BARE_ASSERT), _assertion, complete=_stated),
    LogRule(_EXCEPTIONS, (_RAISED,), _raised, complete=_with_place),
    LogRule(
        (b"ERROR [", b"ERROR ", b"[ERROR]", b"[E]", b" E ", b"ailed to ", b"Server error: ", b"inconsistent sequence"),
        (_LEVELLED, _FAILED_TO, _INCONSISTENT),
        _logged,
        complete=unless_passed_over,
    ),
)
TESTS = (
    matched(
        (b"FAILED", b"ERROR ", b"FAIL: ", b"ERROR: ", b" failed", b"(Failed", b"(SEGFAULT", b"(Timeout", b"aborted)"),
        _FAILED_TEST,
        _failed_test,
        numbers=True,
    ),
)
QUOTED = (LogRule(_EXCEPTIONS, (_QUOTED,), _quoted),)
