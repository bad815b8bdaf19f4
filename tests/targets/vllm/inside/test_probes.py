"""Each site of vLLM's that is probed: silent of what is right, and what it finds of damage, with step and value."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.async_probe.gate import KINDS, RECORD, Rule
from specdebug.targets.vllm.inside.boundaries import Boundaries
from specdebug.targets.vllm.inside.probes import FEATURES, IDS, LOGITS, SiteProbes
from tests.targets.vllm.inside.fake_runner import VOCABULARY, Runner


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    async_probe.reset()
    async_probe.configure("off")


def probed(glob: str = "*", mode: str = RECORD) -> tuple[Runner, SiteProbes]:
    async_probe.reset()
    async_probe.configure(RECORD, [Rule(glob, mode, tuple(KINDS))])
    return Runner(), SiteProbes(vocab_size=VOCABULARY, num_steps=3, block_size=64, num_slots=4 * 64)


def served(runner: Runner, probes: SiteProbes) -> None:
    """A prompt in two chunks, and two verifies, beside another request from the second step on."""
    Boundaries(runner, [probes])
    runner.add("a", [1, 2, 3])
    runner.add("b", [4, 5])
    runner.step(a=2)
    runner.step(a=1, b=2)
    runner.step(a=4, b=4)
    runner.step(b=4, a=4)


def found() -> list[str]:
    return [each.message().removeprefix("async probe ") for each in async_probe.drain()]


def changed(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Have a function of the fake's answer something else."""
    call = getattr(owner, name)
    setattr(owner, name, lambda *args, **named: change(call(*args, **named)))


def test_what_is_right_is_silent_and_every_site_is_reached() -> None:
    runner, probes = probed()
    served(runner, probes)
    assert found() == []
    others = {"draft_extend.topk_index", "accept.predict", "accept.num_correct_drafts", "draft.forward.positions"}
    places = {"kv_pool.write.loc", "draft.out_cache_loc"}
    drafting = {each for each in (*IDS, *LOGITS, *FEATURES) if not each.startswith("target_decode")}
    assert set(async_probe.reached()) == drafting | others | places


def _nan(logits: Any) -> Any:
    return torch.where(logits == 1, torch.nan, logits)


@pytest.mark.parametrize(
    ("where", "name", "change", "signature"),
    [
        ("runner", "_model_forward", lambda hidden: hidden + torch.nan, "nan@target_prefill.hidden_states"),
        ("runner", "_sample", lambda it: (it.sampled_token_ids.fill_(99), it)[1], "oob@sampler.next_token_ids"),
        ("drafter", "prepare_next_token_ids_padded", lambda it: (it[0] - 99, it[1]), "oob@draft.bonus"),
        ("drafter", "prepare_next_token_ids_padded", lambda it: (it[0], it[1] + 3), "oob@accept.num_correct_drafts"),
        ("model", "compute_logits", _nan, "nan@draft_extend.logits"),
        ("model", "compute_logits", lambda it: it + torch.inf, "inf@draft_extend.logits"),
        ("drafter", "_sample_draft_tokens", lambda it: (it[0] + 99, None), "oob@draft_extend.topk_index"),
        ("drafter", "_update_positions_dependent_metadata", lambda at: at + 1, "oob@draft.forward.positions"),
        ("runner", "_get_slot_mappings", lambda it: ({0: it[0][0] + 1}, None), "oob@kv_pool.write.loc"),
        ("runner", "_get_slot_mappings", lambda it: ({0: it[0][0] + 999}, None), "oob@kv_pool.write.loc"),
    ],
)
def test_damage_is_found_where_it_is_done(where: str, name: str, change: Callable[[Any], Any], signature: str) -> None:
    runner, probes = probed()
    changed({"runner": runner, "drafter": runner.drafter, "model": runner.drafter.model}[where], name, change)
    with contextlib.suppress(IndexError, RuntimeError):  # the fake cannot go on with some of it
        served(runner, probes)
    assert any(each.startswith(signature) for each in found()), signature


def test_a_slot_of_another_request_s_block_is_found() -> None:
    runner, probes = probed()
    plain = runner.drafter._update_positions_dependent_metadata

    def shifted(positions: Any, metadata: Any) -> Any:
        answer = plain(positions, metadata)
        metadata.slot_mapping = metadata.slot_mapping + 64
        return answer

    runner.drafter._update_positions_dependent_metadata = shifted  # type: ignore[method-assign]
    served(runner, probes)
    first = found()[0]
    assert first.startswith("oob@draft.out_cache_loc: value not below 1")
    assert "1 bad, first 64 at 0]" in first


def test_a_chunk_that_is_not_the_prompt_s_last_must_be_followed_by_the_prompt_s_next_token() -> None:
    runner, probes = probed()
    plain = runner.drafter.prepare_next_token_ids_padded

    def last_of_prompt(sampled: Any) -> Any:
        return torch.full_like(plain(sampled)[0], 9), plain(sampled)[1]

    runner.drafter.prepare_next_token_ids_padded = last_of_prompt  # type: ignore[method-assign]
    Boundaries(runner, [probes])
    runner.add("a", [1, 2, 3])
    runner.step(a=2)
    (first,) = [each for each in found() if "draft_prefill" in each]
    assert first.startswith("oob@draft_prefill.input_ids")
    assert "1 bad, first 6 at 0]" in first  # 9, and the prompt goes on with 3


def test_an_assertion_ends_the_step_and_what_packs_leave_out_is_not_looked_at() -> None:
    runner, probes = probed(mode="assert")
    changed(runner, "_model_forward", lambda hidden: hidden + torch.nan)
    with pytest.raises(RuntimeError, match="async probe nan@target_prefill"):
        served(runner, probes)
    runner, probes = probed("draft.*")
    changed(runner, "_model_forward", lambda hidden: hidden + torch.nan)
    served(runner, probes)
    assert not [each for each in found() if "hidden_states" in each]
    assert all(site.startswith("draft.") for site in async_probe.reached())
