"""The reference model run over what an engine was given and gave back, reusing what earlier runs computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdebug.base.assets import checkpoint_path
from specdebug.reference.config import ModelConfig
from specdebug.reference.draft import AssistantHead, DraftHead, MTPHead, draft_kv, frozen_kv, mtp_kv
from specdebug.reference.drafting import DraftedText
from specdebug.reference.target import DenseCache, target_forward, target_logits
from specdebug.reference.texts import AssistantText, HeadText, MTPText
from specdebug.reference.weights import Draft, Way, load_draft, load_weights
from specdebug.verdict.outcome import first_difference

MAX_KEPT_TOKENS = 8192  # of all kept sequences together; some 18 KiB a token with the shipped target

CHUNK = 1024  # tokens a forward takes at once; bounds the memory that logits over a large vocabulary need


class Names(NamedTuple):
    """Of the target, of the draft if there is one, and of the algorithm that it drafts by."""

    model: str
    draft_model: str | None
    algorithm: str | None = None


WAYS: dict[str, Way] = {"MTP": "layers", "FROZEN_KV_MTP": "frozen"}
"""The algorithms that use a draft otherwise than as a head that goes on from its own outputs."""

Loaded = tuple[dict[str, Tensor], ModelConfig, Draft | None]
_loaded: dict[Names, Loaded] = {}
_foreseen: dict[Names, list[_Sequence]] = {}


def keep_weights(model: str, draft_model: str | None, algorithm: str | None = None) -> None:
    """Load the weights of a reference that is made later, here or in a fork. Raises CheckpointError."""
    names = Names(model, draft_model, algorithm)
    if names not in _loaded:
        _loaded[names] = _load(names)


def foresee(names: Names, texts: Sequence[tuple[Sequence[int], int]]) -> None:
    """Work out greedy texts, each a prompt and how many tokens follow, for references that are made later, here or in a
    fork. Takes the place of what was foreseen before. Raises CheckpointError."""
    _foreseen.clear()
    reference = DenseReference(*names)
    for prompt, count in texts:
        reference.foresee(prompt, count)
    _foreseen[names] = reference.kept


def _load(names: Names) -> Loaded:
    weights, config = load_weights(checkpoint_path(names.model))
    if names.draft_model is None:
        return weights, config, None
    way = WAYS.get(names.algorithm, "recurrent") if names.algorithm else None
    return weights, config, load_draft(checkpoint_path(names.draft_model), weights, config, way=way)


@dataclass
class _Sequence:
    ids: list[int]
    cache: DenseCache
    hidden: Tensor
    aux: Tensor


class DenseReference:
    """float32 target and (optionally) draft of two checkpoints, evaluated densely on the CPU."""

    def __init__(self, model: str, draft_model: str | None, algorithm: str | None = None) -> None:
        """Load. Names or paths; without ``algorithm`` the draft's config decides how it drafts. Raises
        CheckpointError."""
        names = Names(model, draft_model, algorithm)
        self.weights, self.config, self.head = _loaded.get(names) or _load(names)
        self.kept = list(_foreseen.get(names, ()))  # sequences computed, the one asked for last at the end

    @torch.no_grad()
    def judge(self, ids: Sequence[int], start: int) -> tuple[list[int], list[float], list[float]]:
        """The greedy choices at positions ``start`` (at least 1) up to the end of ``ids``, how far the logit of each
        stands above that of the token given (0.0 where they agree), and the largest magnitude among all logits
        there."""
        logits = self.logits(ids, start)
        best, choice = logits.max(-1)
        given = logits.gather(-1, torch.tensor(ids[start:])[:, None])[:, 0]
        return choice.tolist(), (best - given).tolist(), logits.abs().amax(-1).tolist()

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
        """The target's states that the draft reads at each of ``ids``: [n, H], or [n, 3H] for EAGLE-3."""
        states = self._states(ids)
        eagle3 = isinstance(self.head, DraftHead) and self.head.is_eagle3
        return (states.aux if eagle3 else states.hidden)[: len(ids)]

    @property
    def chained(self) -> bool:
        """True if layers of the draft read what the one before them has made of what it attended."""
        return isinstance(self.head, MTPHead) and self.head.chained

    @torch.no_grad()
    def draft_kv(self, ids: Sequence[int], stop: int, zeroed: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
        """Draft keys (rotated) and values of positions [0, stop), as a pool holds them: for each layer float32
        [n, Hkv, D]; ``stop < len(ids)``, as position p is written from token p+1 and the target's state at p. Layer i
        of multi-token prediction needs token p+1+i, so its n is i less. ``zeroed``: int64, positions that held zeros
        whenever a layer read them, which is seen in what ``chained`` layers write."""
        hidden, tokens = self.features(ids[:stop]), torch.tensor(ids[: stop + 1])
        match self.head:
            case MTPHead(chained=True) if zeroed is not None and zeroed.numel():
                written, config = MTPText(self.head, tokens, hidden, zeroed).kv(), self.head.layers[0].config
            case MTPHead():
                written, config = mtp_kv(self.head, tokens, hidden), self.head.layers[0].config
            case DraftHead():
                written, config = [draft_kv(self.head, tokens[1:], hidden, torch.arange(stop))], self.head.config
            case _:
                raise ValueError("no draft was loaded that keeps keys and values")
        return [_as_stored(config, k.transpose(-2, -3), v.transpose(-2, -3)) for k, v in written]

    @torch.no_grad()
    def drafted(self, ids: Sequence[int], zeroed: Tensor | None = None) -> DraftedText[Any]:
        """The draft once it has read ``ids``, the last of which the target has not. ``zeroed``: int64, positions whose
        draft KV was set to zero."""
        features, tokens = self.features(ids[:-1]), torch.tensor(ids)
        match self.head:
            case MTPHead():
                return MTPText(self.head, tokens, features, zeroed)
            case DraftHead():
                return HeadText(self.head, tokens, features, zeroed)
            case AssistantHead():
                cache = self._states(ids[:-1]).cache
                kv = [(k[0, :, : len(features)], v[0, :, : len(features)]) for k, v in frozen_kv(self.head, cache)]
                return AssistantText(self.head, tokens, features, kv)
            case _:
                raise ValueError("no draft was loaded")

    @torch.no_grad()
    def target_kv(self, ids: Sequence[int], stop: int) -> tuple[Tensor, Tensor]:
        """Target keys (rotated) and values of positions [0, stop), as a pool holds them: each float32
        [stop, layers·Hkv, D]."""
        cache = self._states(ids[:stop]).cache
        k, v = (side[:, 0, :, :stop].flatten(0, 1).transpose(0, 1) for side in (cache.keys, cache.values))
        return _as_stored(self.config, k, v)

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
        aux_layers = self.head.config.aux_layers if isinstance(self.head, DraftHead) else None
        cache = sequence.cache
        missing = len(ids) - cache.length
        if missing > 0:
            cache.keys = pad(cache.keys[..., : cache.length, :], (0, 0, 0, missing))
            cache.values = pad(cache.values[..., : cache.length, :], (0, 0, 0, missing))
        while cache.length < len(ids):
            start = cache.length
            piece = list(ids[start : start + CHUNK])
            tokens = torch.tensor([piece])
            _, hidden, aux = target_forward(self.weights, self.config, tokens, cache=cache, aux_layers=aux_layers)
            sequence.ids.extend(piece)
            sequence.hidden = torch.cat([sequence.hidden, hidden[0]])
            sequence.aux = torch.cat([sequence.aux, aux[0]]) if start else aux[0]


def _as_stored(config: ModelConfig, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as a pool holds them."""
    return (k, v) if config.latent is None else (torch.cat([v, k], dim=-1), v)
