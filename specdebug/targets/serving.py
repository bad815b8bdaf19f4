"""Targets that are servers: how one is seen, and how its failure is told.

Such a target's engine runs in another process, or on another machine, behind SGLang's HTTP interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specdebug.base.errors import SpecDebugError
from specdebug.targets.base import RequestView


class SessionFailed(Exception):
    """A session's engine has failed, and how: the run ends in this violation. Nothing that its user could mend."""

    def __init__(self, message: str, site: str, kind: str = "error") -> None:
        super().__init__(message)
        self.site = site
        self.kind = kind


class NotShown(Exception):
    """A part of an engine that was to be looked at cannot be any more; its log says why (:class:`Lost`)."""


class NoServer(SpecDebugError):
    """There is no server at an address, or none of the interface; or one could not be started."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A look at an engine, or a stand-in for a part of it, that does not fit this release. ``place``: ``file:line`` of
    our code where that showed, if anywhere. What an engine does without a ``stand_in`` is not judged."""

    what: str
    why: str
    place: str
    stand_in: bool

    def __str__(self) -> str:
        told = "cannot stand in for" if self.stand_in else "cannot look at"
        return f"specdebug {told} {self.what} in this release: {self.why}" + (f" ({self.place})" if self.place else "")


ToldToken = tuple[int, float, Mapping[int, float]]
"""A token, its log probability, and those of the likeliest tokens of its position."""


class ServerView(Protocol):
    """A server, as oracles see it. What one cannot be asked for it does not show. ``own``: it is ours."""

    @property
    def own(self) -> bool: ...

    def check_alive(self, *, generates: bool) -> SessionFailed | None:
        """Ask it if it is well, by a request of its own if ``generates``; what is wrong, or None. Of one whose process
        is known to have ended, that is what it died of."""

    def counted(self, rid: str) -> Mapping[str, Any]:
        """Its ``meta_info`` of a request that has ended; empty of one that was aborted."""

    def revised(self, rid: str) -> str | None:
        """How the stream of a request took back what it had said; None if it did not."""

    def owed(self, rid: str) -> int:
        """The least of a request's prompt that must have come out of the cache; 0 where that is not known."""

    def mean_accepted(self) -> float | None:
        """The mean accept length that its totals must have; None where that is not known."""

    def text(self, rid: str) -> str:
        """The text of a request that has ended, its stream put together."""

    def told(self, rid: str) -> Sequence[ToldToken]:
        """The log probabilities that a request was answered with; empty if it did not ask for them."""

    def logprobs(self, request: RequestView) -> tuple[Sequence[int], Sequence[ToldToken]] | None:
        """Serve a request once more with log probabilities: its tokens, and a :data:`ToldToken` for each. None of a
        server that is not known to have them for drafts. Raises SessionFailed."""

    def pieces(self, request: RequestView) -> tuple[str, str] | None:
        """Serve a request twice more, by OpenAI's route: the pieces of its streamed text put together, and its text as
        a whole. None of a server without that route. Raises SessionFailed."""

    def totals(self) -> Mapping[str, Any]:
        """Its counts of all requests so far, those of others included."""

    def findings(self) -> Sequence[tuple[str, str]]:
        """New failures that it or its log tells of: the signature, and the words."""

    def new_injections(self) -> Sequence[Mapping[str, Any]]:
        """What it newly tells of the faults that it was started with: ``ledger`` is the event, the rest its fields."""

    def lost(self) -> Sequence[Lost]:
        """The parts of ours that do not fit the server's engine, by its own words."""

    def hits(self) -> Mapping[str, Mapping[str, int]]:
        """By fix that it was started without, how often each of its edits has run; empty where that is not known."""

    def reached(self) -> Mapping[str, int]:
        """By probe site, how often it was passed; empty where that is not known."""
