"""What a log says of the setting of its failure: attention backend, page size, branches, cache hits, reverts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from specdebug.logs.engine import Match, compiled

MAX_FUNCTIONS = 1000

_GIVEN = rb"['\"]?[ \t]*[=: \t][ \t]*['\"]?"
_BACKEND = compiled(
    rb"attention[-_]backend" + _GIVEN + rb"(flashinfer|fa3|flashattention|triton)\b|"
    rb"\b(flashinfer|flashattention|triton)_backend\.py|\b(flashinfer)/(?:data/include/|attention/)"
)
_PAGE_SIZE = compiled(rb"page[-_]size" + _GIVEN + rb"(\d{1,6})\b")
_TOPK = compiled(rb"eagle[-_]topk" + _GIVEN + rb"(\d{1,4})\b")
_CACHED = compiled(rb"#cached-token: ([1-9]\d{0,9})")
_REVERTED = compiled(rb"(?:fixes reverted: |SGLANG_DEBUG_REVERT_PR=['\"]?)(\d{1,8}(?:,[ \t]*\d{1,8})*)")
_FRAME = compiled(rb"File \"[^\"\n]+\", line \d+, in ([A-Za-z_]\w*)")
_CLOSING = compiled(rb"^([a-z0-9]+(?:-[a-z0-9]+)*): ([A-Za-z0-9_-]+) fail ")
_OF_BACKEND = (b"backend", b"flashinfer/")
_OF_PAGE_SIZE = (b"page_size", b"page-size")
_OF_TOPK = (b"eagle_topk", b"eagle-topk")
_OF_CACHED = (b"#cached-token",)
_OF_REVERTED = (b"fixes reverted: ", b"SGLANG_DEBUG_REVERT_PR")
_OF_CLOSING = (b" fail ",)
_OF_FRAME = (b", in ",)
WORDS = (*_OF_BACKEND, *_OF_PAGE_SIZE, *_OF_TOPK, *_OF_CACHED, *_OF_REVERTED, *_OF_CLOSING, *_OF_FRAME)
"""One of these is in every line that says something of the setting."""
_PLANS = {"flashattention": "fa3"}


@dataclass
class Facts:
    """What has been read so far. Of each, the first mention counts, except that reverts and functions add up.

    Attributes:
        backend: the attention plan: flashinfer, fa3 or triton.
        cached_tokens: of the first batch that hit the prefix cache.
        functions: that tracebacks pass through.
        scenario, arm: of ours, of which the log says that it failed.
    """

    backend: str | None = None
    page_size: int | None = None
    topk: int | None = None
    cached_tokens: int | None = None
    reverted: set[int] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    scenario: str | None = None
    arm: str | None = None

    def read(self, lines: bytes, words: Collection[bytes]) -> None:
        """Take in some whole lines. What is known is not looked for again: a server's log says most things over and
        over.

        Args:
            words: which of ``WORDS`` are in the lines.
        """
        if self.backend is None and _any(words, _OF_BACKEND):
            found = _BACKEND.search(lines)
            if found is not None:
                name = (found[1] or found[2] or found[3]).decode()
                self.backend = _PLANS.get(name, name)
        if self.page_size is None and _any(words, _OF_PAGE_SIZE):
            self.page_size = _number(_PAGE_SIZE.search(lines))
        if self.topk is None and _any(words, _OF_TOPK):
            self.topk = _number(_TOPK.search(lines))
        if self.cached_tokens is None and _any(words, _OF_CACHED):
            self.cached_tokens = _number(_CACHED.search(lines))
        if _any(words, _OF_REVERTED):
            for found in _REVERTED.finditer(lines):
                self.reverted.update(int(number) for number in found[1].split(b","))
        if self.scenario is None and _any(words, _OF_CLOSING) and (found := _CLOSING.search(lines)):
            self.scenario, self.arm = found[1].decode(), found[2].decode()
        if _any(words, _OF_FRAME):
            self._read_frames(lines)

    def _read_frames(self, lines: bytes) -> None:
        if len(self.functions) >= MAX_FUNCTIONS:
            return
        for found in _FRAME.finditer(lines):
            self.functions.add(found[1].decode())
            if len(self.functions) >= MAX_FUNCTIONS:
                return

    def to_dict(self) -> dict[str, object]:
        """Plain data; functions are many and say little by themselves, so they are left out."""
        return {
            "backend": self.backend,
            "page_size": self.page_size,
            "topk": self.topk,
            "cached_tokens": self.cached_tokens,
            "reverted": sorted(self.reverted),
            "scenario": self.scenario,
            "arm": self.arm,
        }


def _any(words: Collection[bytes], wanted: Sequence[bytes]) -> bool:
    return any(word in words for word in wanted)


def _number(found: Match | None) -> int | None:
    return None if found is None else int(found[1])
