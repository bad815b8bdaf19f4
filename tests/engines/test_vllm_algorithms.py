"""vLLM 0.32.0's algorithms beside EAGLE, and its model runner V2: each serves what the dense reference says, its drafts
are accepted, and the runners agree."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.engines.replays import ROOT, replayed

pytestmark = pytest.mark.engines

RELEASE = "vllm==0.32.0"
SECOND = "vllm/v2==0.32.0"
TWINS = ROOT / "scenarios" / "twins"


@pytest.mark.parametrize("target", [RELEASE, SECOND])
@pytest.mark.parametrize(("name", "least"), [("standalone", 3.0), ("ngram_chain", 1.1), ("dflash", 1.3)])
def test_it_is_lossless_and_its_drafts_know_something(name: str, least: float, target: str) -> None:
    code, arm = replayed(str(TWINS / f"{name}.yaml"), "--target", target)
    assert (code, arm["verdict"]) == (0, "pass"), arm["detail"]
    lengths = [each for request in arm["requests"] for each in request["accept_lengths"]]
    assert sum(lengths) / len(lengths) >= least


def test_the_second_runner_is_looked_at_as_the_first_is() -> None:
    """Every oracle of ours looks at it, and at a chunk's end its draft reads the next token."""
    code, arm = replayed("chunk_tail", "--arm", "fixed", "--target", SECOND)
    assert (code, arm["verdict"], arm["cannot_show"]) == (0, "pass", []), arm["detail"]
    assert arm["reached_sites"]["draft.forward.positions"] > 0
    assert any("Triton's interpreter" in each for each in arm["not_engine_code"])


def twins(name: str, *more: str) -> dict[str, dict[str, Any]]:
    words = [sys.executable, "-m", "specdebug", "twins", str(TWINS / f"{name}.yaml"), "--json", "--no-locate", *more]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return {each["relation"]: each for each in json.loads(done.stdout)["twins"]}


def test_the_runners_agree_and_one_alone_is_broken_by_chunks() -> None:
    relations = ("--relation", "chunks", "--relation", "runner")
    first, second = (twins("eagle_chain", "--target", each, *relations) for each in (RELEASE, SECOND))
    assert (first["chunks"]["verdict"], first["runner"]["verdict"]) == ("broken", "holds")
    assert (second["chunks"]["verdict"], second["runner"]["verdict"]) == ("holds", "holds")
