"""The same configuration, requests and seed give the same steps, in this process and in others."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdebug.engine import Engine, EngineConfig, SamplingParams
from tests.engine.conftest import Lab

ROOT = Path(__file__).parents[2]


def configuration(lab: Lab, algorithm: str, **changes: Any) -> dict[str, Any]:
    """Everything that could let chance in: garbage memory, sampling, chunks, hits, pressure, padded graphs."""
    return {
        "model": str(lab.target),
        "attention_backend": "fa3",
        "page_size": 4,
        "context_length": 96,
        "max_running_requests": 4,
        "chunked_prefill_size": 30,
        "seed": 11,
        "speculative": {
            "algorithm": algorithm,
            "draft_model": str(lab.draft(algorithm)),
            "num_steps": 3,
            "eagle_topk": 3,
            "num_draft_tokens": 9,
        },
        "cuda_graph": {"max_bs": 4, "capture_bs": [4]},
        "memory": {"num_slots": 280, "fill": "garbage", "guards": True},
        **changes,
    }


def workload(engine: Engine) -> str:
    """Every report of a run with arrivals, an abort and requests of all kinds, as JSON."""
    vocab = engine.model.config.vocab_size
    arrivals = {0: (0, 1, 2), 3: (3, 4), 9: (5,), 10: (6,)}
    reports: list[dict[str, Any]] = []
    while engine.has_work or len(reports) <= max(arrivals):
        for n in arrivals.get(len(reports), ()):
            prompt = [(5 * i * i + (n % 3) * (i > 20)) % vocab for i in range(36 + n)]
            params = SamplingParams(
                max_new_tokens=14, temperature=0.9 if n % 2 else 0.0, top_p=0.95, stop_token_ids=(3,)
            )
            engine.add_request(f"r{n}", prompt, params, speculative=n != 4)
        if len(reports) == 7:
            engine.abort("r2")
        reports.append(dataclasses.asdict(engine.step()))
    return json.dumps(reports)


def trace(config: dict[str, Any]) -> str:
    return workload(Engine(EngineConfig.from_dict(config)))


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3"])
def test_two_engines_of_one_process_take_the_same_steps(lab: Lab, algorithm: str) -> None:
    config = configuration(lab, algorithm)
    first = trace(config)
    reports = json.loads(first)
    assert any(report["retracted"] for report in reports), "no memory pressure"
    assert any(cached for report in reports for cached in report["cached"].values()), "no hit"
    assert any(length > 1 for report in reports for length in report["accept_lengths"].values())
    for _ in range(3):
        assert trace(config) == first


def test_what_memory_held_before_changes_no_token(lab: Lab) -> None:
    garbage = trace(configuration(lab, "EAGLE"))
    for fill in ("zeros", "nan"):
        memory = {"num_slots": 280, "fill": fill, "guards": False}
        assert trace(configuration(lab, "EAGLE", memory=memory)) == garbage


def test_another_process_takes_the_same_steps(lab: Lab) -> None:
    """With another hash seed: no decision may follow the order of a set."""
    config = configuration(lab, "EAGLE")
    script = f"from tests.engine.test_determinism import trace; print(trace({config!r}))"
    traces = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "4242")
    ]
    assert traces == [trace(config)] * 2
