"""Log probabilities of tokens, for the requests that want them: by the target's logits as they are, whatever the
temperature. An engine none of whose requests wants any is not observed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from specdebug.events import Decided, Event, PromptComputed, TokensSampled

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.engine import Engine

ROWS = 256  # positions whose logits are computed at a time


@dataclass
class _Wanted:
    """``top``: the greatest of each position. ``ids``: tokens whose own are told of each. ``start``: of the prompt,
    those of the tokens behind this one."""

    top: int
    ids: list[int]
    start: int | None
    prompt: list[Any] = field(default_factory=list)
    output: list[Any] = field(default_factory=list)


class LogprobRecorder:
    """Keeps log probabilities until :meth:`take` asks for them. Of each token a triple: its own, pairs of the greatest
    and their tokens, and those of the tokens asked for."""

    hears = (PromptComputed, TokensSampled, Decided)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted: dict[str, _Wanted] = {}

    def want(self, rid: str, wish: Mapping[str, Any]) -> None:
        """Keep those of a request from now on."""
        if not self._wanted:
            self._engine.observers.add(self)
        self._wanted[rid] = _Wanted(wish["top"], wish["ids"], wish["start"])

    def forget(self, rid: str) -> None:
        """The request has ended."""
        if self._wanted.pop(rid, None) is not None and not self._wanted:
            self._engine.observers.remove(self)

    def take(self, emitted: Mapping[str, Sequence[int]]) -> dict[str, dict[str, list[Any]]]:
        """Those of a step's tokens, and with the first of a request those of its prompt. What a verify accepted beyond
        what was emitted has none."""
        found = {}
        for rid in self._wanted.keys() & emitted.keys():
            wanted = self._wanted[rid]
            found[rid] = {"output": wanted.output[: len(emitted[rid])], "prompt": wanted.prompt}
            wanted.output, wanted.prompt = [], []
        return found

    def on(self, event: Event) -> None:
        match event:
            case PromptComputed():
                self._keep_prompts(event)
            case TokensSampled(requests, logits, ids):
                for row, wanted in self._rows_wanted(requests):
                    wanted.output = self._told(wanted, logits[row : row + 1], ids[row : row + 1])
            case Decided(requests):
                for row, wanted in self._rows_wanted(requests):
                    nodes = event.accept_index[row]
                    nodes = nodes[nodes >= 0].to(torch.int64)
                    ids = event.predict[nodes].to(torch.int64)
                    wanted.output = self._told(wanted, event.logits[nodes], ids)

    def _rows_wanted(self, requests: Sequence[Any]) -> Iterator[tuple[int, _Wanted]]:
        for row, request in enumerate(requests):
            if (wanted := self._wanted.get(request.rid)) is not None:
                yield row, wanted

    def _keep_prompts(self, computed: PromptComputed) -> None:
        begin = 0
        for request, start, length in zip(computed.requests, computed.starts, computed.lens, strict=True):
            wanted = self._wanted.get(request.rid)
            hidden = computed.hidden[begin : begin + length]
            begin += length
            if wanted is None or wanted.start is None or request.output_ids:
                continue
            # hidden [n, H] of the positions from start on; each tells of the token after it
            prompt = request.prompt_ids
            first, last = max(start, wanted.start), min(start + hidden.shape[0], len(prompt) - 1)
            del wanted.prompt[max(first - wanted.start, 0) :]  # of one that was put back and comes again
            for at in range(first, last, ROWS):
                end = min(at + ROWS, last)
                ids = torch.tensor(prompt[at + 1 : end + 1], device=hidden.device)
                wanted.prompt += self._told(wanted, self._engine.model.logits(hidden[at - start : end - start]), ids)

    def _told(self, wanted: _Wanted, logits: Tensor, ids: Tensor) -> list[Any]:
        """logits [n, V], ids [n]."""
        table = torch.log_softmax(logits.float(), dim=-1)
        own = table.gather(1, ids.unsqueeze(1)).squeeze(1).tolist()
        best: Any = torch.topk(table, min(wanted.top, table.shape[1]), dim=1)
        top = [list(zip(*pair, strict=True)) for pair in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
        asked = table[:, wanted.ids].tolist()
        return list(zip(own, top, asked, strict=True))
