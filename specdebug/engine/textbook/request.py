"""A request: its prompt, the slots that it holds, its output; and the prompt chunks that are computed together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, islice

import torch
from torch import Tensor

from specdebug.base.features import NONE, Features
from specdebug.engine.device import upload
from specdebug.engine.model.tokenizer import TargetTokenizer
from specdebug.engine.textbook.attention.planner import ExtendLayout
from specdebug.engine.textbook.memory.radix_cache import TreeNode
from specdebug.engine.textbook.memory.req_to_token import ReqToToken

CHARACTER = 4
"""Most bytes of a character in UTF-8."""


class StopStrings:
    """Looks for stop strings in what an output decodes to, token by token; the prompt is no part of it.

    A token stands for at least a byte, so a string that the newest token completes lies in as many tokens as it has
    bytes; only those are decoded, and one before them, because some decoders strip what is first. A tail that begins
    within a character can lose what follows, so it begins at four places. What it says holds once the whole output says
    so.
    """

    def __init__(self, strings: Sequence[str], tokenizer: TargetTokenizer) -> None:
        self._strings = tuple(strings)
        self._tokenizer = tokenizer
        self._reach = 1 + max(len(string.encode("utf-8", "surrogatepass")) for string in self._strings)

    def completed(self, output_ids: Sequence[int]) -> str | None:
        """The first listed stop string in the text of the output, none of which was in it before the last token."""
        if not self._tokenizer.has(output_ids[-1]):
            return None
        known = filter(self._tokenizer.has, reversed(output_ids))
        tail = list(islice(known, self._reach + CHARACTER - 1))[::-1]
        starts = range(max(1, min(CHARACTER, len(tail) - self._reach + 1)))
        if all(self._found(tail[start:]) is None for start in starts):
            return None
        return self._found(output_ids)

    def _found(self, ids: Sequence[int]) -> str | None:
        text = self._tokenizer.decode(ids)
        return next((string for string in self._strings if string in text), None)


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
    features: Features = NONE
    """What steers the choice beside; completions and log probabilities are for others to make and to tell."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not 0 <= self.temperature < math.inf or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"sampling parameters out of range: {self}")
        if isinstance(self.stop, str) or any(not string or "\ufffd" in string for string in self.stop):
            raise ValueError(f"stop must be strings, none empty or with U+FFFD (bytes that are no text): {self.stop!r}")
        if self.features.grammar:
            raise ValueError("no grammar can be asked for")

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


@dataclass(frozen=True)
class PrefillBatch(ExtendLayout):
    """Prompt chunks, one per request, one after another.

    input_ids, positions, out_cache_loc: int64 [Σext]. final: bool [B], true where the chunk ends the prompt, and as the
    host knows it, ``ends_prompt``. next_prompt_ids: int64 [B], the prompt token after the chunk, 0 if there is none.
    """

    requests: tuple[Request, ...]
    input_ids: Tensor
    positions: Tensor
    out_cache_loc: Tensor
    final: Tensor
    next_prompt_ids: Tensor
    ends_prompt: tuple[bool, ...]

    @classmethod
    def build(
        cls, chunks: Sequence[tuple[Request, int]], req_to_token: ReqToToken, device: torch.device
    ) -> PrefillBatch:
        """From (request, chunk length) pairs; the chunk starts at the request's ``kv_len``."""
        requests, extend_lens = zip(*chunks, strict=True)
        prefix_lens = tuple(request.kv_len for request in requests)
        spans = [(request.all_ids, request.kv_len, request.kv_len + length) for request, length in chunks]
        ends_prompt = tuple(stop == len(ids) for ids, _, stop in spans)
        locs = [req_to_token.slots(request.row, request.kv_len, request.kv_len + n) for request, n in chunks]
        return cls(
            requests=requests,
            prefix_lens=upload(prefix_lens, device),
            extend_lens=upload(extend_lens, device),
            req_pool_indices=upload([request.row for request in requests], device),
            input_ids=upload([token for ids, start, stop in spans for token in ids[start:stop]], device),
            positions=upload([position for _, start, stop in spans for position in range(start, stop)], device),
            out_cache_loc=torch.cat(locs),
            final=upload(ends_prompt, device),
            next_prompt_ids=upload([ids[stop] if stop < len(ids) else 0 for ids, _, stop in spans], device),
            prefix_lens_cpu=prefix_lens,
            extend_lens_cpu=extend_lens,
            ends_prompt=ends_prompt,
        )

    def chunks(self) -> Iterator[tuple[Request, int, int]]:
        """Each request, the position at which its chunk starts, and the chunk's length, as the host knows them."""
        return zip(self.requests, self.prefix_lens_cpu, self.extend_lens_cpu, strict=True)

    def last_rows(self) -> Tensor:
        """Row of each request's last token: int64 [B]."""
        return self.extend_lens.cumsum(0) - 1

    def rows_of(self, keep: Sequence[int]) -> Tensor:
        """Token rows of the requests numbered ``keep``: int64."""
        ends = [0, *accumulate(self.extend_lens_cpu)]
        return upload([row for i in keep for row in range(ends[i], ends[i + 1])], self.extend_lens.device)
