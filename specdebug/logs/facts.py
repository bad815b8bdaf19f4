"""What a log says of the setting of its failure: attention backend, page size, branches, cache hits, reverts."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdebug.attention_plans import SHIPPED
from specdebug.logs.engine import Match, compiled

MAX_FUNCTIONS = 1000

_GIVEN = rb"['\"]?[ \t]*[=: \t][ \t]*['\"]?"
_PLANS = {name: plan.name for plan in SHIPPED for name in (plan.name, *plan.log_names)}
_NAMES = "|".join(_PLANS).encode()
_BACKEND = compiled(
    rb"attention[-_]backend" + _GIVEN + rb"(" + _NAMES + rb")\b|"
    rb"\b(" + _NAMES + rb")_backend\.py|\b(flashinfer)/(?:data/include/|attention/)"
)
_PAGE_SIZE = compiled(rb"page[-_]size" + _GIVEN + rb"(\d{1,6})\b")
_TOPK = compiled(rb"eagle[-_]topk" + _GIVEN + rb"(\d{1,4})\b")
_CACHED = compiled(rb"#cached-token: ([1-9]\d{0,9})")
_REVERTED = compiled(rb"(?:fixes reverted: |SGLANG_DEBUG_REVERT_PR=['\"]?)(\d{1,8}(?:,[ \t]*\d{1,8})*)")
_FRAME = compiled(rb"File \"[^\"\n]+\", line \d+, in ([A-Za-z_]\w*)")
_CLOSING = compiled(rb"^([a-z0-9]+(?:-[a-z0-9]+)*): ([A-Za-z0-9_-]+) fail ")


@dataclass
class Facts:
    """What has been read so far. Of each, the first mention counts, except that reverts and functions add up.

    Attributes:
        backend: the attention plan, by our name for it.
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

    def read(self, lines: bytes) -> None:
        """Take in some whole lines. What is known is not looked for again: a server's log says most things over and
        over."""
        if self.backend is None and (b"backend" in lines or b"flashinfer/" in lines):
            found = _BACKEND.search(lines)
            if found is not None:
                self.backend = _PLANS[(found[1] or found[2] or found[3]).decode()]
        if self.page_size is None and (b"page_size" in lines or b"page-size" in lines):
            self.page_size = _number(_PAGE_SIZE.search(lines))
        if self.topk is None and (b"eagle_topk" in lines or b"eagle-topk" in lines):
            self.topk = _number(_TOPK.search(lines))
        if self.cached_tokens is None and b"#cached-token" in lines:
            self.cached_tokens = _number(_CACHED.search(lines))
        if b"fixes reverted: " in lines or b"SGLANG_DEBUG_REVERT_PR" in lines:
            for found in _REVERTED.finditer(lines):
                self.reverted.update(int(number) for number in found[1].split(b","))
        if self.scenario is None and b" fail " in lines and (found := _CLOSING.search(lines)):
            self.scenario, self.arm = found[1].decode(), found[2].decode()
        if b", in " in lines:
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


def _number(found: Match | None) -> int | None:
    return None if found is None else int(found[1])
