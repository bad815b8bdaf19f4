"""Requests of ``/generate``: from their events to tokens, text and counts, and what those of a run must find cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from specdebug.base.features import features_of
from specdebug.targets.http.checked import HISTOGRAMS, MOST_CHARACTERS, BadAnswer
from specdebug.targets.requests import RequestView, Sampling, ToldToken


@dataclass
class HttpRequest:
    """One request as far as it is known here. ``aborting``: its end was asked for."""

    rid: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    speculative: bool
    output_ids: list[int] = field(default_factory=list)
    streamed: list[int] = field(default_factory=list)
    """The tokens that events added to those before; unlike :attr:`output_ids`, which is what the last one holds."""
    text: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    revised: str | None = None
    """The first event that does not go on from the one before, in words."""
    aborting: bool = False
    accept_lengths: tuple[int, ...] = ()

    @property
    def all_ids(self) -> Sequence[int]:
        return [*self.prompt_ids, *self.output_ids]

    @property
    def kv_len(self) -> int:
        return max(len(self.prompt_ids) + len(self.output_ids) - 1, 0) if self.output_ids else 0

    @property
    def cached_tokens(self) -> int:
        cached: int = self.meta.get("cached_tokens", 0)
        return cached

    def take(self, event: Mapping[str, Any], *, incremental: bool) -> None:
        """Take in a checked event, or a whole answer. ``incremental``: it holds what is new, not all so far. Raises
        BadAnswer."""
        meta = event["meta_info"]
        text, ids = event.get("text", ""), event.get("output_ids")
        if ids is None:  # of an older server, which tells tokens where log probabilities are asked for
            ids = [token for _, token, _ in meta.get("output_token_logprobs", ())]
        if incremental:
            self.text += text
            self.streamed += ids
            self.output_ids = list(self.streamed)
        else:
            # Of a text that a stop string ends, that is cut off when it is complete.
            if not self.sampling.stop and not text.startswith(self.text) and self.revised is None:
                self.revised = f"its text was {self.text[-40:]!r} at the end and then {text[-40:]!r}"
            self.streamed += ids[len(self.streamed) :]
            self.text, self.output_ids = text, ids
        most = 2 * self.sampling.max_new_tokens + 1024
        if len(self.output_ids) > most or len(self.text) > MOST_CHARACTERS:
            raise BadAnswer(f"/generate: request {self.rid} goes on behind {most} tokens")
        self.meta = meta

    def end(self) -> None:
        """Take in that the last event has come: why it ended, and what its verifies accepted. Raises BadAnswer."""
        reason = self.meta.get("finish_reason")
        if reason is None:
            raise BadAnswer(f"/generate: request {self.rid} ended without a finish_reason")
        self.finish_reason = reason["type"]
        if self.finish_reason == "abort":
            self.output_ids, self.streamed = [], []  # what it had is no answer
            return
        self.accept_lengths = accept_lengths_of(self.meta, len(self.output_ids))
        matched = self.matched_stop = reason.get("matched")
        stops = self.sampling.stop_token_ids
        if stops and isinstance(matched, int) and matched not in stops and self.output_ids[-1:] == [matched]:
            # The model's own end of text, which a server minds beside the stop tokens that it is given.
            self.sampling = replace(self.sampling, stop_token_ids=(*stops, matched))  # type: ignore[type-var]


def told_tokens(meta: Mapping[str, Any]) -> list[ToldToken]:
    """The log probabilities of a ``meta_info``, which has the likeliest tokens only where they were asked for."""
    own, best = (meta.get(f"output_{what}_logprobs", ()) for what in ("token", "top"))
    tops = [*best, *([()] * (len(own) - len(best)))]
    pairs = zip(own, tops, strict=False)
    return [(token, chance, {other: at for at, other, _ in top}) for (chance, token, _), top in pairs]


def accept_lengths_of(meta: Mapping[str, Any], output: int) -> tuple[int, ...]:
    """How many tokens each verify accepted, the bonus counted, the most first: the interface tells no order. Without a
    histogram the verifies are made out to be as equal as their sum allows. ``output``: the tokens that there are.
    Raises BadAnswer for so many verifies that they can be none of these."""
    name, histogram = next(((name, meta[name]) for name in HISTOGRAMS if meta.get(name)), ("", []))
    verifies = sum(histogram) if histogram else meta.get("spec_verify_ct", 0)
    if verifies > (most := 8 * output + 1024):
        told = f"meta_info.{name or 'spec_verify_ct'} counts {verifies} verifies"
        raise BadAnswer(f"/generate: {told}, of which there can be {most} at most for {output} tokens")
    if histogram:
        pairs = reversed(list(enumerate(histogram, start=1)))
        return tuple(length for length, times in pairs for _ in range(times))
    tokens = meta.get("completion_tokens", 0) - 1
    if verifies < 1 or tokens < verifies:
        return (1,) * verifies
    low, more = divmod(int(tokens), int(verifies))
    return (low + 1,) * more + (low,) * (verifies - more)


MOST_SEED = 2**53
"""A seed must be less: JSON's numbers are exact up to there."""


def sampling_params(sampling: Sampling, *, seeded: bool = False) -> dict[str, Any]:
    """SGLang's ``sampling_params``. ``seeded``: the server takes a seed for each request. Special tokens are text, too,
    so that the text can be held against all its tokens. A request without stop tokens goes on to its length, whatever
    the model says. One with them cannot be told to: ``ignore_eos`` has SGLang ignore those, too."""
    asked: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "skip_special_tokens": False,
    }
    if sampling.temperature:
        asked["top_p"] = sampling.top_p
        if sampling.top_k:
            asked["top_k"] = sampling.top_k
        if seeded:
            asked["sampling_seed"] = sampling.seed % MOST_SEED
    if sampling.stop:
        asked["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        asked["stop_token_ids"] = list(sampling.stop_token_ids)
    else:
        asked["ignore_eos"] = not features_of(sampling).grammar  # which ends where the model ends its text
    beside = features_of(sampling).asked
    return asked | {name: value for name, value in beside.items() if name not in ("logprobs", "n")}


class ServedTexts:
    """Texts that have ended since the cache was flushed, and what each request sent after them must find of its prompt.

    A text is cached whole pages at a time, and stays while nothing has to make room for another. So nothing is known of
    a server that others may use, that says neither its pages nor its room, or whose room was half asked for. A key of
    the cache may be a pair of tokens, as EAGLE's is, and a prompt's last token is always computed. ``page``, ``room``:
    slots a page, and all slots; 0 where they are not known.
    """

    def __init__(self, page: int = 0, room: int = 0) -> None:
        self._page = page
        self._room = room
        self._flushed = False
        self._asked = 0
        self._texts: list[tuple[bool, Sequence[int]]] = []
        self._owed: dict[str, int] = {}
        self._accepted: list[int] | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> ServedTexts:
        """Of a server that says this of itself. One of several replicas may be asked what another has."""
        alone = len(told.get("internal_states", ())) == 1 and not told.get("disable_radix_cache")
        return cls(told.get("page_size", 0), told.get("max_total_num_tokens", 0)) if alone else cls()

    def flushed(self) -> None:
        """The cache is empty, and the mean accept length begins anew."""
        self._flushed, self._asked = True, 0
        self._texts, self._owed, self._accepted = [], {}, []

    def sent(self, answer: RequestView) -> None:
        """A request is about to be sent."""
        self._asked += len(answer.prompt_ids) + answer.sampling.max_new_tokens + self._page
        shared = (
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, answer.prompt_ids, strict=False)))
            for speculative, text in self._texts
            if speculative
        )
        found = min(max(shared, default=0), len(answer.prompt_ids) - 1) - 1
        self._owed[answer.rid] = found // self._page * self._page if self._page and found > 0 else 0

    def ended(self, answer: RequestView) -> None:
        """A request has ended; of one that was aborted it is not known what it left, and what was accepted for it."""
        if answer.finish_reason == "abort":
            self._accepted = None
            return
        self._texts.append((answer.speculative, answer.all_ids[:-1]))  # the last token has no KV
        if self._accepted is not None:
            self._accepted += answer.accept_lengths

    def owed(self, rid: str) -> int:
        """The least that a request must have found in the cache of its prompt."""
        return self._owed.get(rid, 0) if self._flushed and 2 * self._asked <= self._room else 0

    @property
    def mean(self) -> float | None:
        """The mean accept length of all verifies since the flush; None where it is not known."""
        return sum(self._accepted) / len(self._accepted) if self._accepted else None
