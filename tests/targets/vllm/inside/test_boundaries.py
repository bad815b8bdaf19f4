"""What passes the boundaries of vLLM's stages, by our names, each request with its own rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specdebug.targets.vllm.inside.boundaries import Boundaries, StepRequests
from tests.targets.vllm.inside.fake_runner import Runner


class Notes:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[str, tuple[str, ...]]]] = []
        self.passed: list[tuple[str, tuple[str, ...], list[object], tuple[int, ...]]] = []
        self.over = 0

    def on_step(self, shares: Sequence[StepRequests]) -> None:
        self.steps.append([(share.doing, share.rids) for share in shares])

    def on_site(self, site: str, among: StepRequests, values: Tensor, rows: Sequence[int]) -> None:
        flat = values.argmax(-1) if site.endswith("logits") else values.reshape(len(values), -1)[:, 0]
        if site == "accept.predict":
            flat = values.reshape(-1)
        self.passed.append((site, among.rids, flat.tolist(), tuple(rows)))

    def on_step_over(self) -> None:
        self.over += 1

    def of(self, site: str) -> list[tuple[tuple[str, ...], list[object], tuple[int, ...]]]:
        return [told[1:] for told in self.passed if told[0] == site]


def watched() -> tuple[Runner, Notes]:
    runner, notes = Runner(), Notes()
    Boundaries(runner, [notes])
    runner.add("a", [1, 2, 3])
    return runner, notes


def test_a_prefill_and_what_is_drafted_behind_it() -> None:
    runner, notes = watched()
    runner.step(a=3)
    assert notes.steps == [[("prefill", ("a",))]]
    assert notes.over == 1
    assert [told[0] for told in notes.passed] == [
        "kv_pool.write.loc",
        "target_prefill.input_ids",
        "target_prefill.logits",
        "target_prefill.hidden_states",
        "sampler.next_token_ids",
        "draft.bonus",
        "draft_prefill.input_ids",
        "look.stored.positions",
        "look.stored.input_ids",
        "draft_prefill.hidden_states",
        "look.stored.hidden_states",
        "draft_extend.logits",
        "draft_extend.topk_index",
        *["draft.out_cache_loc", "draft.forward.positions", "draft.forward.input_ids", "draft.forward.logits"] * 2,
    ]
    assert notes.of("kv_pool.write.loc") == [(("a",), [64, 65, 66], (3,))]
    assert [values for _, values, _ in notes.of("draft.out_cache_loc")] == [[67], [68]]
    assert notes.of("target_prefill.input_ids") == [(("a",), [1, 2, 3], (3,))]
    assert notes.of("draft_prefill.input_ids") == [(("a",), [2, 3, 4], (3,))]
    assert notes.of("draft_extend.topk_index") == [(("a",), [5], (1,))]
    assert [notes.of(f"look.stored.{name}")[0][1] for name in ("positions", "input_ids", "hidden_states")] == [
        [2],
        [4],
        [4],
    ]
    assert [values for _, values, _ in notes.of("draft.forward.positions")] == [[3], [4]]
    assert [values for _, values, _ in notes.of("draft.forward.input_ids")] == [[5], [6]]


def test_a_step_that_prefills_one_and_verifies_another_is_told_share_by_share() -> None:
    runner, notes = watched()
    runner.step(a=3)
    runner.add("b", [5, 6, 7, 8])
    notes.passed.clear()
    runner.step(b=2, a=4)
    assert notes.steps[1] == [("prefill", ("b",)), ("speculative", ("a",))]
    assert notes.of("target_prefill.input_ids") == [(("b",), [5, 6], (2,))]
    assert notes.of("verify.input_ids") == [(("a",), [4, 5, 6, 7], (4,))]
    assert notes.of("verify.logits") == [(("a",), [5, 6, 7, 8], (4,))]
    assert notes.of("target_prefill.logits") == [(("b",), [7], (1,))]
    assert notes.of("accept.predict") == [(("a",), [5, 6, 7, 8], (1,))]
    assert notes.of("accept.num_correct_drafts") == [(("a",), [3], (1,))]
    assert notes.of("draft_extend.features") == [(("a",), [4, 5, 6, 7], (4,))]
    assert notes.of("draft_extend.input_ids") == [(("a",), [5, 6, 7, 8], (4,))]
    assert [rids for rids, _, _ in notes.of("draft.bonus")] == [("b",), ("a",)]


def test_a_draft_that_is_wrong_is_counted_as_rejected() -> None:
    runner, notes = watched()
    runner.step(a=3)
    runner.step(a=4)
    notes.passed.clear()
    runner.step(a=4)
    assert notes.of("verify.input_ids") == [(("a",), [8, 9, 10, 0], (4,))]
    runner.tokens["a"][-1], runner.drafts["a"] = 6, [7, 7, 7]
    notes.passed.clear()
    runner.step(a=4)
    assert notes.of("accept.predict") == [(("a",), [7, 8, -1, -1], (1,))]
    assert notes.of("accept.num_correct_drafts") == [(("a",), [1], (1,))]


def test_a_target_alone_decodes_plainly() -> None:
    runner, notes = Runner(), Notes()
    del runner.drafter
    runner.sample_tokens = lambda _: runner._sample(runner.execute_model_state.logits, None)  # type: ignore[method-assign]
    Boundaries(runner, [notes])
    runner.add("a", [1, 2])
    runner.step(a=2)
    runner.tokens["a"].append(3)
    runner.computed["a"] = 2
    runner.step(a=1)
    assert [told[0] for told in notes.passed] == [
        "kv_pool.write.loc", "target_prefill.input_ids", "target_prefill.logits", "target_prefill.hidden_states",
        "sampler.next_token_ids",
        "kv_pool.write.loc", "target_decode.input_ids", "target_decode.logits", "sampler.next_token_ids",
    ]  # fmt: skip


def test_a_step_that_fails_is_over() -> None:
    runner, notes = watched()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    runner._model_forward = fail  # type: ignore[assignment,method-assign]
    with pytest.raises(RuntimeError, match="no memory"):
        runner.step(a=3)
    assert notes.over == 1


def test_a_vocabulary_of_the_draft_s_own_is_told_by_its_own_ids() -> None:
    runner, notes = Runner(), Notes()
    targets = torch.tensor([2, 5, 6, 9])  # of the draft's four tokens
    runner.drafter.model.draft_id_to_target_id = targets - torch.arange(4)  # type: ignore[assignment]
    Boundaries(runner, [notes])
    runner.add("a", [1, 2, 3])
    runner.step(a=3)
    assert notes.of("draft_extend.topk_index") == [(("a",), [1], (1,))]
    assert notes.of("draft_extend.logits") == [(("a",), [1], (1,))]
