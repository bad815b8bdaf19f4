"""The checker of this process: what it looks at, and what it has found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from specdebug.kernel_memory.finding import ASSERT, OFF, Access, KernelRule, MemoryFinding, mode_of
from specdebug.kernel_memory.interpreter import Hooks, line_of, outside
from specdebug.kernel_memory.launch import Report
from specdebug.kernel_memory.operations import Operations
from specdebug.kernel_memory.regions import Region
from specdebug.kernel_memory.shadows import Misread, Shadow, StampedBuffers, WrittenSlots

_PACKAGE = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
MOST = 1024
"""Findings that are kept until they are asked for; of each kernel, argument and line there is one."""


class KernelMemoryError(AssertionError):
    """A finding at a site in assert mode. Triton wraps it in an InterpreterError, which quotes it."""


class Watch:
    """Holds kernels to their memory by some rules, from :meth:`begin` until :meth:`end`.

    ``written``: the slots whose reads are held against their writes; the owner of a pool enters and tells them.
    ``static``: the static buffers of graphs, and their replays, which their owner enters and tells.
    ``operations``: looks at torch operations on static buffers while it is entered.
    """

    def __init__(self, rules: Sequence[KernelRule]) -> None:
        self.written = WrittenSlots()
        self._rules = tuple(rules)
        self._found: dict[tuple[str, ...], MemoryFinding] = {}
        self._launches: dict[str, int] = {}
        self._hooks = Hooks(self._reporter, self._shadow_of)
        self.static = StampedBuffers()
        self.operations = Operations(self.static, self.report, self._hooks.busy)

    def begin(self) -> None:
        """Look at every launch from now on."""
        self._hooks.put()

    def end(self) -> None:
        """Look no more."""
        self._hooks.take_out()

    def poll(self) -> list[MemoryFinding]:
        """The findings since the last call, in the order in which they were first made."""
        found = list(self._found.values())
        self._found.clear()
        return found

    def launches(self) -> dict[str, int]:
        """By ``kernel.NAME``, how many launches were looked at; of a kernel that is not interpreted, reads of slots."""
        return dict(self._launches)

    def read(self, kernel: str, argument: str, buffer: Tensor, slots: Tensor, row: int) -> None:
        """A kernel that is not interpreted reads slots of a buffer, for a row of its batch."""
        if (shadow := self.written.of(buffer.data_ptr())) is None:
            return
        self._count(kernel)
        self._told(kernel, argument, shadow.misread(slots.reshape(-1).numpy()), row)

    def read_static(self, kernel: str, argument: str, tensor: Tensor, row: int) -> None:
        """A kernel that is not interpreted reads all of a tensor, for a row of its batch."""
        if (shadow := self.static.of(tensor)) is not None:
            self._told(kernel, argument, shadow.read(tensor), row)

    def report(
        self, kernel: str, argument: str, kind: str, access: Access, left: str, words: Callable[[], str], count: int
    ) -> None:
        """Take a finding, as ``launch.Report`` has it. Raises KernelMemoryError in assert mode."""
        mode = mode_of(self._rules, f"{kernel}.{argument}", kind)
        if mode == OFF:
            return
        key = (kernel, argument, kind, access.what, access.line, left)
        if known := self._found.get(key):
            self._found[key] = replace(known, count=known.count + count, accesses=known.accesses + 1)
        elif mode == ASSERT:
            raise KernelMemoryError(MemoryFinding(kernel, argument, kind, access, words(), count).message())
        elif len(self._found) < MOST:
            self._found[key] = MemoryFinding(kernel, argument, kind, access, words(), count)

    def _told(self, kernel: str, argument: str, misread: Misread | None, row: int) -> None:
        if misread is not None:
            access = Access("load", (row, 0, 0), line_of(outside((_PACKAGE, _TORCH))))
            self.report(kernel, argument, misread.kind, access, "", misread.words, misread.count)

    def _shadow_of(self, region: Region) -> Shadow | None:
        return self.written.of(region.view.start) or self.static.at(region.storage.start)

    def _reporter(self, kernel: str) -> Report:
        self._count(kernel)
        return partial(self.report, kernel)

    def _count(self, kernel: str) -> None:
        name = f"kernel.{kernel}"
        self._launches[name] = self._launches.get(name, 0) + 1
