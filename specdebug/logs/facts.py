"""The setting of a failure, as its log has it: engine, attention backend, page size, branches, cache hits, reverts."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, fields

from specdebug.base.attention_plans import SHIPPED
from specdebug.logs.engine import compiled
from specdebug.logs.origin import WORDS as ORIGIN_WORDS
from specdebug.logs.origin import LogOrigin

MAX_FUNCTIONS = 1000

_GIVEN = rb"['\"]?[ \t]*[=: \t][ \t]*['\"]?"
_PLANS = {name: plan.name for plan in SHIPPED for name in (plan.name, *plan.log_names)}
_NAMES = "|".join(_PLANS).encode()
_BACKEND = compiled(
    rb"attention[-_]backend" + _GIVEN + rb"(" + _NAMES + rb")\b|"
    rb"\b(" + _NAMES + rb")_backend\.py|\b(flashinfer)/(?:data/include/|attention/)"
)
_NUMBERS = {
    "page_size": ((b"page_size", b"page-size"), compiled(rb"page[-_]size" + _GIVEN + rb"(\d{1,6})\b")),
    "topk": ((b"eagle_topk", b"eagle-topk"), compiled(rb"eagle[-_]topk" + _GIVEN + rb"(\d{1,4})\b")),
    "cached_tokens": ((b"#cached-token",), compiled(rb"#cached-token: ([1-9]\d{0,9})")),
}
"""Of each fact that is a number, the words one of which is in its line, and its pattern."""
_REVERTED = compiled(rb"(?:fixes reverted: |SGLANG_DEBUG_REVERT_PR=['\"]?)(\d{1,8}(?:,[ \t]*\d{1,8})*)")
_FRAME = compiled(rb"File \"[^\"\n]+\", line \d+, in ([A-Za-z_]\w*)")
_CLOSING = compiled(rb"^([a-z0-9]+(?:-[a-z0-9]+)*): ([A-Za-z0-9_-]+) fail ")
_OF_BACKEND = (b"backend", b"flashinfer/")
_OF_REVERTED = (b"fixes reverted: ", b"SGLANG_DEBUG_REVERT_PR")
_OF_NUMBERS = tuple(word for words, _ in _NUMBERS.values() for word in words)
WORDS = (*_OF_BACKEND, *_OF_NUMBERS, *_OF_REVERTED, *ORIGIN_WORDS, b" fail ", b", in ")
"""One of these is in every line that says something of the setting."""


@dataclass
class Facts:
    """The facts read so far. Of each, the first mention counts, except that reverts and functions add up.

    Attributes:
        backend: the attention plan, by our name for it.
        cached_tokens: those of the first batch that hit the prefix cache.
        functions: those that tracebacks pass through.
        scenario, arm: those of ours of which the log says that they failed.
        origin: the engine that wrote it, its version and flags, and the test that failed.
    """

    backend: str | None = None
    page_size: int | None = None
    topk: int | None = None
    cached_tokens: int | None = None
    reverted: set[int] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    scenario: str | None = None
    arm: str | None = None
    origin: LogOrigin = field(default_factory=LogOrigin)

    def read(self, lines: bytes, words: Set[bytes]) -> None:
        """Take in some whole lines, which hold these ``words`` of ``WORDS``.

        A known fact is not looked for again: a server's log says most things over and over.
        """
        if self.backend is None and not words.isdisjoint(_OF_BACKEND) and (found := _BACKEND.search(lines)):
            self.backend = _PLANS[(found[1] or found[2] or found[3]).decode()]
        for name, (wanted, pattern) in _NUMBERS.items():
            if getattr(self, name) is None and not words.isdisjoint(wanted) and (found := pattern.search(lines)):
                setattr(self, name, int(found[1]))
        if not words.isdisjoint(_OF_REVERTED):
            for found in _REVERTED.finditer(lines):
                self.reverted.update(int(number) for number in found[1].split(b","))
        if self.scenario is None and b" fail " in words and (found := _CLOSING.search(lines)):
            self.scenario, self.arm = found[1].decode(), found[2].decode()
        if b", in " in words:
            self._read_frames(lines)
        self.origin.read(lines, words)

    def _read_frames(self, lines: bytes) -> None:
        frames = _FRAME.finditer(lines)
        while len(self.functions) < MAX_FUNCTIONS and (found := next(frames, None)):
            self.functions.add(found[1].decode())

    def to_dict(self) -> dict[str, object]:
        """Plain data; functions are many and say little by themselves, so they are left out."""
        facts = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("functions", "origin")}
        return {
            "engine": self.origin.engine,
            "version": self.origin.version,
            **facts,
            "reverted": sorted(self.reverted),
            "flags": dict(self.origin.flags),
            "test": list(self.origin.test),
        }
