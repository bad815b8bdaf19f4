"""Measure accept lengths as the engine serves them, chains against trees, on held-out text.

    python tools/eval_engine.py --topk 1 4

The dense twin of the topk 1 rows is tools/eval_draft.py; trees can only be measured here.
"""

from __future__ import annotations

import argparse

from eval_draft import heldout_prompts
from tokenizers import Tokenizer

from specdebug.assets import tokenizer_path
from specdebug.engine import Engine, EngineConfig, SamplingParams

ALGORITHMS = {"tiny-eagle": "EAGLE", "tiny-eagle3": "EAGLE3", "tiny-assistant": "FROZEN_KV_MTP"}


def engine_accept_length(algorithm: str, topk: int, prompts: list[list[int]], new_tokens: int, num_steps: int) -> float:
    """Mean tokens a verify, bonus included, over greedy continuations of ``prompts``, one request at a time."""
    speculative = {
        "algorithm": algorithm,
        "num_steps": num_steps,
        "eagle_topk": topk,
        # A chain has one node a step and the root; a tree may verify four times as many guesses.
        "num_draft_tokens": num_steps + 1 if topk == 1 else 4 * num_steps + 1,
    }
    engine = Engine(EngineConfig.from_dict({"model": "tiny", "speculative": speculative}))
    lengths: list[int] = []
    for number, prompt in enumerate(prompts):
        rid = str(number)
        engine.add_request(rid, prompt, SamplingParams(max_new_tokens=new_tokens))
        while engine.has_work:
            engine.step()
        lengths.extend(engine.requests[rid].accept_lengths)
    return sum(lengths) / len(lengths)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topk", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompt-length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--num-steps", type=int, default=5)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(tokenizer_path("tiny")))
    prompts = heldout_prompts(tokenizer, args.rows, args.prompt_length).tolist()
    for draft, algorithm in ALGORITHMS.items():
        for topk in args.topk:
            mean = engine_accept_length(algorithm, topk, prompts, args.new_tokens, args.num_steps)
            print(f"{draft}  topk {topk}  accept length {mean:.2f}", flush=True)
