"""How likely every short text of a small vocabulary is by transformers, and how often an engine returns it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from specdebug.engine import Engine, SamplingParams
from tests.engine.driving import run

if TYPE_CHECKING:
    from transformers import DeepseekV3ForCausalLM, LlamaForCausalLM


MIN_EXPECTED = 5.0
"""Cells expected to hold fewer counts are pooled: below this the statistic is not chi-square distributed."""


def chi_square_p_value(counts: Mapping[object, int], probabilities: Mapping[object, float]) -> float:
    """How likely counts at least this far off are, if outcomes have ``probabilities`` (which sum to 1).

    An outcome of probability zero that was counted gives 0.0.
    """
    total = sum(counts.values())
    if any(count and probabilities.get(outcome, 0.0) <= 0.0 for outcome, count in counts.items()):
        return 0.0
    every = [(counts.get(outcome, 0), probability * total) for outcome, probability in probabilities.items()]
    cells = [cell for cell in every if cell[1] >= MIN_EXPECTED]
    seen, expected = (
        sum(column) for column in zip((0, 0.0), *(cell for cell in every if cell not in cells), strict=True)
    )
    if expected >= MIN_EXPECTED or (expected > 0 and not cells):
        cells.append((seen, expected))
    if len(cells) < 2:
        return 1.0
    return float(chisquare(*zip(*cells, strict=True), sum_check=False).pvalue)


Text = tuple[int, ...]


def warped(logits: Tensor, params: SamplingParams) -> Tensor:
    """float32 probabilities of logits [n, V] as transformers' generate draws from."""
    warpers = pytest.importorskip("transformers.generation.logits_process")
    ids = torch.zeros(logits.shape[0], 1, dtype=torch.int64)
    logits = warpers.TemperatureLogitsWarper(params.temperature)(ids, logits)
    if params.top_k:
        logits = warpers.TopKLogitsWarper(params.top_k)(ids, logits)
    if params.top_p < 1:
        logits = warpers.TopPLogitsWarper(params.top_p)(ids, logits)
    return torch.softmax(logits, dim=-1)


@torch.no_grad()
def text_probabilities(
    model: LlamaForCausalLM | DeepseekV3ForCausalLM, prompt: Sequence[int], params: SamplingParams
) -> dict[Text, float]:
    """Probability of every text of ``params.max_new_tokens`` behind ``prompt``, by transformers' logits and warpers."""
    texts: dict[Text, float] = {(): 1.0}
    for _ in range(params.max_new_tokens):
        grown: dict[Text, float] = {}
        logits = model(torch.tensor([[*prompt, *text] for text in texts])).logits[:, -1]
        for (text, probability), row in zip(texts.items(), warped(logits, params), strict=True):
            for token in row.nonzero().flatten().tolist():
                grown[(*text, token)] = probability * float(row[token])
        texts = grown
    return texts


def texts_of(engine: Engine, prompt: Sequence[int], count: int, params: SamplingParams) -> Counter[Text]:
    """What ``count`` requests for the same prompt return, which differ in nothing but their ids."""
    for n in range(count):
        engine.add_request(f"r{n}", prompt, params)
    run(engine)
    return Counter(tuple(request.output_ids) for request in engine.requests.values())


def p_values(counts: Counter[Text], probabilities: dict[Text, float]) -> list[float]:
    """By chi-square: of the whole texts, then of the tokens at each position."""
    found = [chi_square_p_value(counts, probabilities)]
    for position in range(len(next(iter(probabilities)))):
        seen, wanted = Counter[object](), Counter[object]()
        for text, count in counts.items():
            seen[text[position]] += count
        for text, probability in probabilities.items():
            wanted[text[position]] += probability  # type: ignore[assignment]
        found.append(chi_square_p_value(seen, wanted))
    return found
