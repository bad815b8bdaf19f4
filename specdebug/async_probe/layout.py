"""The memory of a device's ring, as its kernels and the host both see it: one int64 tensor.

=========  ==========  =========================================================================
words      name        content
=========  ==========  =========================================================================
0          CURSOR      rows asked for so far; only grows
1          LIMIT       rows from this one on are dropped, until the host has read some
2          STEP        the step of findings, from ``set_step``
3          ROWS        rows there is room for; row i lies at i modulo this
4          TABLE       address of the rows, each of ``COLUMNS`` words, in memory that a lost device leaves
from 16    TOTALS      bad elements by entry
           FINE        by entry, 1 until something bad was seen: an assertion looks at it
           CELLS       by captured launch, programs started so far; cell 0 belongs to none
=========  ==========  =========================================================================
"""

from __future__ import annotations

MAX_ENTRIES = 4096
"""Distinct (site, kind, bound) a ring can count."""
MAX_CELLS = 16384
"""Captured launches whose replays are told apart even within a step."""

CURSOR, LIMIT, STEP, ROWS, TABLE = range(5)
TOTALS = 16
FINE = TOTALS + MAX_ENTRIES
CELLS = FINE + MAX_ENTRIES
SIZE = CELLS + MAX_CELLS

COLUMNS = 9
"""Ticket + 1, origin, launch, step, tag, first bad index, its value, number of bad elements, limit."""

# A tag is entry << 8 | job << 6 | part << 5 | format of the limit << 3 | format of the value.
TAG_ENTRY, TAG_JOB, TAG_PART, TAG_LIMIT = 8, 6, 5, 3
MAX_JOBS = 4
"""Tensors one launch can look at."""

NONFINITE, BOUNDS, MULTIPLE = 1, 2, 3
"""The defects that a kernel looks for."""
FLAT, STRIDED, PICKED = range(3)
"""The places of elements: contiguous; in up to four dimensions with strides; in rows of dimension 1."""
