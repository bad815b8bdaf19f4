"""What the checker tells of an access: a finding, and the line that says it."""

from __future__ import annotations

from dataclasses import dataclass

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
