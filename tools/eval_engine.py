"""Measure accept lengths as the engine serves them, chains against trees, on held-out text.

    python tools/eval_engine.py --topk 1 4                       # every worker that has shipped checkpoints
    python tools/eval_engine.py --worker MTP --worker EAGLE3     # of these only
    python tools/eval_engine.py --model DIR --draft DIR --algorithm EAGLE

The dense twin of the topk 1 rows is tools/eval_draft.py; trees can only be measured here. A draft of N layers takes N
steps and one branch, whatever is asked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from eval_draft import heldout_prompts
from tokenizers import Tokenizer

from specdebug.base.assets import checkpoint_path, tokenizer_path
from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.workers.registry import LINEUP, SHIPPED, WorkerEntry

WORKERS = {**LINEUP, "EAGLE3": WorkerEntry("EAGLE3", algorithm="EAGLE3")}


def options_of(worker: WorkerEntry, topk: int, num_steps: int) -> dict[str, Any]:
    """Engine options: a chain has one node a step and the root; a tree may verify four times as many guesses."""
    most = 1 + topk + topk**2 * (num_steps - 1)
    return worker.options(num_steps, topk, num_steps + 1 if topk == 1 else min(4 * num_steps + 1, most))


def engine_accept_length(options: Mapping[str, Any], prompts: list[list[int]], new_tokens: int) -> float:
    """Mean tokens a verify, bonus included, over greedy continuations of ``prompts``, one request at a time."""
    engine = Engine(EngineConfig.from_dict(options))
    lengths: list[int] = []
    for number, prompt in enumerate(prompts):
        rid = str(number)
        engine.add_request(rid, prompt, SamplingParams(max_new_tokens=new_tokens))
        while engine.has_work:
            engine.step()
        lengths.extend(engine.requests[rid].accept_lengths)
    return sum(lengths) / len(lengths)


def mtp_layers(draft: str) -> int:
    """The number of a checkpoint's next-n layers, each of which makes one draft."""
    config = json.loads((checkpoint_path(draft) / "config.json").read_text())
    return int(config["num_nextn_predict_layers"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topk", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompt-length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--num-steps", type=int, default=5)
    parser.add_argument("--worker", action="append", choices=WORKERS, help="of the shipped ones; all by default")
    parser.add_argument("--model", help="a target's checkpoint, with --draft and --algorithm")
    parser.add_argument("--draft", help="its draft's checkpoint")
    parser.add_argument("--algorithm", choices=SHIPPED, default="EAGLE")
    args = parser.parse_args()
    if (args.model is None) != (args.draft is None) or (args.model is not None and args.worker):
        parser.error("give --model and --draft together, or --worker")
    workers = {name: WORKERS[name] for name in args.worker or WORKERS}
    if args.model is not None:
        layers = mtp_layers(args.draft) if args.algorithm == "MTP" else None
        workers = {args.draft: WorkerEntry(args.draft, args.algorithm, model=args.model, layers=layers)}
    tokenizer = Tokenizer.from_file(str(tokenizer_path(args.model or "tiny")))  # the shipped targets have one
    prompts = heldout_prompts(tokenizer, args.rows, args.prompt_length).tolist()
    for name, worker in workers.items():
        shapes = {str(options_of(worker, topk, args.num_steps)): topk for topk in reversed(args.topk)}
        for topk in sorted(shapes.values()):
            options = options_of(worker, topk, args.num_steps)
            spec = options["speculative"]
            spec["draft_model"] = args.draft
            mean = engine_accept_length(options, prompts, args.new_tokens)
            print(f"{name}  {spec['num_steps']} steps  topk {spec['eagle_topk']}  accept length {mean:.2f}", flush=True)
