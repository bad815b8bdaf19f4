"""A decode step of each worker on a GPU: EAGLE v2 and v1, multi-layer MTP and frozen-KV MTP.

``python benchmarks/gpu/workers.py OUT [--backend triton] [--rounds N]`` makes an 8B-shaped target with random weights
and a draft model of each kind, takes steps of all workers in turn on the same requests, prints a table and writes
``workers.json`` to the folder OUT. Each drafts three tokens a step: EAGLE in as many steps of one head, MTP by a layer
each. The weights are random, so accept lengths only say that steps of every kind occur.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from specdebug.engine.model.models import TargetModel
from specdebug.engine.textbook.engine import Models

sys.path.insert(0, str(Path(__file__).parent))
from bounds import Bound, add_flag
from models import make_assistant, make_eagle, make_mtp, make_target
from served import EAGLE, PROMPT, STEPS, Row, Served, release, show

TREE = {"eagle_topk": 4, "num_draft_tokens": 8}
KINDS: dict[str, Mapping[str, Any]] = {
    "EAGLE, worker v2": EAGLE,
    "EAGLE, worker v1": {**EAGLE, "worker": "v1"},
    "EAGLE, worker v2, topk 4": {**EAGLE, **TREE},
    "EAGLE, worker v1, topk 4": {**EAGLE, **TREE, "worker": "v1"},
    "MTP, 3 layers": {"algorithm": "MTP", "num_steps": STEPS},
    "frozen-KV MTP": {"algorithm": "FROZEN_KV_MTP", "num_steps": STEPS},
    "frozen-KV MTP, topk 4": {"algorithm": "FROZEN_KV_MTP", "num_steps": STEPS, **TREE},
}
BESIDE = {kind: "EAGLE, worker v2, topk 4" if "topk" in kind else "EAGLE, worker v2" for kind in KINDS}
"""Whose step each is divided by."""
BATCHES = {1: (PROMPT, 8), 32: (128, 4)}
"""By requests at a time: tokens of a prompt, and steps a round."""
V1_AT_MOST, OTHERS_AT_MOST = Bound(at_most=1.8), Bound(at_most=1.1)
"""A worker's step over that of the worker v2; of v1 1.3 to 1.5 was measured, of the others 1.0 (docs/benchmarks.md)."""


def draft_models(target: TargetModel) -> dict[str, Models]:
    """The target with a draft model for each algorithm."""
    made = {"EAGLE": make_eagle(target), "MTP": make_mtp(target, STEPS), "FROZEN_KV_MTP": make_assistant(target)}
    return {algorithm: Models(target, draft) for algorithm, draft in made.items()}


def step_rows(models: Mapping[str, Models], backend: str, rounds: int, batch: int) -> list[Row]:
    """Steps of all kinds in turn: what each takes, beside EAGLE's of the worker v2, and what it accepts."""
    prompt, per_round = BATCHES[batch]
    arms = {}
    for kind, spec in KINDS.items():
        arms[kind] = Served(models[spec["algorithm"]], batch, backend=backend, probes="off", spec=spec)
        arms[kind].add(batch, prompt)
        arms[kind].steps(8)
    taken = [{kind: served.steps(per_round) for kind, served in arms.items()} for _ in range(rounds)]
    rows = []
    for kind, served in arms.items():
        what = f"{kind}, batch {batch}"
        rows.append(Row.of(f"{what}: a step", [1e3 * times[kind] for times in taken], "ms"))
        if kind != BESIDE[kind]:
            bound = V1_AT_MOST if KINDS[kind].get("worker") == "v1" else OTHERS_AT_MOST
            beside = [times[kind] / times[BESIDE[kind]] for times in taken]
            rows.append(Row.of(f"{what}: a step / {BESIDE[kind]}'s", beside, "x", bound))
        rows.append(Row.of(f"{what}: mean accept length", [accept_length(served)], "tokens"))
    release(*arms.values())
    return rows


def accept_length(served: Served) -> float:
    """Tokens a verify accepted, bonus included, over all requests of an engine."""
    return statistics.mean(n for request in served.engine.requests.values() for n in request.accept_lengths)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for workers.json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--backend", default="triton", choices=["flashinfer", "fa3", "triton"])
    add_flag(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    models = draft_models(make_target())
    rows: list[Row] = []
    for batch in BATCHES:
        rows += step_rows(models, options.backend, options.rounds, batch)
        (options.out / "workers.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    title = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, plan {options.backend}"
    return show(rows, title, no_bounds=options.no_bounds)


if __name__ == "__main__":
    sys.exit(main())
