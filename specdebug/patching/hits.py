"""Counters that prove an edited line ran.

The rewriter puts ``__specdebug_hit__(n)`` where an edit differs from the original (``sites.py``). The name lives in
``builtins``, not in the patched module: frames that outlive a restore still find it, nothing is added to the module,
and code that is marshalled to a process without this package runs there, uncounted.

Under ``torch.compile`` the call is folded while the function is traced (``_dynamo_marked_constant``), so it breaks no
graph and counts once a trace. Counts taken by several threads at once may miss some; none is ever lost to zero.

A spawned process also counts in a file, where the process that began it all looks (``spawned.py``).
"""

from __future__ import annotations

import builtins
import mmap
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

HIT_NAME = "__specdebug_hit__"

on_first: Callable[[int], None] | None = None
"""Called with a counter's number when it counts for the first time in this process."""
folder: str | None = None
"""Where spawned processes count, a file each; None before there is any."""

_counts = [0]
_cells: Mapping[int, int] = {}
_shared: memoryview | None = None
_WORD = 8


def new_counter() -> int:
    """Number of a fresh counter at zero."""
    _counts.append(0)
    return len(_counts) - 1


def hit(index: int) -> None:
    """Count one pass through the edit of counter ``index``."""
    _counts[index] += 1
    if on_first is not None and _counts[index] == 1:
        on_first(index)
    if _shared is not None and index in _cells:
        _shared[_cells[index]] += 1


def own_hits_of(index: int) -> int:
    """The passes of this process."""
    return _counts[index]


def hits_of(index: int) -> int:
    """The passes of this process, and of those that it spawned."""
    if folder is None or _shared is not None:
        return _counts[index]
    words = (each.read_bytes()[_WORD * index : _WORD * (index + 1)] for each in Path(folder).glob("*"))
    return _counts[index] + sum(memoryview(word).cast("Q")[0] for word in words if len(word) == _WORD)


def cell_of(index: int) -> int:
    """The number of a counter in the process that began it all."""
    return _cells.get(index, index)


def count_in(where: str, cells: Mapping[int, int]) -> None:
    """Let counters count in a file of this process in a folder, too, each in a cell."""
    global folder, _cells, _shared
    folder, _cells = where, cells
    with tempfile.NamedTemporaryFile(dir=where, delete=False) as file:
        file.truncate(_WORD * (max(cells.values(), default=0) + 1))
        _shared = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")


hit._dynamo_marked_constant = True  # type: ignore[attr-defined]
setattr(builtins, HIT_NAME, hit)
