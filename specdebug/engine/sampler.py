"""Choosing tokens from target logits: argmax, or a draw under temperature, top-k and top-p.

Every request owns a generator seeded by its id, so what it draws depends neither on who shares its batch nor on
who came before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_nan, maybe_detect_oob
from specdebug.engine.request import Request, SamplingParams


def top_k_renorm(probs: Tensor, top_k: int) -> Tensor:
    """Keep the ``top_k`` most likely tokens of each row [.., V] (0: all) and renormalise."""
    if top_k == 0 or top_k >= probs.shape[-1]:
        return probs
    kept = torch.topk(probs, top_k, dim=-1)
    out = torch.zeros_like(probs).scatter_(-1, kept.indices, kept.values)
    return out / out.sum(dim=-1, keepdim=True)


def top_p_renorm(probs: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches ``top_p`` and renormalise."""
    if top_p >= 1.0:
        return probs
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= top_p, 0.0)
    out = torch.zeros_like(probs).scatter_(-1, index, ordered)
    return out / out.sum(dim=-1, keepdim=True)


def target_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """float32 probabilities of logits [.., V] under one request's sampling parameters (temperature > 0)."""
    probs = torch.softmax(logits.float() / params.temperature, dim=-1)
    maybe_detect_nan(probs, "sampler.softmax.probs")
    probs = top_k_renorm(probs, params.top_k)
    maybe_detect_nan(probs, "sampler.top_k.probs")
    probs = top_p_renorm(probs, params.top_p)
    maybe_detect_nan(probs, "sampler.top_p.probs")
    return probs


def request_generator(request: Request, engine_seed: int) -> torch.Generator:
    """The request's own random stream, made on first use."""
    if request.generator is None:
        name = f"{engine_seed}/{request.sampling.seed}/{request.rid}".encode()
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)
        request.generator = torch.Generator().manual_seed(seed)
    return request.generator


def sample(
    logits: Tensor, requests: Sequence[Request], engine_seed: int, *, drawing: Sequence[bool] | None = None
) -> Tensor:
    """Next token of each request from logits [B, V]: int64 [B].

    Requests not ``drawing`` (all are unless given) get the argmax and keep their random streams: the token after
    a chunk that does not end the prompt is discarded, and cutting a prompt must not change what is drawn later.
    """
    ids = torch.argmax(logits, dim=-1)
    for b, request in enumerate(requests):
        if not request.sampling.greedy and (drawing is None or drawing[b]):
            probs = target_probs(logits[b], request.sampling)
            generator = request_generator(request, engine_seed)
            ids[b] = torch.multinomial(probs, 1, generator=generator)[0]
    maybe_detect_oob(ids, 0, logits.shape[-1], "sampler.next_token_ids")
    return ids
