"""The reference model run over what an engine was given and gave back, reusing what earlier runs computed.

A causal model's states at a prefix depend on that prefix alone. Requests share prefixes and are looked at
more than once (after prefill, at the end), so the last few sequences are kept with their keys and values,
and a new one starts from the longest prefix any of them shares with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.assets import checkpoint_path
from specdebug.reference import (
    DenseCache,
    DraftHead,
    ModelConfig,
    draft_kv,
    load_draft,
    load_weights,
    target_forward,
)
from specdebug.reference.drafting import DraftedText
from specdebug.reference.target import target_logits
from specdebug.verdict.outcome import first_difference

MAX_KEPT_TOKENS = 8192
"""Of all kept sequences together; some 18 KiB a token with the shipped target."""

CHUNK = 1024
"""Tokens a forward takes at once; bounds the memory that logits over a large vocabulary need."""


Names = tuple[str, str | None]
"""Of the target, and of the draft if there is one."""

_loaded: dict[Names, tuple[dict[str, Tensor], ModelConfig, DraftHead | None]] = {}
_foreseen: dict[Names, list[_Sequence]] = {}


def keep_weights(model: str, draft_model: str | None) -> None:
    """Load the weights of a reference that is made later, here or in a fork. Raises CheckpointError."""
    if (model, draft_model) not in _loaded:
        _loaded[model, draft_model] = _load(model, draft_model)


def foresee(model: str, draft_model: str | None, texts: Sequence[tuple[Sequence[int], int]]) -> None:
    """Work out greedy texts, each a prompt and how many tokens follow, for references that are made later, here or in a
    fork. Takes the place of what was foreseen before. Raises CheckpointError."""
    _foreseen.clear()
    reference = DenseReference(model, draft_model)
    for prompt, count in texts:
        reference.foresee(prompt, count)
    _foreseen[model, draft_model] = reference.kept


def _load(model: str, draft_model: str | None) -> tuple[dict[str, Tensor], ModelConfig, DraftHead | None]:
    weights, config = load_weights(checkpoint_path(model))
    head = None if draft_model is None else load_draft(checkpoint_path(draft_model), weights, config)
    return weights, config, head


@dataclass
class _Sequence:
    ids: list[int]
    cache: DenseCache
    hidden: Tensor
    aux: Tensor


class DenseReference:
    """float32 target and (optionally) draft head of two checkpoints, evaluated densely on the CPU."""

    def __init__(self, model: str, draft_model: str | None) -> None:
        """Load. Names or paths; raises CheckpointError."""
        self.weights, self.config, self.head = _loaded.get((model, draft_model)) or _load(model, draft_model)
        self.kept = list(_foreseen.get((model, draft_model), ()))
        """Sequences computed, the one asked for last at the end."""

    @torch.no_grad()
    def judge(self, ids: Sequence[int], start: int) -> tuple[list[int], list[float], list[float]]:
        """The greedy choices at positions ``start`` (at least 1) up to the end of ``ids``, how far the logit of each
        stands above that of the token given (0.0 where they agree), and the largest magnitude among all logits
        there."""
        logits = self.logits(ids, start)
        best, choice = logits.max(-1)
        given = logits.gather(-1, torch.tensor(ids[start:])[:, None])[:, 0]
        choices: list[int] = choice.tolist()
        gaps: list[float] = (best - given).tolist()
        sizes: list[float] = logits.abs().amax(-1).tolist()
        return choices, gaps, sizes

    @torch.no_grad()
    def logits(self, ids: Sequence[int], start: int) -> Tensor:
        """The logits [n, V] by which the tokens at positions ``start`` (at least 1) up to the end of ``ids`` follow."""
        states = self._states(ids[:-1])
        return target_logits(self.weights, self.config, states.hidden[start - 1 : len(ids) - 1])

    @torch.no_grad()
    def next_token(self, ids: Sequence[int]) -> tuple[int, float, float]:
        """The greedy token after ``ids``, its logit's distance to the second best, and the largest logit in size."""
        states = self._states(ids)
        logits = target_logits(self.weights, self.config, states.hidden[len(ids) - 1])
        (best, second), (token, _) = (each.tolist() for each in logits.topk(2))
        return token, best - second, float(logits.abs().max())

    @torch.no_grad()
    def features(self, ids: Sequence[int]) -> Tensor:
        """The target's states that the draft head reads at each of ``ids``: [n, H], or [n, 3H] for EAGLE-3."""
        if self.head is None:
            raise ValueError("no draft head was loaded")
        states = self._states(ids)
        return (states.aux if self.head.is_eagle3 else states.hidden)[: len(ids)]

    @torch.no_grad()
    def draft_kv(self, ids: Sequence[int], stop: int) -> tuple[Tensor, Tensor]:
        """Draft keys (rotated) and values of positions [0, stop), each float32 [stop, Hkv, D]; ``stop < len(ids)``, as
        position p is written from token p+1 and the target's state at p."""
        hidden = self.features(ids[:stop])
        assert self.head is not None  # for the type checker: just asked for
        k, v = draft_kv(self.head, torch.tensor(ids[1 : stop + 1]), hidden, torch.arange(stop))
        return k.transpose(-2, -3), v.transpose(-2, -3)

    @torch.no_grad()
    def drafted(self, ids: Sequence[int], zeroed: Tensor | None = None) -> DraftedText:
        """The draft head once it has read ``ids``, the last of which the target has not. ``zeroed``: int64,
        positions whose draft KV was set to zero."""
        features = self.features(ids[:-1])
        assert self.head is not None  # for the type checker: just asked for
        return DraftedText(self.head, torch.tensor(ids), features, zeroed)

    @torch.no_grad()
    def target_kv(self, ids: Sequence[int], stop: int) -> tuple[Tensor, Tensor]:
        """Target keys (rotated) and values of positions [0, stop), each float32 [stop, layers·Hkv, D]."""
        cache = self._states(ids[:stop]).cache
        k, v = (side[:, 0, :, :stop].flatten(0, 1).transpose(0, 1) for side in (cache.keys, cache.values))
        return k, v

    @torch.no_grad()
    def foresee(self, prompt: Sequence[int], count: int) -> None:
        """Compute the states of a prompt and of ``count`` tokens more, decoded greedily."""
        ids = list(prompt)
        for _ in range(count):
            last = self._states(ids).hidden[len(ids) - 1]
            ids.append(int(target_logits(self.weights, self.config, last).argmax()))
        self._states(ids)

    def _states(self, ids: Sequence[int]) -> _Sequence:
        """The kept sequence that begins with ``ids``, computed as far as necessary."""
        best, shared = None, 0
        for sequence in self.kept:
            parted = first_difference(sequence.ids, ids)
            length = len(ids) if parted is None else parted
            if length > shared or best is None:
                best, shared = sequence, length
        if best is None or shared < min(len(best.ids), len(ids)):
            best = self._fork(best, shared)
        else:
            self.kept.remove(best)
        self.kept.append(best)  # newest last
        self._extend(best, ids)
        while len(self.kept) > 1 and sum(len(sequence.ids) for sequence in self.kept) > MAX_KEPT_TOKENS:
            self.kept.pop(0)
        return best

    def _fork(self, parent: _Sequence | None, length: int) -> _Sequence:
        # A batch of one: torch has a fast attention for four dimensions on a CPU, and none for three.
        cache = DenseCache(self.config, 0, batch=(1,))
        if parent is None:
            return _Sequence([], cache, torch.empty(0, self.config.hidden_size), torch.empty(0, 0))
        cache.keys = parent.cache.keys[..., :length, :].clone()
        cache.values = parent.cache.values[..., :length, :].clone()
        cache.length = length
        return _Sequence(parent.ids[:length], cache, parent.hidden[:length], parent.aux[:length])

    def _extend(self, sequence: _Sequence, ids: Sequence[int]) -> None:
        aux_layers = self.head.config.aux_layers if self.head is not None else None
        cache = sequence.cache
        missing = len(ids) - cache.length
        if missing > 0:
            room = torch.zeros(*cache.keys.shape[:-2], missing, cache.keys.shape[-1])
            cache.keys = torch.cat([cache.keys[..., : cache.length, :], room], dim=-2)
            cache.values = torch.cat([cache.values[..., : cache.length, :], room], dim=-2)
        while cache.length < len(ids):
            start = cache.length
            piece = list(ids[start : start + CHUNK])
            tokens = torch.tensor([piece])
            _, hidden, aux = target_forward(self.weights, self.config, tokens, cache=cache, aux_layers=aux_layers)
            sequence.ids.extend(piece)
            sequence.hidden = torch.cat([sequence.hidden, hidden[0]])
            sequence.aux = torch.cat([sequence.aux, aux[0]]) if start else aux[0]
