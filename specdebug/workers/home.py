"""Where a job's worker lives where that is not a fork of this interpreter's own server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Home:
    """An interpreter that workers are forked from, such as one of an engine's environment.

    ``path`` goes in front of what it imports from (specdebug must be found there), ``env`` lies over our variables,
    ``preload`` are the modules that its fork server imports before it forks any worker.
    """

    python: str
    path: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    preload: tuple[str, ...] = ()


@dataclass(frozen=True)
class Nest:
    """A process that has called ``target`` (``module:function``) with ``argument``, and that workers of jobs with this
    ``key`` are forked from, in place of the fork server, or the nest ``of`` which it is itself a fork. Where the target
    raises, they are forked from that. ``kept``: as many of its server's may be without a job when it has had one."""

    key: str
    target: str
    argument: Any = None
    of: Nest | None = None
    kept: int = 2

    @property
    def line(self) -> tuple[Nest, ...]:
        """Those that it comes of, the first one first, and itself."""
        return (*(self.of.line if self.of else ()), self)
