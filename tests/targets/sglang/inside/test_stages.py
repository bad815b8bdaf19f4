"""SGLang's stages are looked at: what each forward of a draft reads, and from which branch, is each request's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specdebug.targets.sglang.inside.stages import StageLook, StageSites

TOPK, STEPS, NODES, VOCAB = 2, 3, 4, 8
CHOSEN = torch.tensor([[0, 3], [2, 1]])
"""Of each request, the branches of four that two go on in."""


def batch_of(*rids: str) -> Any:
    mode = SimpleNamespace(is_idle=lambda: False, is_decode=lambda: True)
    rows = len(rids)
    spec = SimpleNamespace(
        bonus_tokens=torch.arange(rows),
        topk_p=torch.ones(rows, TOPK),
        topk_index=torch.zeros(rows, TOPK),
        hidden_states=torch.zeros(rows, 3),
    )
    reqs = [SimpleNamespace(rid=rid) for rid in rids]
    return SimpleNamespace(forward_mode=mode, spec_info=spec, seq_lens=torch.full((rows,), 5), reqs=reqs)


def selections(look: StageLook, batch: Any, draft_runner: Any) -> None:
    """A draft of three selections with two forwards between them, and a row of padding."""
    padded = torch.cat((CHOSEN, torch.zeros(1, TOPK, dtype=torch.int64)))
    for step in range(STEPS):
        tokens = torch.arange(3 * TOPK) + 10 * step
        parents = torch.arange(-1, TOPK).expand(3, -1) if step == 0 else padded + TOPK + TOPK * TOPK * (step - 1)
        look.select(lambda *_: (tokens, None, None, (None, None, parents)), step)  # noqa: B023
        if step < STEPS - 1:
            output = SimpleNamespace(next_token_logits=torch.full((3 * TOPK, VOCAB), float(step)))
            look.model_forward(lambda *_: SimpleNamespace(logits_output=output), draft_runner, batch)  # noqa: B023


def test_each_forward_of_a_draft_has_its_requests_tokens_parents_and_logits() -> None:
    look, batch = StageLook(coin_of_step=True), batch_of("a", "b")
    draft_runner, target = SimpleNamespace(is_draft_worker=True), SimpleNamespace(is_draft_worker=False)
    backend = SimpleNamespace(verify_mask=SimpleNamespace(mode=SimpleNamespace(name="QLEN_ONLY")))
    worker = SimpleNamespace(target_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=backend)))
    look.begin()
    selections(look, batch, draft_runner)  # while a graph is captured nothing is drafted
    look.draft(lambda *_: selections(look, batch, draft_runner), worker, batch)
    output = SimpleNamespace(next_token_logits=torch.zeros(2 * NODES, VOCAB))
    look.model_forward(lambda *_: SimpleNamespace(logits_output=output), target, batch)
    names = ("draft_token", "positions", "retrieve_next_token", "retrieve_next_sibling")
    verify = SimpleNamespace(draft_token_num=NODES, **{name: torch.zeros(2 * NODES) for name in names})
    verify.custom_mask = torch.ones(2 * NODES * NODES, dtype=torch.bool)
    answer = torch.zeros(2 * NODES, dtype=torch.int32), torch.ones(2, dtype=torch.int32), torch.zeros(2, STEPS + 1)
    look.sample(lambda *_: answer, verify, batch, output)
    forwards = {
        rid: [[part.tolist() for part in each[:2]] for each in event["forwards"]] for rid, event in look.seen().items()
    }
    assert forwards == {"a": [[[0, 1], [0, 1]], [[10, 11], [0, 1]]], "b": [[[2, 3], [0, 1]], [[12, 13], [1, 0]]]}
    assert [each[2].shape for each in look.seen()["b"]["forwards"]] == [(TOPK, VOCAB)] * 2
    assert [float(each[2].mean()) for each in look.seen()["a"]["forwards"]] == [0.0, 1.0]


def test_a_draft_that_stores_no_hidden_state_stores_one_of_width_0() -> None:
    look, batch = StageLook(coin_of_step=True), batch_of("a")
    batch.spec_info.hidden_states = None
    look.begin()
    look.draft_prefill(lambda *_: batch.spec_info, SimpleNamespace(), batch)
    assert look.seen()["a"]["stored"]["hidden_states"].shape == (0,)


def test_what_a_block_s_draft_chose_is_told_before_it_is_verified() -> None:
    sites, told = StageSites(), []
    sites.computing, sites.hear = True, lambda site, tensor: told.append((site, tensor.tolist()))
    sites.stored = SimpleNamespace(before=lambda *_: None)  # type: ignore[assignment]
    mode, tokens = SimpleNamespace(is_target_verify=lambda: True), torch.tensor([7, 1, 2, 8, 3, 4])
    batch = SimpleNamespace(forward_mode=mode, input_ids=tokens, positions=tokens, batch_size=2)
    output = SimpleNamespace(logits_output=SimpleNamespace(hidden_states=None, next_token_logits=torch.zeros(6, 1)))
    for drafts in (True, False, False):
        sites.model_forward(lambda *_: output, SimpleNamespace(is_draft_worker=drafts), batch)
    names = [site for site, _ in told]
    assert names[:4] == ["block.input_ids", "block.positions", "block.draft_tokens", "verify.input_ids"]
    assert told[2][1] == [[1, 2], [3, 4]]
    assert names.count("block.draft_tokens") == 1  # what is verified next was drafted otherwise
