"""The time a log takes is linear in its bytes: by the engine of every pattern, and by how often it is asked."""

import ast
import base64
import importlib
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import specdebug.logs
from specdebug.logs import patterns, scan
from specdebug.logs.patterns import Match, Pattern, compiled
from specdebug.logs.rule import Hit, LogRule
from specdebug.logs.rules import FINDERS, RULES, named
from specdebug.logs.scan import BLOCK, scan_bytes

ROOM = Path(specdebug.logs.__file__).parent
MODULES = sorted(ROOM.glob("*.py"))

needs_re2 = pytest.mark.skipif(not patterns.linear(), reason="RE2 is not installed")


@needs_re2
def test_every_finder_is_of_the_linear_engine() -> None:
    import re2

    assert len(FINDERS) == len(RULES)
    for finder in FINDERS:
        assert isinstance(finder, re2._Regexp)
        assert finder.groups == 0  # nothing is captured while lines are looked for


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_no_other_engine_is_used_on_foreign_text(module: Path) -> None:
    """Two uses of ``re`` are left: where RE2 is missing, and for escapes, whose pattern goes back by 32 at most."""
    uses = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")
    ]
    allowed = {"patterns": ["re.compile(pattern)"], "scan": ["re.compile(b'\\\\x1b\\\\[[0-9;?]{0,32}[A-Za-z]')"]}
    assert uses == allowed.get(module.stem, [])


@pytest.mark.parametrize("pattern", [rb"(?<!a)b", rb"a(?!b)", rb"(a)\1", rb"a++"])
@needs_re2
def test_a_pattern_that_needs_going_back_is_refused(pattern: bytes) -> None:
    with pytest.raises(ValueError, match=r"perl|escape|repetition"):
        compiled(pattern)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a rule was asked to name a line."""
    found: Counter[str] = Counter()

    def counted(rule: LogRule, line: bytes, at: int) -> Sequence[Hit]:
        found["named"] += 1
        return named(rule, line, at)

    monkeypatch.setattr(scan, "named", counted)
    return found


class Counting:
    """A finder that counts what it is asked for and finds."""

    def __init__(self, finder: Pattern, counts: Counter[str]) -> None:
        self._finder = finder
        self._counts = counts

    def search(self, text: bytes) -> Match | None:
        self._counts["searches"] += 1
        self._counts["bytes"] += len(text)
        return self._finder.search(text)

    def finditer(self, text: bytes) -> Iterator[Match]:
        self._counts["passes"] += 1
        self._counts["bytes"] += len(text)
        for found in self._finder.finditer(text):
            self._counts["found"] += 1
            yield found


WORDS = sorted({word for rule in RULES for word in rule.words})


def hostile(word: bytes, chance: random.Random) -> Iterator[bytes]:
    """Long lines that begin to look like a message again and again, and never become one."""
    noise = base64.b64encode(chance.randbytes(1000))
    yield word * 1000
    yield (word + b" ") * 1000
    yield noise + b" " + word
    yield noise + word + noise
    yield b"a" * 4000 + word
    yield (b"a." * 1500) + word
    yield (b"x:1: " * 600) + word
    yield word + b" " * 4000
    yield word.join([b"[`'" * 20] * 40)


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.decode().strip() or "blank")
def test_hostile_lines_take_two_passes_a_rule_and_one_name_a_line(
    word: bytes, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    monkeypatch.setattr(scan, "FINDERS", tuple(Counting(finder, counts) for finder in FINDERS))
    lines = list(hostile(word, random.Random(word)))
    log = b"\n".join(lines)
    assert len(log) < BLOCK
    scan_bytes(log)
    assert counts["passes"] <= len(RULES)
    assert counts["searches"] <= len(RULES)
    assert counts["bytes"] <= 2 * len(RULES) * (len(log) + 1)
    assert counts["found"] <= len(lines) * counts["passes"]
    assert calls["named"] <= 2 * counts["found"]


FLOODS = [
    b"ValueError: %s",
    b"%s CUDA error: an illegal memory access was encountered",
    b"then nan@%s.x at step 3",
    b"FAILED tests/test_%s.py::test_x - assert 1",
    b"AssertionError: %s",
    b"%s: Assertion `index < size` failed, and terminate called",
    b"E   assert %s",
]
"""Messages; what they tell of, or all but that, is another in every line."""


def letters(number: int) -> bytes:
    """A word for a number: lines that differ in digits only are taken together."""
    return bytes(97 + number // 26**place % 26 for place in range(4))


@pytest.mark.parametrize("message", FLOODS)
def test_of_lines_that_all_fail_in_another_way_a_block_names_so_many(message: bytes, calls: Counter[str]) -> None:
    """So a short line costs no more than a long one: the interpreter's own loops see all of them, and Python few."""
    log = b"\n".join(message % letters(number) for number in range(10 * scan.MAX_NAMED))
    assert len(log) < BLOCK
    found = scan_bytes(log)
    assert found.main is not None
    assert found.main.line == 1
    assert calls["named"] <= 2 * scan.MAX_NAMED
    assert {one.strength for one in found.findings.values()} == {found.main.strength}  # no weaker rule has the rest


def test_lines_that_are_equal_or_differ_in_digits_are_all_counted() -> None:
    fault = b"CUDA error: an illegal memory access was encountered"
    lines = [fault] * 5000 + [b"[%d] " % number + fault for number in range(5000)]
    random.Random(0).shuffle(lines)
    found = scan_bytes(b"\n".join([*lines, b"exit code 139\n" * 3000]))
    assert {one.signature: one.count for one in found.findings.values()} == {
        "illegal-address@cuda": 10_000,
        "crash:SIGSEGV": 3000,
    }


def test_a_flood_hides_nothing_of_the_next_block() -> None:
    flood = b"\n".join(b"ValueError: %s %s" % (letters(number), b"x" * 90) for number in range(12_000))
    assert len(flood) > BLOCK
    found = scan_bytes(flood + b"\nTypeError: x\n" + flood + b"\nmini: base fail oob@draft.q, 1 s\n")
    assert found.main is not None
    assert found.main.signature == "oob@draft.q"


@pytest.mark.parametrize("rule", range(len(RULES)))
def test_a_finder_never_leaves_its_line_nor_finds_two_in_one(rule: int) -> None:
    chance = random.Random(rule)
    lines = [line for word in RULES[rule].words for line in hostile(word, chance)]
    lines += [b"", b" ", *WORDS, *(b" ".join(chance.choices(WORDS, k=9)) for _ in range(200))]
    text = patterns.bounded(b"\n".join(lines), WORDS)
    ends = []
    for found in FINDERS[rule].finditer(text):
        assert b"\n" not in text[found.start() : found.end()]
        ends.append(text.find(b"\n", found.start()) % (len(text) + 1))
    assert len(set(ends)) == len(ends)


def test_where_re2_is_missing_the_same_is_said_of_real_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room is made anew with Python's engine, and reads every quoted line as RE2 does."""
    logs = sorted((Path(__file__).parent).glob("*/**/*.txt"))
    expected = {log: scan_bytes(log.read_bytes()) for log in logs}
    kept = {name: module for name, module in sys.modules.items() if name.startswith("specdebug.logs")}
    monkeypatch.setitem(sys.modules, "re2", None)
    try:
        for name in kept:
            del sys.modules[name]
        other = importlib.import_module("specdebug.logs.scan")
        assert not importlib.import_module("specdebug.logs.patterns").linear()
        for log in logs:
            ours, theirs = expected[log], other.scan_bytes(log.read_bytes())
            assert {k: (f.line, f.count) for k, f in theirs.findings.items()} == {
                k: (f.line, f.count) for k, f in ours.findings.items()
            }, log
            assert theirs.facts.to_dict() == ours.facts.to_dict()
        hostile_line = b"a" * 100_000 + b" Error"
        assert other.scan_bytes(hostile_line * 3).main is None
    finally:
        for name in [name for name in sys.modules if name.startswith("specdebug.logs")]:
            del sys.modules[name]
        sys.modules.update(kept)


class Counted(bytearray):
    """Counts the bytes that newlines are looked for in."""

    looked = 0

    def rfind(self, *given: object) -> int:
        _what, begin, end = given
        type(self).looked += max(0, min(len(self), end) - begin)  # type: ignore[call-overload]
        return super().rfind(*given)  # type: ignore[arg-type]


def test_a_line_that_comes_in_small_pieces_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK", 1000)
    reader = scan.LogReader()
    reader._rest = Counted()
    for _ in range(5000):
        reader.feed(b"x")
    assert Counted.looked <= 6000
    assert (reader.close().size, reader.scan.lines) == (5000, 1)
