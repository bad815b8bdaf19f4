"""What the checker tells of an access: a finding with its line, and the rules that say what a finding does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

KINDS = ("oob", "unwritten", "stale")
"""oob: an address outside what the kernel was given. unwritten: a read of what nothing has written. stale: a replay
of a graph reads of a static buffer what an earlier one left there."""


@dataclass(frozen=True)
class Access:
    """A place in a kernel that reads or writes. ``what``: load, store or atomic. ``program``: its id on the axes of the
    grid; None: a torch operation's. ``line``: file and number."""

    what: str
    program: tuple[int, int, int] | None
    line: str


@dataclass(frozen=True)
class MemoryFinding:
    """A finding of one kernel, argument and line.

    ``words`` say how far outside the first bad lane is, and whose memory it hit. ``count``: bad lanes of all programs
    so far, ``programs``: in how many accesses they were.
    """

    kernel: str
    argument: str
    kind: str
    access: Access
    words: str
    count: int = 1
    accesses: int = 1

    @property
    def site(self) -> str:
        """``kernel.argument``."""
        return f"{self.kernel}.{self.argument}"

    @property
    def signature(self) -> str:
        """``kind@kernel.argument``."""
        return f"{self.kind}@{self.site}"

    def message(self, step: int | None = None) -> str:
        """The line, in which the signature stands by itself."""
        text = f"{self.signature} : {self.access.what} at {self.access.line}, {self.words}"
        if self.access.program is not None:
            program = ", ".join(map(str, self.access.program))
            text = f"{self.signature} : {self.access.what} of program ({program}) at {self.access.line}, {self.words}"
        if self.accesses > 1:
            text += f"; {self.count} elements in {self.accesses} accesses"
        return text if step is None else f"{text} [step {step}]"


OFF = "off"
RECORD = "record"
ASSERT = "assert"


@dataclass(frozen=True)
class KernelRule:
    """A mode for the arguments that a glob covers, by ``kernel.argument``; ``*`` matches dots too."""

    glob: str
    mode: str = RECORD
    kinds: tuple[str, ...] = KINDS

    def covers(self, site: str, kind: str) -> bool:
        """Return True if the rule speaks of this kind of finding at this site."""
        return kind in self.kinds and fnmatchcase(site, self.glob)


def mode_of(rules: Sequence[KernelRule], site: str, kind: str) -> str:
    """The mode of a site: of the rules that cover it the last one decides; none: off."""
    covering = [rule.mode for rule in rules if rule.covers(site, kind)]
    return covering[-1] if covering else OFF
