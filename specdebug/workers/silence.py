"""Is the fork server there? It may be stopped (SIGSTOP, a debugger), and then ends no worker and says so of none."""

from __future__ import annotations

import time

ANSWER_S = 5.0
"""How long a fork server may take to answer; it does nothing that takes longer than a fork."""
BUSY_S = 600.0
"""The same while it imports its libraries or prepares something."""
_LOOK_S = 0.25
"""What one look counts for at most."""


class Silence:
    """Measures how long the fork server has owed an answer.

    It is the time that this process has spent looking: should all have stood still together (a laptop asleep, a
    container frozen), nobody is to blame.
    """

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._owed_s = 0.0
        self._asked = False
        self.tasks = 0
        """Imports and preparations that it has not reported the end of."""

    def should_ask(self) -> bool:
        """Look once more; call this while an answer matters. True if it is to be asked now whether it is there."""
        now = time.monotonic()
        self._owed_s += min(now - self._looked_at, _LOOK_S) if self._asked else 0.0
        self._looked_at = now
        asked, self._asked = self._asked, True
        return not asked

    def broken(self, alive: bool) -> None:
        """It has said something; ``alive`` if that was its answer."""
        self._owed_s = 0.0
        if alive:
            self._asked = False

    @property
    def limit_s(self) -> float:
        """How long it may take now."""
        return BUSY_S if self.tasks else ANSWER_S

    @property
    def too_long(self) -> bool:
        """Whether it is taken to be stopped."""
        return self._owed_s > self.limit_s
