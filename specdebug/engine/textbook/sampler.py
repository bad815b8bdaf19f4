"""Choosing tokens from target logits: argmax, or a draw under temperature, top-k and top-p, by a generator of the
request's own. Top-k and top-p keep every token as likely as the last one they keep.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_nan, maybe_detect_oob
from specdebug.engine.device import upload
from specdebug.engine.gpu import flashinfer_sampling
from specdebug.engine.kernels.logits import argmax
from specdebug.engine.textbook.request import Request, SamplingParams


def top_k_renorm(probs: Tensor, top_k: int) -> Tensor:
    """Keep the ``top_k`` most likely tokens of each row [.., V] (0: all), equals of the last included; renormalise."""
    if top_k == 0 or top_k >= probs.shape[-1]:
        return probs
    if probs.is_cuda and flashinfer_sampling.available():
        return _renormalise(probs, flashinfer_sampling.kept_by_top_k(probs, top_k))
    least = torch.topk(probs, top_k, dim=-1).values[..., -1:]
    return _renormalise(probs, probs >= least)


def top_p_renorm(probs: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens whose mass reaches ``top_p``, equals of the last included; renormalise."""
    if top_p >= 1.0:
        return probs
    if probs.is_cuda and flashinfer_sampling.available():
        return _renormalise(probs, flashinfer_sampling.kept_by_top_p(probs, top_p))
    ordered = probs.sort(dim=-1, descending=True).values
    before = ordered.cumsum(dim=-1) - ordered
    least = ordered.masked_fill(before >= top_p, float("inf")).amin(dim=-1, keepdim=True)
    return _renormalise(probs, probs >= least)


def _renormalise(probs: Tensor, kept: Tensor) -> Tensor:
    """probs [.., V] where ``kept``, 0 elsewhere, rows adding up to 1; a row of NaNs keeps nothing and is NaN again."""
    left = torch.where(kept, probs, 0.0)
    return left / left.sum(dim=-1, keepdim=True)


def target_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """float32 probabilities of logits [.., V] under one request's sampling parameters (temperature > 0)."""
    probs = torch.softmax(logits.float() / params.temperature, dim=-1)
    maybe_detect_nan(probs, "sampler.softmax.probs")
    probs = top_k_renorm(probs, params.top_k)
    maybe_detect_nan(probs, "sampler.top_k.probs")
    probs = top_p_renorm(probs, params.top_p)
    maybe_detect_nan(probs, "sampler.top_p.probs")
    if params.features.min_p > 0:
        probs = _renormalise(probs, probs >= params.features.min_p * probs.amax(dim=-1, keepdim=True))
    return probs


def steered(logits: Tensor, requests: Sequence[Request], paths: Callable[[int], Sequence[Sequence[int]]]) -> Tensor:
    """logits [B·n, V] as penalties, biases and least lengths change them; the very ones where none is asked for.
    ``paths``: of request b, for each of its n rows, the drafts between its output and the row's token."""
    steering = [b for b, request in enumerate(requests) if request.sampling.features.steers]
    if steering:
        logits = logits.clone()
        rows = logits.view(len(requests), -1, logits.shape[-1])
        for b in steering:
            for row, path in zip(rows[b], paths(b), strict=True):
                _steer(row, requests[b], path)
    return logits


def _steer(row: Tensor, request: Request, path: Sequence[int]) -> None:
    """Change the logits [V] of the token behind ``path``. A token's penalties are those of all that was output before
    it, and the prompt's, too, of repetition."""
    asked, output = request.sampling.features, [*request.output_ids, *path]
    if asked.repetition_penalty != 1:
        seen = torch.tensor([*{*request.prompt_ids, *output}], device=row.device)
        own = row[seen]
        row[seen] = torch.where(own > 0, own / asked.repetition_penalty, own * asked.repetition_penalty)
    added = {int(token): bias for token, bias in asked.logit_bias.items()}
    for token, count in Counter(output).items():
        added[token] = added.get(token, 0.0) - asked.frequency_penalty * count - asked.presence_penalty
    if len(output) < asked.min_new_tokens:
        added |= dict.fromkeys(request.sampling.stop_token_ids, float("-inf"))
    if added := {token: each for token, each in added.items() if token < len(row)}:
        row[torch.tensor([*added], device=row.device)] += torch.tensor([*added.values()], device=row.device)


def request_generator(request: Request, engine_seed: int) -> torch.Generator:
    """The request's own random stream, made on first use."""
    if request.generator is None:
        name = f"{engine_seed}/{request.sampling.seed}/{request.rid}".encode()
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)
        request.generator = torch.Generator().manual_seed(seed)
    return request.generator


def _draw(probs: Tensor, generator: torch.Generator) -> Tensor:
    """One token by probs [V], wherever they live: the race of exponential clocks that ``torch.multinomial`` runs too,
    here with the request's own generator, which lives on the host."""
    clocks = torch.empty(probs.shape, dtype=probs.dtype).exponential_(generator=generator)
    return (probs / upload(clocks.numpy(), probs.device)).argmax()


def sample(
    logits: Tensor, requests: Sequence[Request], engine_seed: int, *, drawing: Sequence[bool] | None = None
) -> Tensor:
    """Next token of each request from logits [B, V]: int64 [B]. Requests not ``drawing`` get the argmax and keep their
    random streams: a token after a chunk that does not end the prompt is discarded."""
    ids = argmax(logits)
    for b, request in enumerate(requests):
        if not request.sampling.greedy and (drawing is None or drawing[b]):
            ids[b] = _draw(target_probs(logits[b], request.sampling), request_generator(request, engine_seed))
    maybe_detect_oob(ids, 0, logits.shape[-1], "sampler.next_token_ids")
    return ids
