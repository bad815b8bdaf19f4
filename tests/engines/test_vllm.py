"""vLLM's own code on a CPU: scenarios of chains run on it and agree with our engine token for token."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from specdebug.assets import checkpoint_path
from tests.engines.replays import REPLAY, ROOT, alike, diverged, replayed

pytestmark = pytest.mark.engines

RELEASE = "vllm==0.32.0"


@pytest.mark.parametrize("scenario", ["multiturn_cache_hit", "chunk_tail", "bigram_key"])
def test_tokens_and_accept_lengths_are_those_of_our_engine(scenario: str) -> None:
    code, theirs = replayed(scenario, "--arm", "fixed", "--target", RELEASE)
    assert (code, theirs["verdict"]) == (0, "pass"), theirs["detail"]
    _, ours = replayed(scenario, "--arm", "fixed")
    assert alike(theirs, ours)


def test_a_tree_is_refused_where_it_stands() -> None:
    words = [*REPLAY, "scenarios/topk_page_table.yaml", "--arm", "fixed", "--target", RELEASE]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "vLLM drafts chains, not trees" in done.stderr
    assert "scenarios/topk_page_table.yaml:" in done.stderr


@pytest.mark.parametrize("scenario", ["multiturn_cache_hit", "bigram_key", "flaky_draft_positions"])
def test_every_tensor_beside_our_engines_differs_by_rounding_alone(scenario: str) -> None:
    code, answer = diverged(scenario, "--arm", "fixed", "--arm", f"fixed@{RELEASE}")
    assert (code, answer["diverged"], answer["reason"]) == (0, False, "")
    looked = answer["looked"]
    assert {"verify.logits", "draft.forward.logits", "accept.predict", "draft_extend.input_ids"} <= set(looked["sites"])
    assert answer["rounding"]["shares"] > 5
    assert looked["only"][1] == []
    assert looked["prompts"][0] > 0
    assert looked["left_out"] == {}


def test_the_first_tensor_that_a_reverted_fix_changes_is_named() -> None:
    code, answer = diverged("flaky_draft_positions", "--arm", "reverted", "--arm", f"fixed@{RELEASE}")
    assert (code, answer["first"]["site"]) == (1, "draft.forward.positions")


def test_a_head_whose_bias_vllm_does_not_read_is_told_by_the_first_tensor_it_computes(tmp_path: Path) -> None:
    """``fc.bias`` is in the weights, and nothing in the config says so: the target has no cause to fold it."""
    head = tmp_path / "head"
    head.mkdir()
    for file in checkpoint_path("tiny-eagle").iterdir():
        (head / file.name).symlink_to(file.resolve())
    config = json.loads((head / "config.json").read_text())
    del config["bias"]
    (head / "config.json").unlink()
    (head / "config.json").write_text(json.dumps({**config, "architectures": ["EagleLlamaForCausalLM"]}))
    text = (ROOT / "scenarios" / "bigram_key.yaml").read_text()
    scenario = tmp_path / "unread.yaml"
    scenario.write_text(text.replace("speculative: {", f"speculative: {{draft_model: {head}, "))
    code, answer = diverged(str(scenario), "--arm", "fixed", "--arm", f"fixed@{RELEASE}")
    assert (code, answer["first"]["site"]) == (1, "draft_prefill.hidden_states")


def test_the_draft_of_a_chunk_that_is_not_the_last_gets_the_prompt_s_last_token() -> None:
    """vLLM 0.32.0's own mistake: it ought to be the prompt's next token."""
    code, answer = diverged("chunk_tail", "--arm", "fixed", "--arm", f"fixed@{RELEASE}")
    assert (code, answer["first"]["site"]) == (1, "draft_prefill.input_ids")
