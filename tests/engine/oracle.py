"""What plain greedy decoding by Hugging Face transformers gives, in float32, cached by prompt."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import DeepseekV3ForCausalLM, LlamaForCausalLM

NEAR_TIE = 1e-4
"""Two sums in another order differ by less; a smaller margin between two logits decides nothing."""


class NearTieWarning(UserWarning):
    """Outputs parted where the target's two best logits are as good as equal."""


@dataclass(frozen=True)
class Greedy:
    """tokens: the continuation. margins: best minus second best logit, at each."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]


class GreedyOracle:
    """Continuations of up to ``length`` tokens, each generated once."""

    def __init__(self, model: LlamaForCausalLM | DeepseekV3ForCausalLM, length: int) -> None:
        self.length = length
        model.generation_config.eos_token_id = None  # the checkpoint's own end of text must not end it
        self._model = model
        self._known: dict[tuple[int, ...], Greedy] = {}

    def greedy(self, prompt: Sequence[int]) -> Greedy:
        """What follows ``prompt``."""
        key = tuple(prompt)
        if key not in self._known:
            self._known[key] = self._generate(key)
        return self._known[key]

    def expected(self, prompt: Sequence[int], max_new_tokens: int, stop: Sequence[int] = ()) -> list[int]:
        """What a request must return: cut after ``max_new_tokens`` or the first of ``stop``."""
        assert max_new_tokens <= self.length
        tokens = list(self.greedy(prompt).tokens[:max_new_tokens])
        ends = [index + 1 for index, token in enumerate(tokens) if token in stop]
        return tokens[: ends[0]] if ends else tokens

    def check(
        self, prompt: Sequence[int], output: Sequence[int], max_new_tokens: int, stop: Sequence[int] = ()
    ) -> None:
        """Fail unless ``output`` is what :meth:`expected` says, or parts from it at a near-tie.

        A near-tie is reported as a :class:`NearTieWarning` with its margin.
        """
        expected = self.expected(prompt, max_new_tokens, stop)
        output = list(output)
        if output == expected:
            return
        paired = zip(output, expected, strict=False)
        first = next((i for i, (a, b) in enumerate(paired) if a != b), min(len(output), len(expected)))
        margin = self.greedy(prompt).margins[first]
        story = f"prompt of {len(prompt)}: output parts at {first}: {output} instead of {expected}"
        assert first < min(len(output), len(expected)), story
        assert margin < NEAR_TIE, f"{story}, margin {margin:.2e}"
        warnings.warn(f"near-tie with margin {margin:.2e}; {story}", NearTieWarning, stacklevel=2)

    @torch.no_grad()
    def _generate(self, prompt: tuple[int, ...]) -> Greedy:
        ids = torch.tensor([prompt])
        result = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.length,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        best = [logits[0].topk(2).values for logits in result.logits]
        tokens = tuple(result.sequences[0, len(prompt) :].tolist())
        assert len(tokens) == self.length
        return Greedy(tokens, tuple(float(pair[0] - pair[1]) for pair in best))
