"""Sampling: exact probabilities, and seeds. How often texts come out is in ``test_sampled_texts.py``."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine import Request, SamplingParams
from specdebug.engine.textbook.sampler import request_generator, target_probs, top_k_renorm, top_p_renorm
from tests.engine.conftest import Lab
from tests.engine.driving import build, run
from tests.engine.texts import warped

temperatures = st.sampled_from([0.25, 0.7, 1.0, 1.9])
logit_rows = st.lists(st.floats(-6, 6, width=32), min_size=5, max_size=12)


@settings(max_examples=150, derandomize=True)
@given(row=logit_rows, temperature=temperatures, top_k=st.integers(0, 14), top_p=st.sampled_from([0.3, 0.8, 1.0]))
def test_probabilities_are_those_transformers_draws_from(
    row: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    # Distinct logits: which of two equal ones is cut off is nobody's business.
    logits = torch.tensor([*sorted(set(row)), 7.0]) * 1.001 + torch.arange(len(set(row)) + 1) * 1e-3
    params = SamplingParams(temperature=temperature, top_k=min(top_k, logits.numel()), top_p=top_p)
    got, want = target_probs(logits, params), warped(logits[None], params)[0]
    cumulative = torch.softmax(logits / temperature, dim=-1).sort(descending=True).values.cumsum(0)
    if top_p < 1 and float((cumulative - top_p).abs().min()) < 1e-4:
        return  # the cut falls on a boundary, where rounding decides
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_what_is_as_likely_as_the_last_token_kept_is_kept() -> None:
    probs = torch.tensor([[0.125, 0.5, 0.125, 0.125, 0.125], [0.3, 0.3, 0.2, 0.2, 0.0]])
    fifth = [0.125, 0.5, 0.125, 0.125, 0.125]
    assert torch.equal(top_k_renorm(probs, 2), torch.tensor([fifth, [0.5, 0.5, 0.0, 0.0, 0.0]]))
    assert torch.equal(top_p_renorm(probs, 0.55)[0], torch.tensor(fifth))
    assert torch.allclose(top_p_renorm(probs, 0.7)[1], torch.tensor([0.3, 0.3, 0.2, 0.2, 0.0]))


def test_a_nan_stays_visible_in_its_row() -> None:
    probs = torch.tensor([[float("nan")] * 3, [0.5, 0.3, 0.2]])
    for renormed in (top_k_renorm(probs, 2), top_p_renorm(probs, 0.6)):
        assert renormed[0].isnan().all()
        assert torch.allclose(renormed[1], torch.tensor([0.625, 0.375, 0.0]))


def request(rid: str, **sampling: Any) -> Request:
    return Request(rid, [1], SamplingParams(**sampling), speculative=False)


def test_streams_are_told_apart_by_engine_seed_request_seed_and_id() -> None:
    def first(rid: str, seed: int, engine_seed: int) -> float:
        return float(torch.rand(1, generator=request_generator(request(rid, seed=seed), engine_seed)))

    draws = [first("a", 0, 0), first("b", 0, 0), first("a", 1, 0), first("a", 0, 1), first("a", -1, 0)]
    assert len(set(draws)) == len(draws)
    assert first("a", 0, 0) == draws[0]
    one = request("a")
    assert request_generator(one, 0) is request_generator(one, 0), "one stream, not one start for every draw"


@pytest.mark.parametrize(
    "bad",
    [
        {"max_new_tokens": 0},
        {"temperature": -0.1},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"temperature": float("nan")},
    ],
)
def test_sampling_parameters_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"max_new_tokens|sampling parameters"):
        SamplingParams(**bad)


def tree_config(lab: Lab) -> dict[str, Any]:
    return {
        "model": str(lab.target),
        "context_length": 128,
        "speculative": {"draft_model": str(lab.eagle), "num_steps": 3, "eagle_topk": 3, "num_draft_tokens": 9},
    }


def prompt_of(lab: Lab, n: int, length: int = 20) -> list[int]:
    return [(5 * i * i + 3 * i + n) % lab.vocab for i in range(length)]


def test_a_sampled_text_depends_on_its_own_seed_and_not_on_company_or_chunks(lab: Lab) -> None:
    def sampled(others: int, seed: int = 4, **changes: Any) -> list[int]:
        engine = build(tree_config(lab), **changes)
        for n in range(others):
            engine.add_request(f"other{n}", prompt_of(lab, n, 9), SamplingParams(max_new_tokens=9, temperature=0.5))
        params = SamplingParams(max_new_tokens=16, temperature=0.9, top_k=10, seed=seed)
        engine.add_request("mine", prompt_of(lab, 50), params)
        run(engine)
        return engine.requests["mine"].output_ids

    alone = sampled(0)
    assert sampled(0) == alone
    assert sampled(3) == alone
    assert sampled(3, chunked_prefill_size=7) == alone
    assert sampled(2, cuda_graph={"enabled": False}) == alone
    assert sampled(0, seed=5) != alone
    assert sampled(0, seed=-5) != alone
    assert sampled(0, attention_backend="triton") == alone
