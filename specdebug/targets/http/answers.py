"""Answers of ``/generate``: from the events of a request to its tokens, its text and its counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdebug.targets.base import Sampling
from specdebug.targets.http.client import BadAnswer


@dataclass
class HttpAnswer:
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
    """What the engine stores for its next draft at the end, where it can be looked at (``looks.py``)."""

    @property
    def all_ids(self) -> Sequence[int]:
        return [*self.prompt_ids, *self.output_ids]

    @property
    def kv_len(self) -> int:
        return max(len(self.prompt_ids) + len(self.output_ids) - 1, 0) if self.output_ids else 0

    @property
    def cached_tokens(self) -> int:
        cached = self.meta.get("cached_tokens", 0)
        return cached if isinstance(cached, int) else 0

    def take(self, event: Mapping[str, Any], *, incremental: bool) -> None:
        """Take in an event, or a whole answer. ``incremental``: it holds what is new, not all so far. Raises
        BadAnswer."""
        meta = event.get("meta_info")
        if not isinstance(meta, Mapping):
            raise BadAnswer("an answer of /generate without meta_info")
        text, ids = event.get("text", ""), _ids_of(event, meta)
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
        self.meta = meta

    def end(self) -> None:
        """Take in that the last event has come: why it ended, and what its verifies accepted. Raises BadAnswer."""
        reason = self.meta.get("finish_reason")
        if not isinstance(reason, Mapping) or not isinstance(reason.get("type"), str):
            raise BadAnswer(f"request {self.rid} ended without a finish_reason")
        self.finish_reason = reason["type"]
        if self.finish_reason == "abort":
            self.output_ids, self.streamed = [], []  # what it had is no answer
            return
        self.accept_lengths = accept_lengths_of(self.meta)
        matched = self.matched_stop = reason.get("matched")
        stops = self.sampling.stop_token_ids
        if stops and isinstance(matched, int) and matched not in stops and self.output_ids[-1:] == [matched]:
            # The model's own end of text, which a server minds beside the stop tokens that it is given.
            self.sampling = replace(self.sampling, stop_token_ids=(*stops, matched))  # type: ignore[type-var]


def _ids_of(event: Mapping[str, Any], meta: Mapping[str, Any]) -> list[int]:
    """The tokens of an event: newer servers have them, others where log probabilities are asked for."""
    ids = event.get("output_ids")
    if ids is None:
        ids = [each[1] for each in meta.get("output_token_logprobs") or ()]
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        raise BadAnswer("an answer of /generate whose output_ids are no list of token ids")
    return ids


HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Names of SGLang's histogram of correct drafts, the newer one first."""


def accept_lengths_of(meta: Mapping[str, Any]) -> tuple[int, ...]:
    """How many tokens each verify accepted, the bonus counted, the most first: the interface tells no order.

    Without a histogram the verifies are made out to be as equal as their sum allows: their mean is right.
    """
    histogram = next((meta[name] for name in HISTOGRAMS if meta.get(name)), None)
    if histogram:
        pairs = reversed(list(enumerate(histogram, start=1)))
        return tuple(length for length, times in pairs for _ in range(int(times)))
    verifies, tokens = int(meta.get("spec_verify_ct") or 0), int(meta.get("completion_tokens") or 0) - 1
    if verifies < 1 or tokens < verifies:
        return (1,) * verifies
    low, more = divmod(tokens, verifies)
    return (low + 1,) * more + (low,) * (verifies - more)


MOST_SEED = 2**53
"""A seed must be less: JSON's numbers are exact up to there."""


def sampling_params(sampling: Sampling, *, seeded: bool = False) -> dict[str, Any]:
    """SGLang's ``sampling_params``. ``seeded``: the server takes a seed for each request.

    A request without stop tokens goes on to its length, whatever the model says. One with them cannot be told to:
    SGLang's ``ignore_eos`` has it ignore those, too.
    """
    asked: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
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
