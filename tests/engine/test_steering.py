"""Penalties, biases and least lengths: with drafts and without, each token is the one that the target's logits say once
they are changed as asked, by transformers' model and in words of this file."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from specdebug.base.features import Features
from specdebug.engine import SamplingParams
from specdebug.engine.textbook.sampler import target_probs
from specdebug.reference.sampling import kept_probs
from tests.engine.conftest import Lab
from tests.engine.driving import build, run

PROMPT = [5, 9, 5, 2, 11, 9]
TOKENS = 24
WORKERS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "chain": {"num_steps": 3, "eagle_topk": 1},
    "tree": {"num_steps": 3, "eagle_topk": 3, "num_draft_tokens": 8},
    "v1": {"num_steps": 3, "eagle_topk": 3, "num_draft_tokens": 8, "worker": "v1"},
}
ASKED = {
    "bare": Features(),
    "frequency": Features(frequency_penalty=0.7),
    "presence": Features(presence_penalty=1.5),
    "repetition": Features(repetition_penalty=1.4),
    "bias": Features(logit_bias={"21": -3.0, "9": 2.0}),
    "least": Features(min_new_tokens=10),
    "all": Features(frequency_penalty=-0.3, presence_penalty=0.4, repetition_penalty=0.9, min_new_tokens=5),
}
STOPS = (4, 19)


def written_out(lab: Lab, asked: Features) -> list[int]:
    output: list[int] = []
    while len(output) < TOKENS and not (output and output[-1] in STOPS):
        with torch.no_grad():
            logits = lab.model(torch.tensor([PROMPT + output])).logits[0, -1].double()
        for token in {*PROMPT, *output}:
            factor = asked.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
        for token, count in Counter(output).items():
            logits[token] -= asked.frequency_penalty * count + asked.presence_penalty
        for text, bias in asked.logit_bias.items():
            logits[int(text)] += bias
        if len(output) < asked.min_new_tokens:
            logits[[*STOPS]] = float("-inf")
        output.append(int(logits.argmax()))
    return output


@pytest.fixture(scope="module")
def texts(lab: Lab) -> dict[str, list[int]]:
    return {name: written_out(lab, asked) for name, asked in ASKED.items()}


def test_what_is_asked_for_changes_texts(texts: dict[str, list[int]]) -> None:
    assert [name for name, text in texts.items() if text == texts["bare"]] == ["bare"], texts
    assert len(texts["least"]) > 10


@pytest.mark.parametrize("worker", WORKERS)
def test_each_token_is_what_the_changed_logits_say(lab: Lab, texts: dict[str, list[int]], worker: str) -> None:
    speculative = WORKERS[worker]
    drafts = None if speculative is None else {"draft_model": str(lab.eagle), **speculative}
    options = {"model": str(lab.target), "context_length": 64, "max_running_requests": len(ASKED)}
    engine = build(options, speculative=drafts, memory={"num_slots": 1024})
    for name, asked in ASKED.items():
        sampling = SamplingParams(max_new_tokens=TOKENS, stop_token_ids=STOPS, features=asked)
        engine.add_request(name, PROMPT, sampling)
    run(engine)
    assert {name: engine.requests[name].output_ids for name in ASKED} == texts
    if speculative is not None:
        assert max(length for name in ASKED for length in engine.requests[name].accept_lengths) > 1


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, features=Features(min_p=0.2))
    probs, order = kept_probs(logits, 0.8, 20, 0.9, 0.2)
    right = torch.zeros_like(probs).scatter(-1, order, probs)
    torch.testing.assert_close(target_probs(logits, params).double(), right, rtol=1e-5, atol=1e-7)
    assert ((right > 0).sum(-1) < 20).all()


def test_a_grammar_is_refused() -> None:
    with pytest.raises(ValueError, match="no grammar"):
        SamplingParams(features=Features(regex="a+"))
