"""A request: its prompt, the slots that it holds, its output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch

from specdebug.engine.stop_strings import StopStrings
from specdebug.engine.textbook.memory.radix_cache import TreeNode


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The choice of tokens. temperature 0 is greedy; top_k 0 and top_p 1.0 mean no restriction."""

    max_new_tokens: int = 32
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    """Strings that end a request once the text of its output holds one."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not 0 <= self.temperature < math.inf or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"sampling parameters out of range: {self}")
        if isinstance(self.stop, str) or any(not string or "\ufffd" in string for string in self.stop):
            raise ValueError(f"stop must be strings, none empty or with U+FFFD (bytes that are no text): {self.stop!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class Status(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """One request. Lengths count tokens or positions; ``kv_len`` is L: positions with committed target KV.

    While running, ``len(all_ids) == kv_len + 1``: the newest token (the bonus) has no KV yet.
    """

    rid: str
    prompt_ids: list[int]
    sampling: SamplingParams
    speculative: bool

    cache_limit: int | None = None
    """Leading positions that may come from the prefix cache at most; None: any. The others are computed."""

    status: Status = Status.WAITING
    output_ids: list[int] = field(default_factory=list)
    stop_strings: StopStrings | None = None
    """Looks for those of ``sampling.stop``, if there are any."""
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    """The stop token or stop string that ended it."""
    cached_tokens: int = 0
    """Prompt positions served from the prefix cache at first admission."""
    hit_len: int = 0
    """Leading positions served from the prefix cache at the last admission: after a retraction, of the output too."""
    accept_lengths: list[int] = field(default_factory=list)
    """Tokens accepted by each verify step, the bonus included; the last step may accept more than is kept."""
    retractions: int = 0

    row: int = 0
    kv_len: int = 0
    kv_allocated: int = 0
    protected_len: int = 0
    """Leading positions whose slots belong to the prefix cache, not to this request."""
    node: TreeNode | None = None
    unwritten_draft_slots: torch.Tensor | None = None
    """Slots of the matched prefix whose draft KV was never written."""
    generator: torch.Generator | None = None

    @property
    def all_ids(self) -> list[int]:
        return self.prompt_ids + self.output_ids

    @property
    def finished(self) -> bool:
        return self.status is Status.FINISHED

    def accept_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Append tokens until one of them ends the request; returns those kept."""
        before = len(self.output_ids)
        for token in tokens:
            self.output_ids.append(token)
            self.matched_stop = self._stop_at(self.output_ids)
            if self.matched_stop is not None:
                self.finish_reason = "stop"
            elif len(self.output_ids) == self.sampling.max_new_tokens:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                break
        return self.output_ids[before:]

    def count_kept(self, tokens: Sequence[int]) -> int:
        """The number of these tokens that :meth:`accept_tokens` would keep, which it is not told yet."""
        left = self.sampling.max_new_tokens - len(self.output_ids)
        if self.stop_strings is None and not self.sampling.stop_token_ids:
            return min(len(tokens), left)
        output = list(self.output_ids)
        for count, token in enumerate(tokens[:left], 1):
            output.append(token)
            if self._stop_at(output) is not None:
                return count
        return min(len(tokens), left)

    def _stop_at(self, output_ids: Sequence[int]) -> int | str | None:
        """The stop token that the newest token of an output is, or the stop string that it completes."""
        if output_ids[-1] in self.sampling.stop_token_ids:
            return output_ids[-1]
        return None if self.stop_strings is None else self.stop_strings.completed(output_ids)
