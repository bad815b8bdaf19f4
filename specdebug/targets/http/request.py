"""Answers of ``/generate``: from the events of a request to its tokens, its text and its counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdebug.targets.base import Sampling
from specdebug.targets.http.checked import HISTOGRAMS, MOST_CHARACTERS, BadAnswer
from specdebug.targets.serving import ToldToken


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
    stored: Any = None
    """What the engine stores for its next draft at the end, where it can be looked at (``request_looks.py``)."""

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
        text, ids = event.get("text", ""), ids_of(event)
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


def ids_of(event: Mapping[str, Any]) -> list[int]:
    """The tokens of an event: newer servers have them, others where log probabilities are asked for."""
    ids: list[int] | None = event.get("output_ids")
    return [token for _, token, _ in event["meta_info"].get("output_token_logprobs", ())] if ids is None else ids


def told_tokens(meta: Mapping[str, Any]) -> list[ToldToken]:
    """The log probabilities of a ``meta_info``, which has the likeliest tokens only where they were asked for."""
    own, best = (meta.get(f"output_{what}_logprobs", ()) for what in ("token", "top"))
    tops = [*best, *([()] * (len(own) - len(best)))]
    pairs = zip(own, tops, strict=False)
    return [(token, chance, {other: at for at, other, _ in top}) for (chance, token, _), top in pairs]


def histogram_of(meta: Mapping[str, Any]) -> tuple[str, list[int]]:
    """The histogram of correct drafts, with its name; empty where there is none."""
    return next(((name, meta[name]) for name in HISTOGRAMS if meta.get(name)), ("", []))


def accept_lengths_of(meta: Mapping[str, Any], output: int) -> tuple[int, ...]:
    """How many tokens each verify accepted, the bonus counted, the most first: the interface tells no order.

    Without a histogram the verifies are made out to be as equal as their sum allows: their mean is right. ``output``:
    the tokens that there are. Raises BadAnswer for so many verifies that they can be none of these.
    """
    name, histogram = histogram_of(meta)
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
    """SGLang's ``sampling_params``. ``seeded``: the server takes a seed for each request.

    Special tokens are text, too, so that the text can be held against all its tokens. A request without stop tokens
    goes on to its length, whatever the model says. One with them cannot be told to: SGLang's ``ignore_eos`` has it
    ignore those, too.
    """
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
        asked["ignore_eos"] = True
    return asked
