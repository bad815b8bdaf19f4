"""draft_state of drafts that store the target's states: layers and assistants, told of by a stand-in for an engine."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.events import AfterStep, Decided, Finishing, Prefilled
from specdebug.reference import AssistantHead, MTPHead, assistant_logits, frozen_kv, mtp_draft
from specdebug.reference.draft import assistant_pass
from specdebug.run.dense import DenseReference
from specdebug.run.oracles.base import Bench
from specdebug.run.oracles.draft_state import DraftStateOracle
from specdebug.verdict.outcome import Violation
from tests.run.fakes import oracle_settings
from tests.run.oracles.watched import text

PROMPT, STEPS = 9, 6
IDS = list(text()[300 : 300 + PROMPT + STEPS + 1])
CHAIN = torch.ones(4, 4, dtype=torch.bool).tril()
NEXT = torch.tensor([1, 2, 3, -1])


class Drafting:
    """Accepts nothing but the root of each chain, so that a request grows along the text by one token a step."""

    def __init__(self, draft: str, algorithm: str) -> None:
        self.reference = DenseReference("tiny", draft, algorithm)
        self.hidden = self.reference.features(IDS)
        self.request = SimpleNamespace(
            rid="a", speculative=True, prompt_ids=IDS[:PROMPT], output_ids=[IDS[PROMPT]], kv_len=PROMPT,
            all_ids=IDS[: PROMPT + 1], accept_lengths=[1],
        )  # fmt: skip
        self.drafts = self.layers if isinstance(self.reference.head, MTPHead) else self.assistant

    def layers(self, length: int) -> tuple[list[int], Tensor]:
        """The chain behind a prefix, and what is stored for it."""
        assert isinstance(self.reference.head, MTPHead)
        found = mtp_draft(self.reference.head, torch.tensor(IDS[: length + 1]), self.hidden[:length])
        return found.tokens.tolist(), self.hidden[length - 2 : length]

    def assistant(self, length: int) -> tuple[list[int], Tensor]:
        """As of layers."""
        head = self.reference.head
        assert isinstance(head, AssistantHead)
        cache = self.reference._states(IDS).cache
        kv = [(k[0, :, :length], v[0, :, :length]) for k, v in frozen_kv(head, cache)]
        token, state, chain = IDS[length], self.hidden[length - 1 : length], []
        for _ in range(3):
            state = assistant_pass(head, torch.tensor([token]), state, torch.tensor([length - 1]), kv)
            token = int(assistant_logits(head, state[0]).argmax())
            chain.append(token)
        return chain, self.hidden[length - 1]

    def draft_state(self, requests: Sequence[Any]) -> SimpleNamespace:
        length = self.request.kv_len
        return SimpleNamespace(
            seq_lens=torch.tensor([length]), bonus=torch.tensor([IDS[length]]), topk_p=None, topk_index=None,
            hidden_states=self.drafts(length)[1][None].clone(),
        )  # fmt: skip

    def decision(self) -> Decided:
        length = self.request.kv_len
        tokens = torch.tensor([IDS[length], *self.drafts(length)[0]])
        nothing = torch.empty(0)
        return Decided(
            [self.request], tokens[None], (torch.arange(4) + length)[None], CHAIN[None], NEXT[None],
            torch.full((1, 4), -1), torch.zeros(4, 2048), nothing, nothing, nothing, None,
            topk=1, num_steps=3, threshold_single=1.0, threshold_acc=1.0,
        )  # fmt: skip

    def grow(self) -> None:
        """One token is accepted."""
        self.request.kv_len += 1
        self.request.output_ids.append(IDS[self.request.kv_len])
        self.request.all_ids = IDS[: self.request.kv_len + 1]


def served(engine: Any) -> tuple[list[Violation], dict[str, int]]:
    """Serve the text to its end with the oracle looking on."""
    found: list[Violation] = []
    settings = oracle_settings(draft_state=True)
    bench = Bench(settings, engine, engine.reference, found.append, lambda rid, tie: None, str)
    oracle = DraftStateOracle(bench)
    oracle.on(Prefilled(engine.request))
    for step in range(STEPS - 1):
        bench.step = step
        oracle.on(engine.decision())
        oracle.on(AfterStep(step))
        engine.grow()
    oracle.on(Finishing(engine.request))
    return found, bench.looks


KINDS = pytest.mark.parametrize(
    ("draft", "algorithm"), [("tiny-mtp", "MTP"), ("tiny-assistant", "FROZEN_KV_MTP")], ids=["layers", "assistant"]
)


@KINDS
def test_what_is_right_is_silent(draft: str, algorithm: str) -> None:
    assert served(Drafting(draft, algorithm)) == ([], {"draft_state": 1})


@KINDS
@pytest.mark.parametrize("node", [1, 2, 3])
def test_a_draft_that_the_model_does_not_make_is_named(draft: str, algorithm: str, node: int) -> None:
    class Wrong(Drafting):
        def decision(self) -> Decided:
            made = super().decision()
            if self.request.kv_len == PROMPT + 2:
                made.tokens[0, node] ^= 1
            return made

    (violation,), _ = served(Wrong(draft, algorithm))
    assert (violation.signature, violation.step, violation.data["tensor"]) == ("mismatch@draft_tree", 2, "tokens")
    assert violation.data["node"] == node


def test_a_state_that_is_nan_is_wrong_and_one_that_no_text_has_is_not_looked_at() -> None:
    class Short(Drafting):
        def __init__(self) -> None:
            super().__init__("tiny-mtp", "MTP")
            self.request.prompt_ids, self.request.output_ids = IDS[:1], IDS[1:2]
            self.request.kv_len, self.request.all_ids = 1, IDS[:2]

        def layers(self, length: int) -> tuple[list[int], Tensor]:
            drafts, stored = super().layers(length)
            before_the_text = torch.full((1, 256), 7.0)
            return drafts, stored if length > 1 else torch.cat([before_the_text, self.hidden[:1]])

    assert served(Short())[0] == []

    class Nan(Short):
        def draft_state(self, requests: Sequence[Any]) -> SimpleNamespace:
            stored = super().draft_state(requests)
            stored.hidden_states[0, 1, 5] = float("nan")
            return stored

    (violation,), _ = served(Nan())
    assert violation.data["position"] == 1
