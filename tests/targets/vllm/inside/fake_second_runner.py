"""Stands for vLLM's model runner V2 and its speculator: the functions that are watched, called as vLLM calls them, with
the model of :mod:`tests.targets.vllm.inside.fake_runner`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.targets.vllm.inside.fake_runner import DraftHead, logits_of

ROOM = 64
"""Tokens of a request, and slots of a block: each request has the block of its row + 1."""


class Target(nn.Module):
    def forward(self, *, input_ids: Tensor, positions: Tensor) -> Tensor:
        return input_ids.float().unsqueeze(1)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return logits_of(hidden)


class BlockTables:
    def compute_slot_mappings(self, rows: Tensor, positions: Tensor) -> Tensor:
        return (ROOM * (rows + 1) + positions).unsqueeze(0)


class Speculator:
    def __init__(self, tables: BlockTables, num_steps: int) -> None:
        self.model, self.block_tables, self.num_steps = DraftHead(), tables, num_steps
        self.last_token_indices = torch.zeros(8, dtype=torch.int64)

    def propose(
        self, batch: Any, metadata: Any, slots: Any, hidden: Tensor, aux: Any, counts: Tensor, rejected: Tensor,
        sampled: Tensor, following: Tensor,
    ) -> Tensor:  # fmt: skip
        count = batch.num_reqs
        last = torch.tensor(batch.query_start_loc[1:]) - 1 - rejected
        self.last_token_indices[:count] = last
        ids = torch.cat((batch.input_ids[1:], batch.input_ids[:1]))
        ids[last] = torch.where(counts > 0, sampled, following).int()
        said, state = self.model(input_ids=ids, positions=batch.positions, hidden_states=hidden)
        drafts, at = [self.sample_draft(said[last])], batch.positions[last]
        for _ in range(self.num_steps - 1):
            at = at + 1
            self.block_tables.compute_slot_mappings(batch.idx_mapping, at)
            said, state = self.model(input_ids=drafts[-1].int(), positions=at, hidden_states=state[:count])
            drafts.append(self.sample_draft(said))
        return torch.stack(drafts, 1)

    def sample_draft(self, hidden: Tensor) -> Tensor:
        return self.model.compute_logits(hidden).argmax(-1)


class SecondRunner:
    """Requests have a row each; of one that decodes a step takes one token and all of its drafts."""

    def __init__(self, num_steps: int = 3) -> None:
        self.rows: dict[str, int] = {}
        self.prompts: dict[str, int] = {}
        counts = [SimpleNamespace(gpu=torch.zeros(4, dtype=torch.int32)) for _ in range(2)]
        texts = SimpleNamespace(gpu=torch.zeros(4, ROOM, dtype=torch.int32))
        self.req_states = SimpleNamespace(num_computed_tokens=counts[0], total_len=counts[1], all_token_ids=texts)
        self.drafts: dict[str, Tensor] = {}
        self.model, self.block_tables = Target(), BlockTables()
        self.speculator: Any = Speculator(self.block_tables, num_steps)
        self.execute_model_state: Any = None

    def add(self, name: str, prompt: list[int]) -> None:
        row = self.rows[name] = len(self.rows)
        self.prompts[name] = len(prompt)
        self.req_states.all_token_ids.gpu[row, : len(prompt)] = torch.tensor(prompt)
        self.req_states.total_len.gpu[row] = len(prompt)

    def blocks_of(self, name: str) -> tuple[int, ...]:
        return (self.rows[name] + 1,)

    def step(self, **counts: int) -> None:
        self.execute_model(counts)
        self.sample_tokens(None)

    def prepare_inputs(self, counts: dict[str, int], *_: Any) -> Any:
        names, states = list(counts), self.req_states
        rows = [self.rows[name] for name in names]
        computed = [int(states.num_computed_tokens.gpu[row]) for row in rows]
        drafts = [
            count - 1 if at >= self.prompts[n] else 0 for (n, count), at in zip(counts.items(), computed, strict=True)
        ]
        ids, positions = [], []
        for name, row, at, drafted in zip(names, rows, computed, drafts, strict=True):
            known = states.all_token_ids.gpu[row, at : at + counts[name] - drafted]
            ids += [*known.tolist(), *(self.drafts[name][:drafted].tolist() if drafted else ())]
            positions += range(at, at + counts[name])
        ends = np.cumsum([0, *counts.values()])
        return SimpleNamespace(
            num_reqs=len(names), req_ids=names, idx_mapping=torch.tensor(rows), query_start_loc=ends,
            num_scheduled_tokens=np.array(list(counts.values())),
            prefill_len_np=np.array([self.prompts[n] for n in names]),
            num_draft_tokens_per_req=np.array(drafts) if any(drafts) else None,
            input_ids=torch.tensor(ids, dtype=torch.int32), positions=torch.tensor(positions),
        )  # fmt: skip

    def prepare_attn(self, batch: Any) -> Any:
        rows = batch.idx_mapping.repeat_interleave(torch.tensor(batch.num_scheduled_tokens))
        return (), self.block_tables.compute_slot_mappings(rows, batch.positions)

    def execute_model(self, counts: dict[str, int]) -> None:
        batch = self.prepare_inputs(counts, None)
        self.prepare_attn(batch)
        hidden = self.model(input_ids=batch.input_ids, positions=batch.positions)
        self.execute_model_state = SimpleNamespace(hidden_states=hidden, aux_hidden_states=None, batch=batch)

    def sample(self, hidden: Tensor, batch: Any, _: Any) -> Any:
        drafts = batch.num_draft_tokens_per_req
        drafts = [0] * batch.num_reqs if drafts is None else drafts.tolist()
        counts, tokens = [], torch.full((batch.num_reqs, max(drafts) + 1), 9)  # what is behind the last is any token
        ends = batch.query_start_loc[1:]
        rows = [row for end, n in zip(ends, drafts, strict=True) for row in range(end - n - 1, end)]
        said = self.model.compute_logits(hidden[rows]).argmax(-1).split([n + 1 for n in drafts])
        for place, (name, end, n) in enumerate(zip(batch.req_ids, ends, drafts, strict=True)):
            guesses, answers = batch.input_ids[end - n : end].tolist(), said[place].tolist()
            good = next((at for at, guess in enumerate(guesses) if guess != answers[at]), n)
            whole = self._computed(name) + int(batch.num_scheduled_tokens[place]) >= self.prompts[name]
            tokens[place, : good + 1] = torch.tensor(answers[: good + 1])
            counts.append(good + 1 if whole else 0)
        made, left = torch.tensor(counts), torch.tensor(drafts)
        rejected = torch.where(left > 0, left + 1 - made, 0)
        return SimpleNamespace(sampled_token_ids=tokens), made, rejected

    def sample_tokens(self, _: Any) -> None:
        state, states = self.execute_model_state, self.req_states
        batch, hidden = state.batch, state.hidden_states
        output, counts, rejected = self.sample(hidden, batch, None)
        sampled, following = [], []
        for place, name in enumerate(batch.req_ids):
            row, made = self.rows[name], int(counts[place])
            states.num_computed_tokens.gpu[row] += int(batch.num_scheduled_tokens[place]) - int(rejected[place])
            known = int(states.total_len.gpu[row])
            states.all_token_ids.gpu[row, known : known + made] = output.sampled_token_ids[place, :made].int()
            states.total_len.gpu[row] += made
            sampled.append(int(output.sampled_token_ids[place, max(made - 1, 0)]))
            following.append(int(states.all_token_ids.gpu[row, self._computed(name)]))
        if self.speculator is not None:
            given = (counts, rejected, torch.tensor(sampled), torch.tensor(following))
            made = self.speculator.propose(batch, {}, {}, hidden, state.aux_hidden_states, *given)
            self.drafts |= dict(zip(batch.req_ids, made, strict=True))

    def _computed(self, name: str) -> int:
        return int(self.req_states.num_computed_tokens.gpu[self.rows[name]])
