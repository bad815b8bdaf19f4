"""Stands for vLLM's model runner and proposer: the functions that are watched, called as vLLM calls them.

A model of eleven tokens, whose hidden state of a token is the token, and which says token + 1 next.
"""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

VOCABULARY = 11


def logits_of(hidden: Tensor) -> Tensor:
    """One for the token that follows the hidden state's, zero for all others."""
    return nn.functional.one_hot((hidden[:, 0].long() + 1) % VOCABULARY, VOCABULARY).float()


class DraftHead(nn.Module):
    """Wrong of token 7, after which it says 7 again."""

    def forward(self, input_ids: Tensor, positions: Tensor, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = input_ids.float().unsqueeze(1)
        return hidden, hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return logits_of(torch.where(hidden == 7, 6, hidden))


class Proposer:
    def __init__(self, num_steps: int) -> None:
        self.model = DraftHead()
        self.num_steps = num_steps
        self.input_ids = torch.zeros(64, dtype=torch.int32)
        self.first_slots = torch.zeros(0, dtype=torch.int64)

    def prepare_next_token_ids_padded(self, sampled: Tensor) -> tuple[Tensor, Tensor]:
        counts = (sampled >= 0).sum(1)
        return sampled.gather(1, (counts - 1).unsqueeze(1)).squeeze(1), counts

    def set_inputs_first_pass(self, target_token_ids: Tensor, next_token_ids: Tensor, last: Tensor) -> Any:
        count = target_token_ids.numel()
        self.input_ids[: count - 1] = target_token_ids[1:]
        self.input_ids[last] = next_token_ids.int()
        return count, last, None

    def propose(
        self, *, target_hidden_states: Tensor, ids: Tensor, positions: Tensor, tokens: Tensor, last: Tensor
    ) -> Any:
        self.set_inputs_first_pass(target_token_ids=ids, next_token_ids=tokens, last=last)
        first = self.input_ids[: ids.numel()]
        said, _ = self.model(input_ids=first, positions=positions, hidden_states=target_hidden_states)
        drafts = [self._sample_draft_tokens(said[last], None)[0]]
        at = positions[last]
        for _ in range(self.num_steps - 1):
            at = self._update_positions_dependent_metadata(at, SimpleNamespace())
            said, _ = self.model(input_ids=drafts[-1].int(), positions=at, hidden_states=said[: at.numel()])
            drafts.append(self._sample_draft_tokens(said, None)[0])
        return torch.stack(drafts, 1)

    def _update_positions_dependent_metadata(self, positions: Tensor, metadata: Any) -> Tensor:
        metadata.slot_mapping = self.first_slots + positions + 1
        return positions + 1

    def _sample_draft_tokens(self, hidden: Tensor, _: Any) -> tuple[Tensor, None]:
        return self.model.compute_logits(hidden).argmax(-1), None


class Runner:
    """Requests are ``[name, tokens, computed]`` of ``input_batch``; drafts are kept by name."""

    def __init__(self, num_steps: int = 3) -> None:
        self.drafter = Proposer(num_steps)
        self.tokens: dict[str, list[int]] = {}
        self.prompts: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.drafts: dict[str, list[int]] = {}
        self.execute_model_state: Any = None
        self.input_batch: Any = None

    def add(self, name: str, prompt: list[int]) -> None:
        self.tokens[name], self.prompts[name], self.computed[name] = list(prompt), len(prompt), 0

    def step(self, **counts: int) -> None:
        """Compute so many tokens of each request; of one that decodes, 1 and as many drafts."""
        self._counts = counts
        self.execute_model(SimpleNamespace())
        self.sample_tokens(None)

    def _prepare_inputs(self, scheduled: Any, counts: Any) -> tuple[Any, Any, int]:
        names = list(self._counts)
        decoding = [self.computed[name] >= self.prompts[name] for name in names]
        padded = [-1 in self.drafts.get(name, ()) for name in names]
        verifies = [one or other for one, other in zip(decoding, padded, strict=True)]
        drafts = [int(count) - 1 if it else 0 for count, it in zip(counts, verifies, strict=True)]
        verified = SimpleNamespace(num_draft_tokens=drafts) if any(drafts) else None
        return None, verified, 0

    def execute_model(self, scheduled: Any) -> None:
        names = list(self._counts)
        self.input_batch = SimpleNamespace(
            num_reqs=len(names),
            req_ids=names,
            num_computed_tokens_cpu=np.array([self.computed[name] for name in names]),
            num_prompt_tokens=np.array([self.prompts[name] for name in names]),
            num_tokens_no_spec=np.array([len(self.tokens[name]) for name in names]),
            token_ids_cpu=np.array([(self.tokens[name] + [0] * 64)[:64] for name in names]),
        )
        self.requests = {n: SimpleNamespace(block_ids=([self.block_of(n)],)) for n in self.tokens}
        _, verified, _ = self._prepare_inputs(scheduled, np.array(list(self._counts.values())))
        ids = [(self.tokens[n] + self.drafts.get(n, []))[self.computed[n] :][: self._counts[n]] for n in names]
        flat = torch.tensor(list(chain(*ids)), dtype=torch.int32)
        starts = [self.computed[n] for n in names]
        spans = [range(start, start + len(each)) for start, each in zip(starts, ids, strict=True)]
        positions = torch.tensor(list(chain(*spans)))
        self._get_slot_mappings(
            [64 * self.block_of(n) + at for n, span in zip(names, spans, strict=True) for at in span]
        )
        if hasattr(self, "drafter"):
            self.drafter.first_slots = torch.tensor([64 * self.block_of(n) for n in names])
        hidden = self._model_forward(input_ids=flat, positions=positions)
        ends = np.cumsum([len(each) for each in ids])
        drafts = verified.num_draft_tokens if verified else [0] * len(names)
        rows = [row for end, n in zip(ends, drafts, strict=True) for row in range(end - n - 1, end)]
        logits = logits_of(hidden[rows])
        self.execute_model_state = SimpleNamespace(logits=logits, hidden_states=hidden, aux_hidden_states=None)
        self._batch = names, ids, flat, positions, drafts, ends

    def block_of(self, name: str) -> int:
        """Each request has one block of 64 slots."""
        return list(self.tokens).index(name) + 1

    def _get_slot_mappings(self, slots: list[int]) -> Any:
        return {0: torch.tensor(slots)}, None

    def _model_forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return input_ids.float().unsqueeze(1)

    def _sample(self, logits: Tensor, verified: Any) -> Any:
        names, ids, _, _, drafts, _ = self._batch
        said, at, rows = logits.argmax(-1).tolist(), 0, []
        for place in range(len(names)):
            answers = said[at : at + drafts[place] + 1]
            at += drafts[place] + 1
            guesses = ids[place][len(ids[place]) - drafts[place] :]
            good = 0
            while good < len(guesses) and guesses[good] == answers[good]:
                good += 1
            rows.append([*answers[: good + 1], *[-1] * (max(drafts) - good)])
        return SimpleNamespace(sampled_token_ids=torch.tensor(rows, dtype=torch.int32))

    def sample_tokens(self, _: Any) -> None:
        names, ids, flat, positions, drafts, ends = self._batch
        sampled = self._sample(self.execute_model_state.logits, None).sampled_token_ids
        tokens, counts = self.drafter.prepare_next_token_ids_padded(sampled)
        rejected = [n + 1 - int(count) if n else 0 for n, count in zip(drafts, counts, strict=True)]
        last = torch.tensor([int(end) - 1 - gone for end, gone in zip(ends, rejected, strict=True)])
        made = self.drafter.propose(
            target_hidden_states=self.execute_model_state.hidden_states,
            ids=flat, positions=positions, tokens=tokens, last=last,
        )  # fmt: skip
        for place, name in enumerate(names):
            self.computed[name] += len(ids[place]) - rejected[place]
            if self.computed[name] >= self.prompts[name]:
                self.tokens[name] += sampled[place][: int(counts[place])].tolist()
                self.drafts[name] = made[place].tolist()
