"""What a log says of the setting of its failure: attention backend, page size, branches, cache hits, reverts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_FUNCTIONS = 1000

_GIVEN = r"['\"]?\s*[=:\s]\s*['\"]?"
_BACKEND = re.compile(rf"attention[-_]backend{_GIVEN}(flashinfer|fa3|flashattention|triton)\b")
_FILES = re.compile(r"\b(flashinfer|flashattention|triton)_backend\.py|\b(flashinfer)/(?:data/include/|attention/)")
_PAGE_SIZE = re.compile(rf"page[-_]size{_GIVEN}(\d{{1,6}})\b")
_TOPK = re.compile(rf"eagle[-_]topk{_GIVEN}(\d{{1,4}})\b")
_CACHED = re.compile(r"#cached-token: ([1-9]\d{0,9})")
_REVERTED = re.compile(r"(?:fixes reverted: |SGLANG_DEBUG_REVERT_PR=['\"]?)(\d{1,8}(?:,\s*\d{1,8})*)")
_FRAME = re.compile(r'File "[^"]+", line \d+, in ([A-Za-z_]\w*)')
_CLOSING = re.compile(r"^(?P<scenario>[a-z0-9]+(?:-[a-z0-9]+)*): (?P<arm>[A-Za-z0-9_-]+) fail ")
_PLANS = {"flashattention": "fa3"}

WORDS: dict[str, bytes] = {
    "backend": b"_backend",
    "backend option": b"-backend",
    "backend files": b"flashinfer/",
    "page size": b"page_size",
    "page size option": b"page-size",
    "topk": b"eagle_topk",
    "topk option": b"eagle-topk",
    "cached": b"#cached-token",
    "reverted": b"fixes reverted: ",
    "reverted variable": b"SGLANG_DEBUG_REVERT_PR",
    "frame": b", in ",
    "scenario": b" fail ",
}


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

    def wanted(self) -> tuple[bytes, ...]:
        """Words of lines that could still add something: a server's log says most things over and over."""
        done: set[str] = set()
        if self.backend is not None:
            done |= {"backend", "backend option", "backend files"}
        if self.page_size is not None:
            done |= {"page size", "page size option"}
        if self.topk is not None:
            done |= {"topk", "topk option"}
        if self.cached_tokens is not None:
            done |= {"cached"}
        if len(self.functions) >= MAX_FUNCTIONS:
            done |= {"frame"}
        if self.scenario is not None:
            done |= {"scenario"}
        return tuple(word for name, word in WORDS.items() if name not in done)

    def read(self, line: str) -> None:
        """Take in one line."""
        if self.backend is None and (found := _BACKEND.search(line) or _FILES.search(line)):
            name = next(filter(None, found.groups()))
            self.backend = _PLANS.get(name, name)
        if self.page_size is None and (found := _PAGE_SIZE.search(line)):
            self.page_size = int(found[1])
        if self.topk is None and (found := _TOPK.search(line)):
            self.topk = int(found[1])
        if self.cached_tokens is None and (found := _CACHED.search(line)):
            self.cached_tokens = int(found[1])
        if found := _REVERTED.search(line):
            self.reverted.update(int(number) for number in found[1].split(","))
        if len(self.functions) < MAX_FUNCTIONS:
            self.functions.update(_FRAME.findall(line))
        if self.scenario is None and (found := _CLOSING.match(line)):
            self.scenario, self.arm = found["scenario"], found["arm"]

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
