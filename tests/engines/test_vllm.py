"""vLLM's own code on a CPU: scenarios of chains run on it and agree with our engine token for token."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.engines.replays import REPLAY, ROOT, alike, replayed

pytestmark = pytest.mark.engines

RELEASE = "vllm==0.32.0"


@pytest.mark.parametrize("scenario", ["multiturn_cache_hit", "chunk_tail", "bigram_key"])
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
