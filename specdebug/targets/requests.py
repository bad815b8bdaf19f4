"""Requests, as a target shows them and takes them, and how a session of it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, cast

from specdebug.base.errors import SpecDebugError


class Sampling(Protocol):
    """The choice of a request's tokens; ``scenario.workload.RequestSampling`` is one."""

    @property
    def max_new_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...
    @property
    def stop(self) -> tuple[str, ...]: ...
    @property
    def seed(self) -> int: ...


def within_context(
    prompt_ids: Sequence[int], sampling: Sampling, limit: int | None, note: Callable[[str], None], whose: str
) -> Sampling:
    """The sampling of a request, its output cut to what a context of ``limit`` tokens has room for, which is noted. A
    prompt that fills the context itself is left for the engine to decline. ``whose``: the context, in a word."""
    if limit is None or not len(prompt_ids) < limit < len(prompt_ids) + sampling.max_new_tokens:
        return sampling
    note(f"outputs end with the context of {limit} tokens; this {whose} takes no longer requests")
    cut: Sampling = dataclasses.replace(cast(Any, sampling), max_new_tokens=limit - len(prompt_ids))
    return cut


class RequestView(Protocol):
    """One request so far. ``kv_len``: positions with target KV. Accept lengths, one a verify, count the bonus token.
    ``finish_reason``: ``stop`` once the last of ``output_ids`` is a stop token or completes a stop string, which is
    then ``matched_stop``; else ``length`` once there are ``max_new_tokens``; or ``abort``."""

    @property
    def rid(self) -> str: ...
    @property
    def prompt_ids(self) -> Sequence[int]: ...
    @property
    def output_ids(self) -> Sequence[int]: ...
    @property
    def all_ids(self) -> Sequence[int]: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def speculative(self) -> bool: ...
    @property
    def kv_len(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def accept_lengths(self) -> Sequence[int]: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def matched_stop(self) -> int | str | None: ...


class CannotBeServed(SpecDebugError):
    """A request that a session can never serve. ``rid`` names it."""

    def __init__(self, rid: str, reason: str) -> None:
        super().__init__(f"request '{rid}' {reason}")
        self.rid = rid


class SessionFailed(Exception):
    """A session's engine has failed, and how: the run ends in this violation, with this data. Nothing that its user
    could mend."""

    def __init__(
        self, message: str, site: str, kind: str = "error", data: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        super().__init__(message)
        self.site, self.kind, self.data = site, kind, data


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
NOMINAL_LOGIT = 16.0
"""In place of the largest logit at a position, which log probabilities do not tell: near-ties are allowed as a part of
it (``lossless.py``), and those of language models have 10 to 30."""
