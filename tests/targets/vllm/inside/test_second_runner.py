"""What passes the boundaries of vLLM's runner V2: by name, request and value what passes those of V1."""

from __future__ import annotations

import pytest
import torch

from specdebug.targets.vllm.inside.boundaries import Boundaries
from specdebug.targets.vllm.inside.second_runner import SecondBoundaries, is_second
from tests.targets.vllm.inside.fake_runner import Runner
from tests.targets.vllm.inside.fake_second_runner import SecondRunner
from tests.targets.vllm.inside.test_boundaries import Notes


def watched(*, drafts: bool = True) -> tuple[SecondRunner, Notes]:
    runner, notes = SecondRunner(), Notes()
    if not drafts:
        runner.speculator = None
    SecondBoundaries(runner, [notes], blocks_of=runner.blocks_of)
    runner.add("a", [1, 2, 3])
    return runner, notes


def first() -> tuple[Runner, Notes]:
    runner, notes = Runner(), Notes()
    Boundaries(runner, [notes])
    runner.add("a", [1, 2, 3])
    return runner, notes


def test_it_tells_what_the_first_runner_tells() -> None:
    (second, told), (one, wanted) = watched(), first()
    assert (is_second(second), is_second(one)) == (True, False)
    for runner in (second, one):
        runner.step(a=3)
        runner.add("b", [5, 6, 7, 8])
        runner.step(b=2, a=4)
        runner.step(b=2, a=4)
        runner.step(a=4, b=4)
    assert told.steps == wanted.steps
    assert told.over == wanted.over == 4
    names = {site for site, *_ in wanted.passed}
    assert {site for site, *_ in told.passed} == names
    for site in sorted(names):
        assert told.of(site) == wanted.of(site), site


def test_a_chunk_s_draft_reads_the_prompt_s_next_token() -> None:
    runner, notes = watched()
    runner.add("b", [5, 2, 9, 8])
    runner.step(b=2)
    assert notes.of("draft_prefill.input_ids") == [(("b",), [2, 9], (2,))]
    assert notes.of("draft.bonus") == [(("b",), [9], (1,))]


def test_what_lies_behind_the_last_accepted_token_is_none() -> None:
    runner, notes = watched()
    runner.step(a=3)
    runner.drafts["a"] = torch.tensor([5, 0, 0])
    runner.step(a=4)
    assert notes.of("accept.predict") == [(("a",), [5, 6, -1, -1], (1,))]
    assert notes.of("accept.num_correct_drafts") == [(("a",), [1], (1,))]


def test_a_target_alone_decodes_plainly() -> None:
    runner, notes = watched(drafts=False)
    runner.step(a=3)
    runner.step(a=1)
    assert [told[0] for told in notes.passed] == [
        "kv_pool.write.loc", "target_prefill.input_ids", "target_prefill.hidden_states", "target_prefill.logits",
        "sampler.next_token_ids",
        "kv_pool.write.loc", "target_decode.input_ids", "target_decode.logits", "sampler.next_token_ids",
    ]  # fmt: skip


def test_logits_that_nothing_is_sampled_from_are_not_told() -> None:
    runner, notes = watched()
    runner.step(a=3)
    before = len(notes.passed)
    runner.model.compute_logits(torch.zeros(2, 1))
    assert len(notes.passed) == before


def test_a_step_that_fails_is_over() -> None:
    runner, notes = watched()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    runner.model.forward = fail  # type: ignore[assignment,method-assign]
    with pytest.raises(RuntimeError, match="no memory"):
        runner.step(a=3)
    assert notes.over == 1
