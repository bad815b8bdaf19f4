"""A target as Hugging Face transformers has it: what it generates, each prompt alone, and its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.lossless.draw import MOST_NEW, Prompt
from specdebug.base.assets import checkpoint_path

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Judgement = tuple[list[int], list[float], list[float]]


class HuggingFace:
    """Texts and judgements are kept by prompt: many configurations ask for the same."""

    def __init__(self, model: PreTrainedModel, device: str = "cpu", length: int = MOST_NEW) -> None:
        """``length``: tokens that are generated behind a prompt. The end-of-text token does not end them: who compares
        cuts there, if the request did."""
        model.generation_config.eos_token_id = None  # type: ignore[union-attr]
        self._model: Any = model
        self._device = device
        self._length = length
        self._texts: dict[Prompt, tuple[int, ...]] = {}
        self._judged: dict[Prompt, dict[Prompt, Judgement]] = {}

    @classmethod
    def load(cls, checkpoint: str, dtype: str, device: str) -> HuggingFace:
        """By transformers' own class for the checkpoint, ``LlamaForCausalLM`` or ``DeepseekV3ForCausalLM``.

        ``attn_implementation`` eager: plain products, no TF32, no fused kernels.
        """
        from transformers import AutoModelForCausalLM

        kind = getattr(torch, dtype)
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint_path(checkpoint), dtype=kind, attn_implementation="eager"
        )
        return cls(model.to(device).eval(), device)

    @torch.inference_mode()
    def continuation(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """Continue a prompt greedily."""
        key = tuple(prompt)
        if key not in self._texts:
            ids = torch.tensor([key], device=self._device)
            mask = torch.ones_like(ids)
            out = self._model.generate(
                ids, attention_mask=mask, max_new_tokens=self._length, do_sample=False, pad_token_id=0
            )
            self._texts[key] = tuple(out[0, len(key) :].tolist())
        return self._texts[key]

    def expected(self, prompt: Sequence[int], max_new_tokens: int, stop: Sequence[int]) -> list[int]:
        """Return the tokens that a request must return: cut after ``max_new_tokens``, or behind the first of ``stop``.

        Raises ValueError when more tokens are asked for than are generated.
        """
        if max_new_tokens > self._length:
            raise ValueError(f"asks for {max_new_tokens} tokens, {self._length} are generated")
        tokens = list(self.continuation(prompt)[:max_new_tokens])
        ends = [index + 1 for index, token in enumerate(tokens) if token in stop]
        return tokens[: ends[0]] if ends else tokens

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """float32 [V] after ``ids``."""
        found: torch.Tensor = self._model(torch.tensor([list(ids)], device=self._device)).logits[0, -1].float().cpu()
        return found

    def judge(self, ids: Sequence[int], start: int) -> Judgement:
        """As ``DenseReference.judge``: choices, how far above the given tokens, and largest logits."""
        prompt, text = tuple(ids[:start]), tuple(ids[start:])
        judged = self._judged.setdefault(prompt, {})
        whole = next((each for each in judged if each[: len(text)] == text), None)
        if whole is None:
            own = self._texts.get(prompt, ())
            whole = own if own[: len(text)] == text else text
            judged[whole] = self._judge(prompt, whole)
        choices, gaps, sizes = judged[whole]
        return choices[: len(text)], gaps[: len(text)], sizes[: len(text)]

    @torch.inference_mode()
    def _judge(self, prompt: Prompt, text: Prompt) -> Judgement:
        ids = torch.tensor([[*prompt, *text[:-1]]], device=self._device)
        logits = self._model(ids).logits[0, len(prompt) - 1 :].float()
        best, choice = logits.max(-1)
        given = logits.gather(-1, torch.tensor(text, device=self._device)[:, None])[:, 0]
        return choice.tolist(), (best - given).tolist(), logits.abs().amax(-1).tolist()
