"""The memory of Triton kernels that run interpreted (``TRITON_INTERPRET=1``), held without a GPU.

Every address that a kernel loads from or stores to is held against the tensors that it was given, reads of KV slots
against their writes, and reads of a graph's static buffers against the replays that wrote them. A finding names kernel,
argument, line and program id, how far outside an access was, whose memory it hit. The run goes on as a GPU's would::

    kernel_memory.begin([KernelRule("*")])
    ...
    for finding in kernel_memory.poll():
        print(finding.message())

The room imports torch, numpy and, once something is looked at, Triton. It can be lifted out alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdebug.kernel_memory.finding import KernelRule

if TYPE_CHECKING:
    from specdebug.kernel_memory.finding import MemoryFinding
    from specdebug.kernel_memory.watch import Watch

_watch: Watch | None = None


def begin(rules: Sequence[KernelRule]) -> Watch:
    """Look at every interpreted launch of this process, by some rules, until :func:`end`. Imports Triton, for which
    ``TRITON_INTERPRET=1`` must be set; raises ImportError where it is not installed."""
    from specdebug.kernel_memory.watch import Watch

    global _watch
    end()
    _watch = Watch(rules)
    _watch.begin()
    return _watch


def end() -> None:
    """Look no more, and forget what was found."""
    global _watch
    if _watch is not None:
        _watch.end()
    _watch = None


def poll() -> list[MemoryFinding]:
    """The findings since the last call; none while nothing is looked at."""
    return [] if _watch is None else _watch.poll()


def launches() -> dict[str, int]:
    """By ``kernel.NAME``, how many launches were looked at."""
    return {} if _watch is None else _watch.launches()
