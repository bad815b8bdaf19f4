"""Bugs planted in the engine's source, all of them seen as wrong tokens, each with the place where it begins."""

from pathlib import Path
from typing import NamedTuple

from specdebug.base.yamlio import parse_yaml
from specdebug.campaign.loops.replay import ArmRun
from specdebug.patching import Patch
from specdebug.patching.toggles import Detection, Toggle
from specdebug.scenario.grammar import Scenario, read_scenario

TEXT = """
name: planted
engine:
  model: tiny
  page_size: 4
  context_length: 128
  max_running_requests: 3
  speculative: {algorithm: EAGLE, num_steps: 3, eagle_topk: 2, num_draft_tokens: 6}
  cuda_graph: {max_bs: 4, capture_bs: [4]}
  memory: {num_slots: 512}
workload:
  - {id: r, requests: 3, prompt: {corpus: stdlib, tokens: [16, 24]}, max_new_tokens: 12, arrive: {every: 2}}
oracles: {lossless: true, draft_kv: false, draft_state: false, acceptance: false}
limits: {max_steps: 200}
"""


class Bug(NamedTuple):
    """One edit of the engine, and the site at which it first shows."""

    target: str
    match: str
    replacement: str
    site: str

    def toggle(self, number: int) -> Toggle:
        patch = Patch.of(f"bug {number}", self.target, (self.match, self.replacement))
        detected = Detection("planted", ("mismatch@*",))
        return Toggle(number, (), "t", "u", "f", "s", "", detected, (patch,), {}, Path("x.yaml"))


_SPECULATIVE = "specdebug.engine.textbook.speculative"
BUGS = {
    "the root of the next tree is the token before it": Bug(
        f"{_SPECULATIVE}.worker:bonus_of",
        "return predict.gather(1, accept_lengths.unsqueeze(1) - 1).squeeze(1)",
        "return predict.gather(1, (accept_lengths.unsqueeze(1) - 2).clamp(min=0)).squeeze(1)",
        "draft.bonus",
    ),
    "the verify computes one position too far": Bug(
        f"{_SPECULATIVE}.verify:VerifyStage.prepare",
        "inputs = VerifyInputs(input_ids, tree.positions.reshape(-1), slots, tree.mask, rows, seq_lens)",
        "inputs = VerifyInputs(input_ids, tree.positions.reshape(-1) + 1, slots, tree.mask, rows, seq_lens)",
        "kv_pool.write.k",
    ),
    "a node is judged by another's logits": Bug(
        f"{_SPECULATIVE}.verify:VerifyForward.run",
        "return VerifyOutputs(self.model.logits(output.hidden), features)",
        "return VerifyOutputs(self.model.logits(output.hidden.roll(1, 0)), features)",
        "verify.logits",
    ),
    "the first child is accepted unseen": Bug(
        "specdebug.engine.kernels.accept:walk_greedy",
        "while node >= 0 and drafts[b][node] != wanted[b][path[-1]]:",
        "while node < -1:",
        "accept.predict",
    ),
    "accepted KV is moved the other way": Bug(
        f"{_SPECULATIVE}.accept:commit_kv",
        "pool.move_kv_cache(plan.tgt_loc, plan.src_loc)",
        "pool.move_kv_cache(plan.src_loc, plan.tgt_loc)",
        "move_kv_cache.tgt_loc",
    ),
    "a prompt is continued from its last but one token": Bug(
        "specdebug.engine.textbook.target_worker:TargetWorker.prefill",
        "logits = self.model.logits(output.hidden[batch.last_rows()])",
        "logits = self.model.logits(output.hidden[batch.last_rows() - 1])",
        "target_prefill.logits",
    ),
}


def scenario() -> Scenario:
    return read_scenario(parse_yaml(TEXT, "planted.yaml"))


def failing_run(name: str, seed: int) -> ArmRun:
    """An arm with one of the bugs."""
    return ArmRun(f"{name}, seed {seed}", scenario(), "base", seed, toggles=(BUGS[name].toggle(1),))
