"""vLLM's own code on a CPU: scenarios of chains run on it and agree with our engine token for token."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from specdebug.base.assets import checkpoint_path
from specdebug.targets.installs.release import parse_release
from specdebug.targets.installs.store import find_installed, store_folder
from specdebug.targets.registry import find_target
from specdebug.targets.settings import ReleasedEngine
from specdebug.targets.vllm.target import VllmTarget
from tests.engines.replays import REPLAY, ROOT, alike, diverged, replayed

pytestmark = pytest.mark.engines

RELEASE = "vllm==0.32.0"


@pytest.mark.parametrize("scenario", ["multiturn_cache_hit", "bigram_key"])
def test_tokens_and_accept_lengths_are_those_of_our_engine(scenario: str) -> None:
    code, theirs = replayed(scenario, "--arm", "fixed", "--target", RELEASE)
    assert (code, theirs["verdict"]) == (0, "pass"), theirs["detail"]
    _, ours = replayed(scenario, "--arm", "fixed")
    assert alike(theirs, ours)


def test_a_tree_is_not_run_and_refused_where_it_stands(tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        words = [*REPLAY, str(path), "--arm", "fixed", "--target", RELEASE]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2
        return done.stderr

    shipped = ROOT / "scenarios" / "topk_page_table.yaml"
    assert "not run on vllm==0.32.0: it drafts chains, not trees" in refused(shipped)
    silent = tmp_path / "silent.yaml"
    silent.write_text("\n".join(line for line in shipped.read_text().splitlines() if not line.startswith("not_on")))
    assert "vLLM drafts chains, not trees" in refused(silent)
    assert "silent.yaml:" in refused(silent)


def test_the_probe_at_a_chunk_s_end_finds_vllm_s_own_mistake_and_the_run_goes_on() -> None:
    """vLLM 0.32.0 gives the draft of a chunk that is not the last the prompt's last token, not its next."""
    code, theirs = replayed("chunk_tail", "--arm", "fixed", "--target", RELEASE)
    assert (code, theirs["signature"]) == (1, "oob@draft_prefill.input_ids"), theirs["detail"]
    assert "1 bad, first " in theirs["detail"]
    assert theirs["reached_sites"]["draft.forward.positions"] > 0
    _, ours = replayed("chunk_tail", "--arm", "fixed")
    assert alike(theirs, ours)


def test_an_asserted_probe_ends_the_engine_and_names_the_failure(tmp_path: Path) -> None:
    text = (ROOT / "scenarios" / "chunk_tail.yaml").read_text()
    scenario = tmp_path / "asserted.yaml"
    scenario.write_text(text.replace("\narms:", "\nprobes: [assert]\narms:"))
    code, arm = replayed(str(scenario), "--arm", "fixed", "--target", RELEASE)
    assert (code, arm["signature"]) == (1, "oob@draft_prefill.input_ids"), arm["detail"]
    assert arm["detail"].startswith("async probe oob@draft_prefill.input_ids")


FOUND: dict[str, set[str]] = {
    "ids": {"oob@target_prefill.input_ids", "oob@verify.input_ids"},
    "logits": {"nan@target_prefill.logits", "nan@verify.logits"},
    "infinite": {"inf@target_prefill.logits", "inf@verify.logits"},
    "features": {"nan@target_prefill.hidden_states", "nan@verify.hidden_states"},
    "sampled": {"oob@sampler.next_token_ids", "oob@accept.predict"},
    "slots": {"oob@kv_pool.write.loc"},
    "bonus": {"oob@draft.bonus"},
    "counts": {"oob@accept.num_correct_drafts"},
    "draft_ids": {"oob@draft_prefill.input_ids", "oob@draft_extend.input_ids"},
    "drafts": {"oob@draft_extend.topk_index", "oob@draft.forward.input_ids"},
    "draft_logits": {"nan@draft_extend.logits", "nan@draft.forward.logits"},
    "positions": {"oob@draft.forward.positions"},
    "draft_slots": {"oob@draft.out_cache_loc"},
    "draft_hidden": {"nan@draft_prefill.hidden_states"},
    "extend_features": {"nan@draft_extend.features"},
}
"""By what ``planting_vllm.py`` damages, what is found of that."""
PLAIN: dict[str, set[str]] = {
    "ids": {"oob@target_decode.input_ids"},
    "logits": {"nan@target_decode.logits"},
    "infinite": {"inf@target_decode.logits"},
}
"""Of an engine without drafts."""


@pytest.mark.parametrize("drafts", [True, False])
def test_each_site_finds_the_damage_done_there_and_is_silent_without(drafts: bool) -> None:
    found = planted(drafts=drafts)
    assert (found["sound"], found["sound again"]) == ([], [])
    for name, wanted in (FOUND if drafts else PLAIN).items():
        assert wanted <= {line.split()[2].rstrip(":") for line in found[name]}, name


def planted(*, drafts: bool) -> dict[str, list[str]]:
    """The findings of a process in which damage is done, by the name of that."""
    here = find_installed(store_folder(None), parse_release(RELEASE))
    options = {"context_length": 512, "max_running_requests": 4, "memory": {"num_slots": 2048}}
    if drafts:
        options["speculative"] = {"num_steps": 4}
    target = find_target(ReleasedEngine(release=RELEASE))
    assert isinstance(target, VllmTarget)
    home, (arguments, _) = target.home(), target.mapped(options, here)
    words = [here.python, "-P", str(ROOT / "tests" / "engines" / "planting_vllm.py"), json.dumps(arguments)]
    env = {**os.environ, **dict(home.env), "PYTHONPATH": home.path[0]}
    done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    # vLLM may end its output with more lines after it, as its processes go
    said = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))
    answer: dict[str, list[str]] = json.loads(said)
    return answer


SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
PROPOSER = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer"
FREE = "self.kv_cache_manager.free(request)"
PLANTED = {
    "leak": (f"{SCHEDULER}._free_request_blocks", FREE, "self.kv_cache_manager.pop_blocks_for_free(request)"),
    "double-free": (
        f"{SCHEDULER}._free_request_blocks",
        FREE,
        "self.kv_cache_manager.block_pool.free_blocks(self.kv_cache_manager.get_blocks(request.request_id).blocks[0])\n"
        + FREE,
    ),
    "ref-count": ("vllm.v1.core.block_pool:BlockPool.touch", "block.ref_cnt += 1", "block.ref_cnt += 2"),
    "rejected": (f"{SCHEDULER}.update_from_output", "request.num_computed_tokens -= num_rejected", "pass"),
    "position": (
        f"{PROPOSER}._update_positions_dependent_metadata",
        "positions = self.positions[:batch_size]",
        "positions = self.positions[:batch_size].add_(1)",
    ),
    "feature": (
        f"{PROPOSER}.set_inputs_first_pass",
        "self.hidden_states[:num_tokens] = target_hidden_states",
        "self.hidden_states[1:num_tokens] = target_hidden_states[:-1]",
    ),
    "hidden": (
        f"{PROPOSER}.propose",
        "hidden_states = hidden_states[token_indices_to_sample]",
        "hidden_states = hidden_states[token_indices_to_sample - 1]",
    ),
    "lengths": (f"{PROPOSER}.propose", "common_attn_metadata.seq_lens -= num_rejected_tokens_gpu", "pass"),
}
"""Damage by source patches of vLLM: the function, a line of it, and what stands there instead."""


def planting(folder: Path, name: str) -> None:
    """A folder of content whose fix 900001, reverted, is that damage."""
    target, line, instead = PLANTED[name]
    edit = {"match": f"{line}\n", "replacement": f"{instead}\n"}
    toggle = {
        "pr": 900001,
        "title": "a fix that there is not",
        "url": "https://example.org/900001",
        "family": "planted",
        "symptom": "none",
        "patches": {"vllm": {">=0.32.0,<0.33": [{"target": target, "edits": [edit]}]}},
    }
    (folder / "toggles").mkdir()
    (folder / "toggles" / "900001.yaml").write_text(json.dumps(toggle))


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("leak", "pools@ownership"),
        ("double-free", "pools@locks"),
        ("ref-count", "pools@locks"),
        ("rejected", "pools@lengths"),
        ("position", "oob@draft.forward.positions"),
        ("feature", "mismatch@draft_kv"),
        ("hidden", "mismatch@draft_tree"),
        ("lengths", "mismatch@draft_tree"),
    ],
)
def test_damage_in_vllm_s_own_code_is_the_arm_s_failure_by_law_or_site(
    name: str, signature: str, tmp_path: Path
) -> None:
    planting(tmp_path, name)
    words = ["--content", str(tmp_path), "--revert", "900001"]
    code, arm = replayed("bigram_key", "--arm", "fixed", "--target", RELEASE, *words)
    found = [each["signature"] for each in arm["violations"]]
    assert (code, signature in found) == (1, True), (found, arm["detail"])
    assert arm["signature"] == signature


def test_the_stand_in_for_expand_drops_what_it_computes_so_sampling_is_wrong() -> None:
    """vLLM 0.32.0's own mistake on a CPU (docs/engines.md, sampled requests)."""
    here = find_installed(store_folder(None), parse_release(RELEASE))
    code = (
        "import torch; from vllm.platforms import current_platform as p; p.import_kernels()\n"
        "from vllm.utils.cpu_triton_utils import _expand_kernel_impl as expand\n"
        "for kind in (torch.float32, torch.int64):\n"
        "    out = torch.full((3,), 77, dtype=kind)\n"
        "    expand(out, torch.tensor([3, 7], dtype=kind), torch.tensor([2, 3], dtype=torch.int32), 0, 1)\n"
        "    print(out.int().tolist())\n"
    )
    done = subprocess.run([here.python, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-2:] == ["[77, 77, 77]", "[3, 3, 7]"], done.stderr[-500:]


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


def test_so_does_every_tensor_of_an_eagle_3_head_which_has_features_of_several_layers(tmp_path: Path) -> None:
    text = (ROOT / "scenarios" / "bigram_key.yaml").read_text()
    scenario = tmp_path / "eagle3.yaml"
    scenario.write_text(text.replace("algorithm: EAGLE,", "algorithm: EAGLE3, draft_model: tiny-eagle3,"))
    code, answer = diverged(str(scenario), "--arm", f"fixed@{RELEASE}", "--arm", "fixed")  # and the other way round
    assert (code, answer["diverged"], answer["reason"]) == (0, False, "")
    assert {"draft_prefill.hidden_states", "draft_extend.features", "draft_extend.topk_index"} <= set(
        answer["looked"]["sites"]
    )
    assert answer["looked"]["only"][0] == []


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
