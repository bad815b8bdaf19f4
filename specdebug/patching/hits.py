"""Counters that prove an edited line ran.

The rewriter puts ``__specdebug_hit__(n)`` where an edit differs from the original (``sites.py``). The name lives in
``builtins``, not in the patched module: frames that outlive a restore still find it, nothing is added to the module,
and code that is marshalled to a process without this package runs there, uncounted.

Under ``torch.compile`` the call is folded while the function is traced (``_dynamo_marked_constant``), so it breaks no
graph and counts once a trace. Counts taken by several threads at once may miss some; none is ever lost to zero.
"""

from __future__ import annotations

import builtins

HIT_NAME = "__specdebug_hit__"

_counts = [0]


def new_counter() -> int:
    """Number of a fresh counter at zero."""
    _counts.append(0)
    return len(_counts) - 1


def hit(index: int) -> None:
    """Count one pass through the edit of counter ``index``."""
    _counts[index] += 1


def hits_of(index: int) -> int:
    return _counts[index]


hit._dynamo_marked_constant = True  # type: ignore[attr-defined]
setattr(builtins, HIT_NAME, hit)
