"""SGLang's own code on a CPU: scenarios run on it, agree with our engine token for token, and its reverts fail.

``make test-engines`` installs the release and runs these.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdebug.installs.release import Release
from specdebug.installs.store import StoreError, find_installed, store_folder

pytestmark = pytest.mark.engines

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "sglang==0.5.13"
REPLAY = (sys.executable, "-m", "specdebug", "replay")


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    try:
        find_installed(store_folder(None), Release("sglang", "0.5.13"))
    except StoreError as error:
        pytest.fail(f"{error} (make test-engines does)")


def replayed(scenario: str, *more: str, revert: int | None = None) -> tuple[int, dict[str, Any]]:
    """Exit code and the document of one arm."""
    env = {name: value for name, value in os.environ.items() if name != "SGLANG_DEBUG_REVERT_PR"}
    env |= {} if revert is None else {"SGLANG_DEBUG_REVERT_PR": str(revert)}
    path = str(ROOT / "scenarios" / f"{scenario}.yaml")
    done = subprocess.run([*REPLAY, path, "--json", *more], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["arms"][0]


@pytest.mark.parametrize("scenario", ["multiturn_cache_hit", "topk_page_table", "draft_positions"])
def test_tokens_and_accept_lengths_are_those_of_our_engine(scenario: str) -> None:
    code, theirs = replayed(scenario, "--arm", "fixed", "--target", RELEASE)
    assert (code, theirs["verdict"]) == (0, "pass"), theirs["detail"]
    _, ours = replayed(scenario, "--arm", "fixed")
    requests = [sorted(arm["requests"], key=lambda each: each["rid"]) for arm in (theirs, ours)]
    for one, other in zip(*requests, strict=True):
        assert one["output_ids"] == other["output_ids"], one["rid"]
        assert sorted(one["accept_lengths"]) == sorted(other["accept_lengths"]), one["rid"]
        assert one["cached_tokens"] == other["cached_tokens"], one["rid"]


@pytest.mark.parametrize(
    ("scenario", "number", "signature"),
    [
        ("topk_page_table", 27360, "assert@server.draft-expand-page_table"),
        ("row_headroom", 26972, "assert@server.spec-v#-page-#-topk-#-draft-over-allocation"),
    ],
)
def test_its_own_reverts_fail_by_its_own_words(scenario: str, number: int, signature: str) -> None:
    code, arm = replayed(scenario, "--arm", "fixed", "--target", RELEASE)
    assert (code, arm["verdict"]) == (0, "pass"), arm["detail"]
    code, arm = replayed(scenario, "--arm", "fixed", "--target", RELEASE, revert=number)
    assert (code, arm["verdict"]) == (1, "fail")
    assert arm["signature"].startswith(signature)


def test_of_a_fix_that_it_does_not_know_the_log_that_is_named_has_its_words() -> None:
    words = [*REPLAY, "cache_hit", "--arm", "recompute", "--target", RELEASE, "--revert", "10846"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    named = re.search(r"its log is (\S+?\.log)", done.stderr)
    assert named is not None, done.stderr
    assert "PR #10846 revert is not registered" in Path(named[1]).read_text()
