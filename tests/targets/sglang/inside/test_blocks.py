"""Drafters of blocks are looked at: what passes is told request by request, and what does not hold is a finding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.targets.sglang.inside.blocks import BLOCK_SEATS, BlockProbes, BlockSites

WIDTH, VOCAB, PAGE = 3, 8, 1
CELLS = torch.arange(1, 41).reshape(4, 10)
"""Slots by row and position: none is 0, which is for padding."""
ROWS, LENGTHS = torch.tensor([2, 1]), torch.tensor([4, 6])


@pytest.fixture
def findings() -> Iterator[Any]:
    async_probe.configure("record")
    yield lambda: sorted({each.site for each in async_probe.drain()})
    async_probe.reset()


def heard() -> tuple[BlockSites, dict[str, list[Any]]]:
    told: dict[str, list[Any]] = {}
    return BlockSites(lambda site, tensor: told.update({site: tensor.tolist()})), told


def runner(*, drafts: bool) -> Any:
    pools = {"req_to_token_pool": SimpleNamespace(req_to_token=CELLS)}
    allocator = SimpleNamespace(page_size=PAGE)
    return SimpleNamespace(is_draft_worker=drafts, token_to_kv_pool_allocator=allocator, **pools)


def batch(first: tuple[int, int] = (5, 6), *, extend: bool = False, **more: Any) -> Any:
    """A block of WIDTH tokens behind each of two requests, as the engine makes it."""
    due = LENGTHS.unsqueeze(1) + torch.arange(WIDTH)
    ids = torch.zeros(2, WIDTH, dtype=torch.int64)
    ids[:, 0] = torch.tensor(first)
    facts = {"input_ids": ids.reshape(-1), "positions": due.reshape(-1), "seq_lens": LENGTHS, "req_pool_indices": ROWS}
    facts["out_cache_loc"] = CELLS[ROWS.unsqueeze(1), due].reshape(-1)
    mode = SimpleNamespace(is_target_verify=lambda: not extend, is_extend=lambda: True)
    return SimpleNamespace(forward_mode=mode, spec_info=SimpleNamespace(), **(facts | more))


def accepted(probes: BlockProbes, lengths: tuple[int, int] = (3, 1), **more: Any) -> None:
    """A verify of two blocks; the target would have chosen 1, 2, 3 for each: all of the first, none of the other."""
    choice = torch.nn.functional.one_hot(torch.tensor([1, 2, 3, 1, 2, 3]), VOCAB).float()
    commit = torch.tensor(lengths)
    facts = {"candidates": torch.tensor([[5, 1, 2], [6, 7, 2]]), "next_token_logits": choice, "sampling_info": None}
    answer = (commit - 1, commit, torch.tensor([3, 1]), None, LENGTHS + commit)
    told = dict(zip(("accept_len", "commit_lens", "bonus", "out_tokens", "new_seq_lens"), answer, strict=True)) | more
    probes.flash_accepted(lambda **_: tuple(told.values()), object(), **facts, prefix_lens=LENGTHS)


def test_a_context_is_what_was_committed_and_what_is_rejected_counts_for_nothing() -> None:
    sites, told = heard()
    states = torch.arange(8.0).reshape(4, 2)  # the last row pads
    facts = {"positions": torch.tensor([4, 5, 6]), "commit_lens": torch.tensor([2]), "target_hidden": states}
    sites.context(lambda **_: None, object(), **facts)
    assert told == {"context.positions": [4, 5, 0], "context.hidden_states": [[0.0, 1.0], [2.0, 3.0], [0.0, 0.0]]}
    del facts["commit_lens"]
    sites.context(lambda **_: None, object(), **facts)
    assert told["context.positions"] == [4, 5, 6]


def test_what_was_accepted_is_told_by_both_workers_alike() -> None:
    one, other = heard(), heard()
    tokens, out, commit = (
        torch.tensor([[5, 1, 2], [6, 7, 2]]),
        torch.tensor([[1, 2, 3], [1, 9, 9]]),
        torch.tensor([3, 1]),
    )
    bonus, lengths = torch.tensor([3, 1]), torch.tensor([7, 7])
    one[0].flash_accepted(lambda **_: (commit - 1, commit, bonus, out, lengths), object(), candidates=tokens)
    answer = SimpleNamespace(out_tokens=out, commit_lens=commit, bonus=bonus, new_seq_lens=lengths)
    other[0].spark_accepted(lambda **_: answer, object(), verify_ids_2d=tokens)
    assert other[1].pop("accept.new_seq_lens") == [7, 7]
    assert one[1] == other[1]
    assert one[1]["accept.predict"] == [1, 2, 3, 1, 0, 0]
    assert (one[1]["accept.num_correct_drafts"], one[1]["accept.bonus"]) == ([2, 0], [3, 1])


def test_a_table_of_n_grams_and_its_tree_are_told() -> None:
    sites, told = heard()
    handed = SimpleNamespace(spec_info=SimpleNamespace(accept_lens=torch.tensor([2])))
    sites.looked_up(lambda *_: (np.array([1, 2]), np.array([[1, 0], [1, 1]])), object(), handed)
    assert told.pop("relay.accept_lens") == [2]
    verify = SimpleNamespace(
        positions=torch.tensor([4, 5]),
        retrieve_next_token=torch.tensor([1, -1]),
        retrieve_next_sibling=torch.tensor([-1, -1]),
    )
    one = SimpleNamespace(spec_info=verify, reqs=["a"], forward_mode=SimpleNamespace(is_target_verify=lambda: True))
    sites.linked(lambda *_: None, object(), one)
    assert (told["ngram.draft_tokens"], told["ngram.mask"]) == ([1, 2], [[1, 0], [1, 1]])
    assert (told["tree.positions"], told["tree.retrieve_next_token"]) == ([4, 5], [[1, -1]])


def test_a_sound_block_is_no_finding(findings: Any) -> None:
    probes, serve = BlockProbes(), lambda *_, **__: "served"
    assert probes.forward(serve, runner(drafts=True), batch()) == "served"
    probes.forward(serve, runner(drafts=False), batch())
    accepted(probes)
    probes.context(lambda **_: None, worker(), **context(commit_lens=torch.tensor([3, 1])))
    probes.forward(serve, runner(drafts=True), batch(first=(3, 1)))
    probes.forward(serve, runner(drafts=False), batch(extend=True))  # the rows are other requests' now
    probes.forward(serve, runner(drafts=True), batch(first=(7, 7)))
    assert findings() == []


@pytest.mark.parametrize(
    ("wrong", "sites"),
    [
        ({"positions": torch.arange(6)}, ["block.positions"]),
        ({"out_cache_loc": torch.arange(5, 11)}, ["draft.out_cache_loc"]),
        ({"first": (3, 2)}, ["block.input_ids"]),
    ],
)
def test_a_block_that_is_not_behind_its_own_request(findings: Any, wrong: dict[str, Any], sites: list[str]) -> None:
    probes = BlockProbes()
    probes.forward(lambda *_: None, runner(drafts=False), batch())
    accepted(probes)
    probes.forward(lambda *_: None, runner(drafts=True), batch(**{"first": (3, 1), **wrong}))
    assert findings() == sites


def test_slots_of_what_is_not_reserved_are_a_finding(findings: Any) -> None:
    bare = CELLS.clone()
    bare[2, 6] = 0
    target = runner(drafts=False)
    target.req_to_token_pool.req_to_token = bare
    slots = bare[ROWS.unsqueeze(1), LENGTHS.unsqueeze(1) + torch.arange(WIDTH)].reshape(-1)
    BlockProbes().forward(lambda *_: None, target, batch(out_cache_loc=slots))
    assert findings() == ["verify.out_cache_loc"]


@pytest.mark.parametrize(
    ("wrong", "sites"),
    [
        ({"lengths": (2, 1)}, ["accept.bonus", "accept.num_correct_drafts"]),
        ({"bonus": torch.tensor([3, 2])}, ["accept.bonus"]),
        ({"new_seq_lens": LENGTHS}, ["accept.new_seq_lens"]),
    ],
)
def test_what_is_accepted_is_what_the_target_chose(findings: Any, wrong: dict[str, Any], sites: list[str]) -> None:
    probes = BlockProbes()
    probes.forward(lambda *_: None, runner(drafts=False), batch())
    accepted(probes, **wrong)
    assert findings() == sites


@pytest.mark.parametrize(
    ("wrong", "sites"),
    [
        ({"commit_lens": torch.tensor([2, 1])}, ["context.commit_lens"]),
        ({"positions": torch.tensor([0, 1, 2, 6, 7, 8])}, ["kv_pool.write.loc"]),
    ],
)
def test_a_context_that_is_not_what_was_committed(findings: Any, wrong: dict[str, Any], sites: list[str]) -> None:
    probes = BlockProbes()
    probes.forward(lambda *_: None, runner(drafts=False), batch())
    accepted(probes)
    probes.context(lambda **_: None, worker(), **context(**{"commit_lens": torch.tensor([3, 1]), **wrong}))
    assert findings() == sites


def test_an_n_gram_tree_begins_with_the_newest_token(findings: Any) -> None:
    probes, verify = BlockProbes(), runner(drafts=False)
    probes.forward(lambda *_: None, verify, batch())
    index = torch.tensor([[0, 1], [3, -1]], dtype=torch.int32)
    answer = torch.tensor([1, 2, 9, 4, 9, 9]), torch.tensor([2, 1]), index
    probes.ngram_accepted(lambda *_: answer, object())
    probes.forward(lambda *_: None, verify, batch(first=(2, 4)))
    assert findings() == []
    probes.forward(lambda *_: None, verify, batch(first=(1, 4)))
    assert findings() == ["verify.input_ids"]


def test_an_n_gram_tree_of_a_request_that_has_ended_may_begin_with_what_its_grammar_has_left(findings: Any) -> None:
    probes, verify = BlockProbes(), runner(drafts=False)
    probes.forward(lambda *_: None, verify, batch())
    index = torch.tensor([[0, 1], [3, -1]], dtype=torch.int32)
    probes.ngram_accepted(lambda *_: (torch.tensor([1, 2, 9, 4, 9, 9]), torch.tensor([2, 1]), index), object())
    reqs = [SimpleNamespace(finished=lambda ended=ended: ended) for ended in (True, False)]
    probes.looked_up(lambda *_: None, object(), SimpleNamespace(**vars(batch()), reqs=reqs))
    probes.forward(lambda *_: None, verify, batch(first=(1, 4)))
    assert findings() == []
    probes.forward(lambda *_: None, verify, batch(first=(1, 5)))
    assert findings() == ["verify.input_ids"]


HEAD = torch.eye(VOCAB)


def seeded(probes: Any, *, row: int = 2, **chosen: Any) -> None:
    """A verify behind which the first request's draft begins from node ``row``; its newest token is that of node 2."""
    facts: dict[str, Any] = dict.fromkeys(("grammars", "logit_bias", "penalizer_orchestrator"))
    facts["is_all_greedy"] = True
    model = SimpleNamespace(lm_head=SimpleNamespace(weight=HEAD))
    drafts = SimpleNamespace(target_worker=SimpleNamespace(model_runner=SimpleNamespace(model=model)))
    states = torch.stack([HEAD[[1, 2, 3][row]], HEAD[4]])
    seed = SimpleNamespace(bonus_tokens=torch.tensor([3, 4]), hidden_states=states)
    one = batch(sampling_info=SimpleNamespace(**(facts | chosen)))
    probes.extended(lambda *_: None, drafts, one, SimpleNamespace(next_draft_input=seed))


def test_a_draft_by_frozen_keys_begins_from_the_state_that_chose_the_newest_token(findings: Any) -> None:
    probes = BlockProbes()
    probes.forward(lambda *_: None, runner(drafts=False), batch())
    seeded(probes)
    probes.forward(lambda *_: None, runner(drafts=False), batch(first=(3, 4)))
    seeded(probes, row=1, is_all_greedy=False)
    seeded(probes, row=1, grammars=["a"])
    seeded(probes, row=1, penalizer_orchestrator=SimpleNamespace(is_required=True))
    assert findings() == []
    seeded(probes, row=1)
    assert findings() == ["seed.hidden_states"]
    probes.forward(lambda *_: None, runner(drafts=False), batch(first=(3, 5)))
    assert findings() == ["verify.input_ids"]


def test_a_draft_by_frozen_keys_stays_at_the_last_position_that_has_any(
    findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, f"sglang.{BLOCK_SEATS['drafted'][0].module}", ModuleType("worker"))
    probes, drafts, mode = BlockProbes(), runner(drafts=True), dict.fromkeys(("is_target_verify", "is_extend"))
    mode = SimpleNamespace(**dict.fromkeys(mode, lambda: False), is_decode=lambda: True)
    one = SimpleNamespace(forward_mode=mode, seq_lens=LENGTHS, positions=LENGTHS - 1)
    probes.forward(lambda *_: None, drafts, one)
    assert findings() == []
    one.positions = LENGTHS
    probes.forward(lambda *_: None, drafts, one)
    assert findings() == ["draft.forward.positions"]


def test_what_a_draft_by_frozen_keys_begins_from_and_makes_is_told() -> None:
    sites, told = heard()
    seeded(sites)
    assert (told["seed.bonus"], told["seed.hidden_states"][0][3]) == ([3, 4], 1.0)
    verify = SimpleNamespace(draft_token=torch.arange(6), positions=torch.arange(4, 10))
    one = SimpleNamespace(forward_mode=SimpleNamespace(is_idle=lambda: False), batch_size=lambda: 2)
    sites.drafted(lambda *_: verify, object(), one)
    assert (told["draft.organize.draft_tokens"], told["tree.positions"][0]) == ([[1, 2], [4, 5]], 4)


def test_only_workers_that_are_imported_are_tapped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(BlockProbes().taps()) == list(heard()[0].taps()) == []
    seat = BLOCK_SEATS["flash_accepted"][0]
    monkeypatch.setitem(sys.modules, f"sglang.{seat.module}", ModuleType("worker"))
    monkeypatch.setattr(type(seat), "find", lambda each: (object, each.places[0].rpartition(".")[2]))
    names = [name for _, name, _ in BlockProbes().taps()]
    assert names == ["forward", "_append_target_hidden_to_draft_kv_by_loc", "_accept_block"]


def worker() -> Any:
    return SimpleNamespace(model_runner=runner(drafts=False))


def context(**more: Tensor) -> dict[str, Tensor]:
    """The context that the blocks of :func:`batch` become."""
    one = batch()
    return {"positions": one.positions, "cache_loc": one.out_cache_loc, **more}
